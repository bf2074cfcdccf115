import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper

from halfwise.emulation.ort import Session
from halfwise.graph import dataflow
from halfwise.graph.dataflow import (
    CAPTURED,
    GIVEN,
    Ancestry,
    Part,
    captured,
    giving_out,
    operands,
    read_by,
    uses_in,
    varying_tensors,
)
from halfwise.graph.loading import network_from_proto
from halfwise.graph.roles import Roles, roles_of
from halfwise.records import NodeName, TensorName
from tests import control
from tests.control import BOOL, GO, MATRIX, STEP
from tests.unit.graph.sketch import Sketch, f32

Y, D = TensorName("y_out"), TensorName("d_out")
X = {"x": f32([[1, 4, 9, 16]])}


def nested():
    """An If in a Loop; both read values of the main graph."""
    s = Sketch()
    x, flag = s.input("x", [2, 2]), s.input("flag", [], BOOL)
    outer = s.op("Tanh", x, name="outer")
    inner = {
        branch: control.graph(
            branch,
            [helper.make_node("Add", ["state", outer], [f"{branch}_y"])],
            (),
            [(f"{branch}_y", MATRIX)],
        )
        for branch in ("then_branch", "else_branch")
    }
    body = control.graph(
        "body",
        [
            helper.make_node("Identity", ["go"], ["on"]),
            helper.make_node("If", [flag], ["next"], "choose", **inner),
        ],
        [("step", STEP), ("go", GO), ("state", MATRIX)],
        [("on", GO), ("next", MATRIX)],
    )
    s.nodes.append(helper.make_node("Loop", ["", flag, x], ["last"], "loop", body=body))
    return s.network(s.op("Neg", "last", name="neg"))


def test_what_nested_bodies_take_from_outside_is_read_by_their_node():
    network = nested()
    outer, loop, neg = network.nodes()
    assert [v.name for v in captured(loop)] == ["flag", "outer_out"]
    assert [v.name for v in operands(loop)] == ["flag", "x", "outer_out"]
    assert captured(neg) == ()
    uses = uses_in(network.graph)
    assert uses[outer.outputs[0]] == [(loop, CAPTURED)]
    assert uses[loop.outputs[0]] == [(neg, 0)]


def names(nodes: list[ir.Node]) -> set[str]:
    return {n.name or "" for n in nodes}


def crossing() -> tuple[dict[str, ir.Node], Roles]:
    """a and b → Concat → Split → c and d; c also through a pinned slot of Resize."""
    s = Sketch()
    a = s.op("Relu", s.input("x", [2, 2]), name="a")
    b = s.op("Tanh", a, name="b")
    both = s.op("Concat", a, b, axis=0, name="both")
    c = s.op("Exp", s.op("Slice", both, [0], [2], name="left"), name="c")
    d = s.op("Softmax", both, name="d")
    network = s.network(s.op("Add", c, s.op("Slice", d, [0], [2]), name="e"))
    return {str(n.name): n for n in network.nodes()}, roles_of(network)


def test_producers_and_consumers_look_through_data_movement() -> None:
    nodes, roles = crossing()
    assert names(dataflow.producers(nodes["c"].inputs[0], roles)) == {"a", "b"}
    assert names(dataflow.low_consumers(nodes["a"].outputs[0], roles)) == {"b", "c", "d"}


def test_upstream_goes_on_behind_what_passes() -> None:
    nodes, roles = crossing()
    start = nodes["e"].inputs[0]
    assert names(dataflow.upstream(start, roles, lambda _: ())) == {"c"}
    first = lambda n: n.inputs[:1] if n.name == "c" else ()  # noqa: E731
    assert names(dataflow.upstream(start, roles, first)) == {
        "c",
        "a",
        "b",
    }


def test_a_walk_upstream_ends() -> None:
    s = Sketch()
    y = s.input("x", [2])
    for _ in range(2 * dataflow.FARTHEST):
        y = s.op("Relu", y)
    network = s.network(y)
    found = dataflow.upstream(network.graph.outputs[0], roles_of(network), lambda n: n.inputs)
    every = [n.name for n in network.nodes()]
    assert [n.name for n in found] == every[: dataflow.FARTHEST - 1 : -1]


def test_slots_that_stay_fp32_are_no_consumers() -> None:
    s = Sketch()
    x = s.op("Relu", s.input("x", [1, 1, 2, 2]))
    scales = s.op("Exp", s.input("s", [4]), name="scales")
    empty = np.zeros(0, np.float32)
    network = s.network(s.op("Resize", x, empty, scales, name="resize"))
    nodes = {n.name: n for n in network.nodes()}
    assert dataflow.low_consumers(nodes["scales"].outputs[0], roles_of(network)) == []


def test_a_body_consumes_what_it_reads_from_outside() -> None:
    s = Sketch()
    x, flag = s.input("x", [2, 4]), s.input("flag", [], TensorProto.BOOL)
    moved = s.op("Identity", s.op("Relu", x, name="relu"), name="moved")
    branches = control.branches("b", moved, x)
    s.nodes.append(helper.make_node("If", [flag], ["chosen"], "choose", **branches))
    network = s.network(s.op("Neg", "chosen", name="neg"))
    nodes = {n.name: n for n in network.nodes()}
    readers = dataflow.low_consumers(nodes["relu"].outputs[0], roles_of(network))
    assert {n.op_type for n in readers} == {"Mul", "Sub"}


def test_the_constant_behind_an_operand() -> None:
    s = Sketch()
    wide = s.op("Expand", s.constant(f32([1.0]), "one"), [3])
    mixed = s.op("Concat", wide, s.constant(f32([2.0]), "two"), axis=0)
    network = s.network(s.op("Add", mixed, mixed, name="add"), s.op("Neg", wide, name="neg"))
    nodes, roles = {n.name: n for n in network.nodes()}, roles_of(network)
    found = dataflow.constant_behind(nodes["neg"].inputs[0], roles)
    assert found is not None
    assert found.name == "one"
    assert dataflow.constant_behind(nodes["add"].inputs[0], roles) is None


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


def test_what_a_tensor_does_not_need_goes():
    network = diamond()
    copy = giving_out(network.model, [*t("b"), TensorName("nowhere")])
    assert [n.name for n in copy.graph] == ["a", "b"]
    np.testing.assert_array_equal(Session(copy).run(X)["b_out"], 2 * X["x"] + 1)
    assert len(list(network.nodes())) == 5


def test_a_region_starts_from_what_is_given():
    model = giving_out(diamond().model, t("b", "d"), t("a", "b"))
    assert {v.name for v in model.graph.inputs} == {"x", f"a_out{GIVEN}", f"b_out{GIVEN}"}
    feed = {**X, f"a_out{GIVEN}": f32([[4, 4, 4, 4]]), f"b_out{GIVEN}": f32([[0, 0, 0, 0]])}
    found = Session(model).run(feed)
    np.testing.assert_array_equal(found["b_out"], f32([[5, 5, 5, 5]]))
    np.testing.assert_array_equal(found["d_out"], f32([[2, 2, 2, 2]]))


def test_given_tensors_may_be_outputs_and_targets_of_the_model():
    model = giving_out(diamond().model, t("d", "a"), t("a", "d"))
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
    found = giving_out(network.model, [TensorName("y")], [TensorName("a")])
    given = {"c": np.array(True), "x": f32([1, 1, 1, 1]), f"a{GIVEN}": f32([5, 5, 5, 5])}
    np.testing.assert_array_equal(Session(found).run(given)["y"], f32([-5] * 4))


def test_some_nodes_of_the_same_graph() -> None:
    s = Sketch()
    network = s.network(s.op("Abs", s.op("Neg", s.input("x", [2]), name="neg"), name="abs"))
    part = Part.of(network.model, [NodeName("abs"), NodeName("other")])
    assert [n.name for n in part.all_nodes()] == ["abs"]
    assert part.graph is network.graph
