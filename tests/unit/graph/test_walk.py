import numpy as np
import onnx_ir as ir
from onnx import TensorProto, helper

from halfwise.graph import walk
from halfwise.graph.roles import Roles, roles_of
from tests import control
from tests.unit.graph.sketch import Sketch, f32


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
    assert names(walk.producers(nodes["c"].inputs[0], roles)) == {"a", "b"}
    assert names(walk.low_consumers(nodes["a"].outputs[0], roles)) == {"b", "c", "d"}


def test_upstream_goes_on_behind_what_passes() -> None:
    nodes, roles = crossing()
    start = nodes["e"].inputs[0]
    assert names(walk.upstream(start, roles, lambda _: ())) == {"c"}
    assert names(walk.upstream(start, roles, lambda n: n.inputs[:1] if n.name == "c" else ())) == {
        "c",
        "a",
        "b",
    }


def test_a_walk_upstream_ends() -> None:
    s = Sketch()
    y = s.input("x", [2])
    for _ in range(2 * walk.FARTHEST):
        y = s.op("Relu", y)
    network = s.network(y)
    found = walk.upstream(network.graph.outputs[0], roles_of(network), lambda n: n.inputs)
    assert [n.name for n in found] == [n.name for n in network.nodes()][: walk.FARTHEST - 1 : -1]


def test_slots_that_stay_fp32_are_no_consumers() -> None:
    s = Sketch()
    x = s.op("Relu", s.input("x", [1, 1, 2, 2]))
    scales = s.op("Exp", s.input("s", [4]), name="scales")
    empty = np.zeros(0, np.float32)
    network = s.network(s.op("Resize", x, empty, scales, name="resize"))
    nodes = {n.name: n for n in network.nodes()}
    assert walk.low_consumers(nodes["scales"].outputs[0], roles_of(network)) == []


def test_a_body_consumes_what_it_reads_from_outside() -> None:
    s = Sketch()
    x, flag = s.input("x", [2, 4]), s.input("flag", [], TensorProto.BOOL)
    moved = s.op("Identity", s.op("Relu", x, name="relu"), name="moved")
    branches = control.branches("b", moved, x)
    s.nodes.append(helper.make_node("If", [flag], ["chosen"], "choose", **branches))
    network = s.network(s.op("Neg", "chosen", name="neg"))
    nodes = {n.name: n for n in network.nodes()}
    readers = walk.low_consumers(nodes["relu"].outputs[0], roles_of(network))
    assert {n.op_type for n in readers} == {"Mul", "Sub"}


def test_the_constant_behind_an_operand() -> None:
    s = Sketch()
    wide = s.op("Expand", s.constant(f32([1.0]), "one"), [3])
    mixed = s.op("Concat", wide, s.constant(f32([2.0]), "two"), axis=0)
    network = s.network(s.op("Add", mixed, mixed, name="add"), s.op("Neg", wide, name="neg"))
    nodes, roles = {n.name: n for n in network.nodes()}, roles_of(network)
    found = walk.constant_behind(nodes["neg"].inputs[0], roles)
    assert found is not None
    assert found.name == "one"
    assert walk.constant_behind(nodes["add"].inputs[0], roles) is None


def test_a_body_that_only_hands_a_value_out_consumes_it() -> None:
    s = Sketch()
    large = s.op("Relu", s.input("x", [2, 4]), name="relu")
    branches = {}
    for name in ("then_branch", "else_branch"):
        copy = helper.make_node("Identity", [large], [f"{name}_y"], f"{name}_copy")
        branches[name] = control.graph(name, [copy], (), [(f"{name}_y", control.MATRIX)])
    flag = s.input("flag", [], TensorProto.BOOL)
    s.nodes.append(helper.make_node("If", [flag], ["chosen"], "choose", **branches))
    network = s.network(s.op("Neg", "chosen", name="neg"))
    nodes, roles = {n.name: n for n in network.nodes()}, roles_of(network)
    readers = walk.low_consumers(nodes["relu"].outputs[0], roles)
    assert {roles.part(n).decider for n in readers} == {"choose"}
