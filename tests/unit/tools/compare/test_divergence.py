import numpy as np
import onnx_ir as ir
import pytest

from halfwise.case import Samples, Settings
from halfwise.emulation.runner import ModelRunner
from halfwise.emulation.typed import emulate_tf32, emulate_typed
from halfwise.formats import FP16
from halfwise.graph.casts import rewrite
from halfwise.tools.compare.divergence import find_divergence
from halfwise.tools.compare.walk import Walk, emulated
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
    assert still.status in ("good", "amplified", "inherited")


def test_errors_that_are_handed_on_are_inherited():
    found = comparison(side(network(a=1.1).model))
    status = {node.node: node.status for node in found.nodes}
    assert status["a"] == "born"
    assert status["b"] == status["centre"] == "inherited"
    inherits = next(node for node in found.nodes if node.node == "b")
    assert inherits.inherited == pytest.approx(0.1, rel=1e-3)
    assert inherits.born == 0


def cancelling(factor=2.0):
    """`s` takes 1 from what is 1 and a little more: its error is many times that of `h`."""
    sketch = Sketch()
    little = sketch.op("Mul", sketch.input("x", [8, 8]), f32(1e-2), name="little")
    h = sketch.op("Add", little, f32(1), name="h")
    s = sketch.op("Sub", h, f32(1), name="s")
    return sketch.network(sketch.op("Mul", s, f32(factor), name="y"))


@pytest.mark.parametrize(("factor", "first"), [(2.0, ()), (3.0, ("y",))])
def test_an_error_that_leaves_the_tolerance_where_none_is_born_is_amplified(factor, first):
    whole = cancelling()
    low = emulated(cancelling(factor), SAMPLES, Settings(), "fp16")
    right = ModelRunner(whole.model, SAMPLES, "right", exact=True)
    walk = Walk(whole, SAMPLES, right, low)
    found = find_divergence(walk)
    status = [node.status for node in found.nodes]
    assert status == ["good", "good", "amplified", "born" if first else "inherited"]
    s = found.nodes[2]
    assert s.error is not None
    assert s.inherited <= found.tolerance < s.error
    assert s.factor == pytest.approx(s.error / s.inherited)
    assert s.error > 10 * s.inherited
    assert s.region == ("s",)
    assert found.first == first
    assert found.amplified == (("s",) if first else ("s", "y"))


def test_what_is_amplified_behind_the_first_born_error_does_not_come_first():
    found = comparison(side(network(a=1.1).model))
    assert found.first == ("a",)
    assert found.amplified == ()


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
    right = ModelRunner(prepared.network.model, prepared.samples, "right", exact=True)
    wrong_side = ModelRunner(low, prepared.samples, "wrong", "fp16")
    walk = Walk(prepared.network, prepared.samples, right, wrong_side)
    found = find_divergence(walk)
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
    right = ModelRunner(prepared.network.model, prepared.samples, "r", exact=True)
    walk = Walk(
        prepared.network,
        prepared.samples,
        right,
        ModelRunner(other, prepared.samples, "w"),
    )
    assert find_divergence(walk).first == ("t",)


NODES = 60
DATA = f32(np.random.default_rng(3).normal(size=(2, 8, 8)))
SAMPLES = Samples(("s0", "s1"), lambda i: {"x": DATA[i]})


def residual(broken=None):
    """A residual stream of branches, so that what lies before a node is more than one tensor."""
    sketch, rng = Sketch(), np.random.default_rng(1)
    x = sketch.input("x", [8, 8])
    for i in range(NODES // 3):
        weight = f32(rng.normal(size=(8, 8)) / 8)
        names = [f"m{i}", f"t{i}", f"s{i}"]
        factors = [1.5 if name == broken else 1.0 for name in names]
        m = sketch.op("MatMul", x, f32(weight * factors[0]), name=names[0])
        t = sketch.op("Tanh" if factors[1] == 1 else "Sin", m, name=names[1])
        x = sketch.op("Add" if factors[2] == 1 else "Sub", x, t, name=names[2])
    return sketch.network(x)
