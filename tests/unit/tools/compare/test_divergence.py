import numpy as np
import onnx_ir as ir
import pytest

from halfwise.emulation.tensors import ModelTensors
from halfwise.emulation.tf32 import emulate_tf32
from halfwise.emulation.typed import emulate_typed
from halfwise.formats import FP16
from halfwise.graph.casts import rewrite
from halfwise.tools.compare import ModelSide, Walk, compared
from tests import models
from tests.unit.casing import prepare
from tests.unit.graph.sketch import Sketch, f32
from tests.unit.tools.compare.copies import comparison, network, side


@pytest.mark.parametrize("node", ["a", "b", "c", "y"])
@pytest.mark.parametrize("optimise", [False, True])
def test_the_altered_node_is_named(node, optimise):
    # The branch of c is 1e-12 of the other: what is altered there has to be large to matter.
    factor = 1e13 if node == "c" else 1.02
    found = comparison(side(network(**{node: factor}).model, optimise=optimise))
    assert found.first == (node,)
    assert found.different
    assert found.path[0] == node
    assert found.path[-1] == "y"


def test_rounding_alone_is_no_divergence():
    whole = network()
    for other in (side(whole.model, optimise=True), side(emulate_tf32(whole), arithmetic="tf32")):
        found = comparison(other)
        assert found.first == ()
        assert not any(node.status == "born" for node in found.nodes)


def test_a_tensor_of_rounding_errors_is_no_divergence():
    found = comparison(side(network().model, optimise=True))
    still = next(node for node in found.nodes if node.node == "still")
    assert still.status in ("good", "inherited")


def test_errors_that_are_handed_on_are_inherited():
    found = comparison(side(network(a=1.1).model))
    status = {node.node: node.status for node in found.nodes}
    assert status["a"] == "born"
    assert status["b"] == status["centre"] == "inherited"
    inherits = next(node for node in found.nodes if node.node == "b")
    assert inherits.inherited == pytest.approx(0.1, rel=1e-3)
    assert inherits.born == 0


def test_the_side_with_the_fault_is_told():
    whole, altered = side(network().model), side(network(b=1.1).model)
    assert next(n for n in comparison(altered, whole).nodes if n.status == "born").side == "b"
    found = comparison(whole, altered)
    assert next(n for n in found.nodes if n.status == "born").side == "a"
    assert found.first == ("b",)


def test_an_infinity_that_is_swallowed_is_passed_over():
    sketch = Sketch()
    x = sketch.input("x", [4, 16])
    cubed = sketch.op("Pow", sketch.op("Mul", x, f32(60), name="large"), f32(3), name="cubed")
    swallowed = sketch.op("Tanh", cubed, name="tanh")
    wrong = sketch.op("Add", swallowed, f32(1 + 2.0**-5), name="wrong")
    y = sketch.op("Mul", wrong, f32(1), name="y")
    ill = models.Ill(sketch.proto(y), {"x": models.signals(4, 16, seed=1, count=2)})
    prepared = prepare(ill)
    low = emulate_typed(rewrite(prepared.network, prepared.roles, frozenset(), FP16).model)
    node = next(n for n in low.graph if n.name == "wrong")
    slot = next(i for i, v in enumerate(node.inputs) if v is not None and v.const_value is not None)
    assert node.inputs[slot] is not None
    value = node.inputs[slot]
    assert value is not None
    value.const_value = ir.tensor(np.float32(2))
    tensors = ModelTensors(prepared.network.model, prepared.samples)
    right = ModelSide(tensors, "right", exact=True)
    wrong_side = ModelSide(ModelTensors(low, prepared.samples), "wrong", "fp16")
    walk = Walk(prepared.network, prepared.samples, right, wrong_side)
    walk.all()
    found = compared(walk)
    assert {n.node for n in found.nodes if n.status == "born"} == {"cubed", "wrong"}
    assert found.first == ("wrong",)


def test_another_shape_is_born_where_it_arises():
    sketch = Sketch()
    x = sketch.input("x", [4, 16])
    t = sketch.op("Transpose", x, name="t", perm=[1, 0])
    y = sketch.op("ReduceSum", sketch.op("Abs", t, name="abs"), [0], name="y")
    ill = models.Ill(sketch.proto(y), {"x": models.signals(4, 16, seed=1, count=2)})
    prepared = prepare(ill)
    other = prepared.network.copy()
    node = next(n for n in other.graph if n.name == "t")
    node.attributes["perm"] = ir.AttrInt64s("perm", [0, 1])
    for value in (v for n in other.graph for v in n.outputs):
        value.shape = None
    right = ModelSide(ModelTensors(prepared.network.model, prepared.samples), "r", exact=True)
    walk = Walk(
        prepared.network,
        prepared.samples,
        right,
        ModelSide(ModelTensors(other, prepared.samples), "w"),
    )
    walk.all()
    assert compared(walk).first == ("t",)
