from onnx import helper

from halfwise.graph.captured import CAPTURED, captured, operands, uses_in
from tests import control
from tests.control import BOOL, GO, MATRIX, STEP
from tests.unit.graph.sketch import Sketch


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
