import numpy as np
import pytest
from onnx import TensorProto
from onnx.helper import make_tensor_value_info

from halfwise.emulation.ort import Session
from halfwise.emulation.tf32 import SWITCH_INPUT, emulate_tf32, tf32_nodes
from halfwise.graph.model import network_from_proto
from halfwise.metrics.relative import relative_rms
from halfwise.records import NodeName
from halfwise.tools.diagnose import products
from halfwise.tools.diagnose.products import IN_TF32, in_kernels
from tests.unit.graph.sketch import Sketch
from tests.unit.tools.compare.copies import WEIGHTS


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


def test_outputs_that_no_node_computes(subject):
    sketch = Sketch()
    x = sketch.input("x", [4, 16])
    weight = sketch.constant(WEIGHTS[0])
    y = sketch.op("MatMul", x, weight, name="y")
    proto = sketch.proto(y)
    proto.graph.output.append(make_tensor_value_info(weight, TensorProto.FLOAT, [16, 16]))
    given = subject(model=network_from_proto(proto), fake={})
    found = in_kernels(given, given.engines, [NodeName("y")], 0)
    (ran,) = found.values()
    assert ran.effect == ran.own > IN_TF32


def test_weights_that_nodes_compute_are_no_inputs_of_the_engine(subject, monkeypatch):
    sketch = Sketch()
    x = sketch.input("x", [4, 16])
    turned = sketch.op("Transpose", WEIGHTS[0], name="turned", perm=[1, 0])
    network = sketch.network(sketch.op("MatMul", x, turned, name="y"))
    given = subject(model=network, fake={})
    cases, of = [], given.engines.of

    def remembered(case):
        cases.append(case)
        return of(case)

    monkeypatch.setattr(given.engines, "of", remembered)
    assert in_kernels(given, given.engines, [NodeName("y")], 0)[NodeName("y")].own > IN_TF32
    assert [v.name for v in cases[0].network.graph.inputs] == ["x"]
