"""Which nodes decide, which tensors only select constants, and where infinities end."""

import math

import numpy as np
import pytest
from onnx import TensorProto, helper

from halfwise.emulation.probe import observable
from halfwise.graph.dataflow import FARTHEST
from halfwise.graph.model import node_name
from halfwise.graph.roles import roles_of
from halfwise.graph.sensitivity import (
    decided,
    decisions,
    fates,
    first_of,
    leading_to,
    products_of,
    selects_constants,
)
from halfwise.records import Detail, Histogram, NodeName, Observation, TensorName, replace
from tests import models
from tests.control import BOOL, GO, MATRIX, STEP, graph
from tests.unit.casing import prepare
from tests.unit.graph.sketch import Sketch, f32
from tests.unit.reporting.runs import observation

LIMIT = 32_760.0


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
    assert leading_to(found[1], roles_of(network)) == ["second", "first", "tanh"]


def holds(sketch: Sketch, tensor: str, *, smallest: float = 1.0, **absmax: float) -> bool:
    """Return the answer for a tensor; every tensor observed has that smallest non-zero element."""
    network = sketch.network(tensor)
    detail = Detail(
        smallest_nonzero=smallest,
        overflow=0,
        flush=0,
        subnormal=0,
        histogram=Histogram(first=0, counts=(1,), zeros=1),
        samples=1,
    )
    seen: dict[TensorName, Observation] = {
        TensorName(name): replace(observation(name, None, reach), detail=detail)
        for name, reach in absmax.items()
    }
    (value,) = (v for n in network.nodes() for v in n.outputs if v.name == tensor)
    return selects_constants(value, roles_of(network), seen, LIMIT)


@pytest.mark.parametrize(("reach", "fixed"), [(100, True), (40_000, False)])
def test_where_and_movement_select(reach, fixed) -> None:
    s = Sketch()
    allowed, x = s.input("allowed", [4], TensorProto.BOOL), s.input("x", [4])
    y = s.op("Reshape", s.op("Where", allowed, x, -60_000.0, name="fill"), [2, 2], name="move")
    assert holds(s, y, x=reach, fill_out=60_000, move_out=60_000) is fixed


@pytest.mark.parametrize(
    ("mask", "smallest", "fixed"),
    [(1, 1, True), (1, 0.5, False), (2, 1, False), (0, math.inf, False)],
)
def test_a_product_selects_where_a_factor_is_zero_or_one(mask, smallest, fixed) -> None:
    s = Sketch()
    hidden = s.op("Sub", 1.0, s.input("mask", [4]), name="hidden")
    y = s.op("Mul", hidden, -65_504.0, name="fill")
    assert holds(s, y, smallest=smallest, hidden_out=mask, fill_out=65_504) is fixed


def test_sums_and_masked_data_grow() -> None:
    s = Sketch()
    x = s.input("x", [4])
    fill = s.op("Mul", s.input("mask", [4]), s.op("Mul", x, 3.0, name="a"), name="fill")
    y = s.op("Add", fill, -60_000.0, name="add")
    seen = {"mask": 1.0, "a_out": 50_000.0, "fill_out": 50_000.0, "add_out": 60_100.0}
    assert not holds(s, fill, **seen)
    assert not holds(s, y, **seen)


def test_without_observations_nothing_is_a_mask() -> None:
    s = Sketch()
    assert not holds(s, s.op("Mul", s.input("mask", [4]), -65_504.0, name="fill"))


def fate_of(network, *infinite, own=None):
    names = [TensorName(f"{name}_out") for name in infinite]
    return fates(network.graph, names, own or {node_name(n) for n in network.all_nodes()})


def test_readers_behind_data_movement_and_casts_are_named_by_what_computes() -> None:
    s = Sketch()
    large = s.op("Exp", s.input("x", [1, 4]), name="large")
    moved = s.op("Transpose", large, name="moved")
    inserted = s.op("Cast", moved, name="inserted", to=1)
    network = s.network(s.op("Sin", inserted, name="sine"))
    own = {NodeName(n) for n in ("large", "moved", "sine")}
    found = fate_of(network, "large", "moved", "inserted", own=own)
    (end,) = next(iter(found.values())).ends
    found = fates(network.graph, list(found), own, [end])
    assert all(list(fate.harmful) == ["sine"] for fate in found.values())


def test_what_an_output_gives_out_is_not_harmless() -> None:
    s = Sketch()
    network = s.network(s.op("Exp", s.input("x", [1, 4]), name="large"))
    (fate,) = fate_of(network, "large").values()
    assert not fate.is_harmless


def test_a_shape_reads_no_values() -> None:
    s = Sketch()
    large = s.op("Exp", s.input("x", [1, 4]), name="large")
    (fate,) = fate_of(s.network(s.op("Shape", large, name="shape")), "large").values()
    assert fate.is_harmless
    assert not fate.ends


def test_what_hands_on_to_a_wrong_end_is_harmful() -> None:
    s = Sketch()
    large = s.op("Exp", s.input("x", [1, 4]), name="large")
    more = s.op("Add", large, f32(1.0), name="more")
    network = s.network(s.op("Tanh", more, name="gate"))
    found = fate_of(network, "large", "more")
    assert all(fate.is_harmless for fate in found.values())
    (end,) = found[TensorName("more_out")].ends
    own = {node_name(n) for n in network.all_nodes()}
    wrong = fates(network.graph, list(found), own, [end])
    assert [list(fate.harmful) for fate in wrong.values()] == [["more"], ["gate"]]


def test_products_of_an_end_are_found_through_what_reads_nothing_else() -> None:
    s = Sketch()
    large = s.op("Mul", s.input("x", [1, 4]), f32(1e6), name="large")
    inverse = s.op("Sqrt", s.op("Reciprocal", large, name="inverse"), name="root")
    inserted = s.op("Cast", s.op("Transpose", inverse, name="moved"), name="inserted", to=1)
    s.op("Mul", s.op("Add", inserted, f32(3e4), name="sum"), f32(2.0), name="other")
    network = s.network(s.op("Mul", inserted, f32(3e4), name="last"), "other_out")
    (end,) = next(iter(fate_of(network, "large").values())).ends
    assert [node.name for node in products_of(end)] == ["last"]


def test_a_reader_in_a_body_is_a_reader_like_others() -> None:
    for last in ("Tanh", "Sqrt"):
        s = Sketch()
        large = s.op("Exp", s.input("x", [2, 2]), name="large")
        then = graph("then", [helper.make_node(last, [large], ["t"], "inner")], (), [("t", MATRIX)])
        other = graph("other", [helper.make_node("Neg", ["x"], ["e"])], (), [("e", MATRIX)])
        branches = {"then_branch": then, "else_branch": other}
        flag = s.input("flag", [], BOOL)
        s.nodes.append(helper.make_node("If", [flag], ["y"], "choose", **branches))
        (fate,) = fate_of(s.network("y"), "large").values()
        assert [end.node.name for end in fate.ends] == ["inner"]


def test_what_a_branch_gives_out_is_read_by_what_reads_its_if() -> None:
    for last in ("Tanh", "Sqrt"):
        s = Sketch()
        s.input("x", [2, 2])
        large = [helper.make_node("Exp", ["x"], ["large_out"], "large")]
        then = graph("then", large, (), [("large_out", MATRIX)])
        other = graph("other", [helper.make_node("Neg", ["x"], ["e"])], (), [("e", MATRIX)])
        branches = {"then_branch": then, "else_branch": other}
        flag = s.input("flag", [], BOOL)
        s.nodes.append(helper.make_node("If", [flag], ["choose_out"], "choose", **branches))
        network = s.network(s.op(last, "choose_out", name="last"))
        found = fate_of(network, "large", "choose", own={"large", "choose", "last"})
        assert [[e.node.name for e in fate.ends] for fate in found.values()] == [["last"]] * 2


def test_what_a_loop_carries_is_read_by_its_next_run() -> None:
    """Nothing reads the last of the state; what was infinite before it the body has read."""
    s = Sketch()
    x = s.input("x", [2, 2])
    step = [
        helper.make_node("Add", ["sum", x], ["next"], "add"),
        helper.make_node("Tanh", ["next"], ["row"], "bounded"),
        helper.make_node("Identity", ["go"], ["on"], "on"),
    ]
    taken, given = [("i", STEP), ("go", GO), ("sum", MATRIX)], [("on", GO), ("next", MATRIX)]
    body = graph("body", step, taken, [*given, ("row", MATRIX)])
    trips = s.constant(np.array(3), "trips")
    s.nodes.append(helper.make_node("Loop", [trips, "", x], ["sum_out", "y"], "loop", body=body))
    network = s.network("y")
    (fate,) = fate_of(network, "sum").values()
    assert list(fate.harmful) == ["loop"]
    assert TensorName("sum_out") in observable(network.model)
