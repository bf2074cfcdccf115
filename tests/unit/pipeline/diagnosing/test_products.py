import numpy as np
import pytest

from halfwise.backends.emulation.tf32 import SWITCH_INPUT, emulate_tf32, tf32_nodes
from halfwise.backends.ort import Session
from halfwise.metrics.relative import relative_rms
from halfwise.pipeline.diagnosing import products
from halfwise.pipeline.diagnosing.products import IN_TF32, in_kernels
from halfwise.records import NodeName


def test_products_run_alone_on_what_they_have_in_fp32(subject):
    given = subject(fake={})
    network = given.case.network
    names = tf32_nodes(network)
    found = in_kernels(given, given.engines, names, 1)
    assert found.keys() == set(names) == {"a", "b", "y"}
    # The stand-in rounds to nearest, as the emulation does.
    session = Session(emulate_tf32(network, switched=True))
    for i, name in enumerate(names):
        outputs = session.run({**given.samples[1], SWITCH_INPUT: np.arange(len(names)) == i})
        right = given.references[1]
        expected = max(relative_rms(right[n], outputs[n]) for n in right)
        assert found[name].effect == pytest.approx(expected, rel=1e-2)
        assert found[name].own > IN_TF32


def test_so_many_are_followed(subject, monkeypatch):
    monkeypatch.setattr(products, "FOLLOWED", 1)
    given = subject(fake={})
    names = tf32_nodes(given.case.network)
    found = in_kernels(given, given.engines, names, 0)
    assert [found[name].effect is None for name in names] == [False, True, True]


def test_only_those_that_are_asked_for(subject):
    given = subject(fake={})
    assert in_kernels(given, given.engines, [NodeName("b")], 0).keys() == {"b"}
