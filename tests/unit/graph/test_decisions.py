from onnx import TensorProto, helper

from halfwise.graph.decisions import FARTHEST, decided, decisions, first_of, leading_to
from halfwise.graph.roles import roles_of
from tests import models
from tests.control import BOOL, MATRIX, graph
from tests.unit.casing import prepare
from tests.unit.graph.sketch import Sketch, f32


def test_what_makes_whole_numbers_or_booleans_of_floats_decides() -> None:
    s = Sketch()
    x = s.input("x", [4])
    s.op("Shape", x, name="shape")
    s.op("Tanh", x, name="tanh")
    s.op("Cast", "tanh_out", name="cast", to=TensorProto.INT32)
    s.op("Cast", "cast_out", name="back", to=TensorProto.FLOAT)
    s.op("Floor", "back_out", name="floor")
    s.op("Greater", "floor_out", f32(1.0), name="greater")
    s.op("ArgMax", "floor_out", name="choose")
    network = s.network("greater_out", "choose_out", "shape_out")
    found = list(decisions(network))
    assert [n.name for n in found] == ["cast", "floor", "greater", "choose"]
    assert [decided(n) for n in found] == [
        *(("cast_out",), ("floor_out",), ("greater_out",), ("choose_out",)),
    ]
    assert [n.name for n in first_of(found)] == ["cast"]


def test_the_way_to_a_decision_ends_at_integers() -> None:
    prepared = prepare(models.position_bucket())
    (bucket,) = decisions(prepared.network)
    names = leading_to(bucket, prepared.roles)
    assert names == ["bucket", "spread", "quotient", "log", "part"]


def test_the_way_is_not_followed_through_a_whole_network() -> None:
    s = Sketch()
    value = s.input("x", [4])
    for i in range(2 * FARTHEST):
        value = s.op("Tanh", value, name=f"tanh{i}")
    network = s.network(s.op("ArgMax", value, name="choose"))
    (choose,) = decisions(network)
    names = leading_to(choose, roles_of(network))
    assert len(names) == FARTHEST
    assert names[:2] == ["choose", f"tanh{2 * FARTHEST - 1}"]


def chosen():
    """Two roundings, and between them an If whose bodies alone read the first."""
    s = Sketch()
    x, flag = s.input("x", [2, 2]), s.input("flag", [], BOOL)
    first = s.op("Round", s.op("Tanh", x, name="tanh"), name="first")
    branches = {
        branch: graph(
            branch,
            [helper.make_node(op, [first], [f"{branch}_y"])],
            (),
            [(f"{branch}_y", MATRIX)],
        )
        for branch, op in (("then_branch", "Sin"), ("else_branch", "Cos"))
    }
    s.nodes.append(helper.make_node("If", [flag], ["picked"], "pick", **branches))
    return s.network(s.op("Round", "picked", name="second"))


def test_the_way_to_a_decision_leads_through_bodies() -> None:
    network = chosen()
    found = list(decisions(network))
    assert [n.name for n in found] == ["first", "second"]
    assert [n.name for n in first_of(found)] == ["first"]
    assert leading_to(found[1], roles_of(network)) == ["second", "pick", "first", "tanh"]
