"""The divergence bench, with a few faults in the bundled model."""

import random

import numpy as np
import pytest

from bench.divergence import Divergence, Saboteur, compare_copy
from bench.runs import ROOT, digits
from halfwise.api.loading import load_model
from halfwise.graph.model import load_network


@pytest.fixture(scope="module")
def bench():
    return Divergence([digits()])


def test_a_fault_is_in_one_node_alone():
    network = load_network(ROOT / digits().model)
    saboteur = Saboteur(network, "digits", random.Random(3))
    for kind in ("weights", "axis", "eps"):
        made = saboteur.fault(kind)
        assert made is not None
        model, fault = made
        changed = [
            n.name
            for n, old in zip(model.graph.node, network.nodes(), strict=True)
            if list(n.input) != [v.name if v is not None else "" for v in old.inputs]
            or n.op_type != old.op_type
            or sorted(a.name for a in n.attribute) != sorted(old.attributes)
            or any(_value(a) != _own(old.attributes[a.name]) for a in n.attribute)
        ]
        assert changed == [fault.node]


def _value(attribute):
    import onnx

    found = onnx.helper.get_attribute_value(attribute)
    return list(found) if not isinstance(found, int | float | bytes) else found


def _own(attribute):
    found = attribute.value
    return list(found) if isinstance(found, tuple | list | np.ndarray) else found


def test_the_model_as_it_is_shows_nothing(bench):
    assert bench.controls("optimised") == 0


@pytest.mark.slow
def test_the_node_is_named(bench):
    network, samples = bench.cases["digits"]
    saboteur = Saboteur(network, "digits", random.Random(1))
    made = saboteur.fault("eps")
    assert made is not None
    model, fault = made
    found = compare_copy(network, samples, load_model(model), "optimised")
    assert found.first in ((fault.node,), ())
