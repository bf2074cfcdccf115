import numpy as np
import onnx

from halfwise.emulation.ort import Session
from halfwise.graph.cut import GIVEN, Ancestry, giving_out, read_by, region_model, varying_tensors
from halfwise.graph.model import network_from_proto
from halfwise.records import TensorName
from tests.unit.graph.sketch import Sketch, f32


def diamond():
    sketch = Sketch()
    x = sketch.input("x", [1, 4])
    a = sketch.op("Mul", x, f32(2), name="a")
    b = sketch.op("Add", a, f32(1), name="b")
    c = sketch.op("Sqrt", a, name="c")
    d = sketch.op("Add", b, c, name="d")
    sketch.op("Abs", d, name="unused")
    return sketch.network(d, a)


def t(*names):
    return [TensorName(f"{name}_out") for name in names]


Y, D = TensorName("y_out"), TensorName("d_out")


X = {"x": f32([[1, 4, 9, 16]])}


def test_what_a_tensor_does_not_need_goes():
    network = diamond()
    copy = giving_out(network.model, [*t("b"), TensorName("nowhere")])
    assert [n.name for n in copy.graph] == ["a", "b"]
    np.testing.assert_array_equal(Session(copy).run(X)["b_out"], 2 * X["x"] + 1)
    assert len(list(network.nodes())) == 5


def test_a_region_starts_from_what_is_given():
    model = region_model(diamond(), t("b", "d"), t("a", "b"))
    assert {v.name for v in model.graph.inputs} == {"x", f"a_out{GIVEN}", f"b_out{GIVEN}"}
    feed = {**X, f"a_out{GIVEN}": f32([[4, 4, 4, 4]]), f"b_out{GIVEN}": f32([[0, 0, 0, 0]])}
    found = Session(model).run(feed)
    np.testing.assert_array_equal(found["b_out"], f32([[5, 5, 5, 5]]))
    np.testing.assert_array_equal(found["d_out"], f32([[2, 2, 2, 2]]))


def test_given_tensors_may_be_outputs_and_targets_of_the_model():
    model = region_model(diamond(), t("d", "a"), t("a", "d"))
    found = Session(model).run({**X, f"a_out{GIVEN}": f32([[1, 1, 1, 1]])})
    np.testing.assert_array_equal(found["a_out"], 2 * X["x"])
    np.testing.assert_array_equal(found["d_out"], f32([[3, 3, 3, 3]]))


def test_what_lies_between_tensors():
    ancestry = Ancestry(diamond())
    assert ancestry.between(t("b", "c"), D) == ("d",)
    assert ancestry.between(t("b"), D) == ("a", "c", "d")
    assert ancestry.between((), D) == ("a", "b", "c", "d")


def test_constants_are_told_apart():
    sketch = Sketch()
    x = sketch.input("x", [4])
    folded = sketch.op("Add", f32([1, 2, 3, 4]), f32(1), name="folded")
    network = sketch.network(sketch.op("Mul", x, folded, name="y"))
    assert varying_tensors(network) == {"x", "y_out"}
    assert Ancestry(network).between((), Y) == ("y",)


def test_what_bodies_take_from_outside_is_read():
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]> g (bool c, float[4] x) => (float[4] y) {
        a = Abs(x)
        y = If(c) <then_branch = t () => (float[4] p) { p = Neg(a) },
                   else_branch = e () => (float[4] q) { r = Exp(x) q = Neg(r) }> }"""
    )
    network = network_from_proto(model)
    branch = next(n for n in network.nodes() if n.op_type == "If")
    assert set(read_by(branch)) == {"c", "a", "x"}
    found = region_model(network, [TensorName("y")], [TensorName("a")])
    given = {"c": np.array(True), "x": f32([1, 1, 1, 1]), f"a{GIVEN}": f32([5, 5, 5, 5])}
    np.testing.assert_array_equal(Session(found).run(given)["y"], f32([-5] * 4))
