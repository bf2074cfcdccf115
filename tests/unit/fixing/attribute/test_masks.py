import numpy as np
import pytest

from tests.unit.fixing.attribute.observing import guards, only
from tests.unit.graph.sketch import Sketch, f32

X = {"x": np.ones((2, 4), np.float32)}


def masked(constant: float, *, written: bool = False) -> tuple[Sketch, str]:
    s = Sketch()
    lowest = s.constant(f32([[0, 0, 0, constant]]), "mask")
    scores = s.op("Mul", s.input("x", [2, 4]), 0.5, name="scores")
    total = s.op("Add", scores, lowest, name="add")
    if not written:
        return s, s.op("Softmax", total, name="softmax")
    exp = s.op(
        "Exp",
        s.op("Sub", total, s.op("ReduceMax", total, axes=[-1], name="max"), name="sub"),
        name="exp",
    )
    return s, s.op("Div", exp, s.op("ReduceSum", exp, [-1], name="sum"), name="div")


@pytest.mark.parametrize("constant", [-65504.0, -3.4e38, -20000.0])
def test_a_mask_at_the_edge_of_the_range_replaces_guards_that_only_repeat_it(constant) -> None:
    (guard,) = guards(*masked(constant), X)
    assert (guard.kind, guard.node, guard.tensor) == ("mask", "add", "mask")
    assert guard.nodes == ("add", "softmax")
    assert guard.severity < 1
    assert "-1e4" in guard.fix


@pytest.mark.parametrize("constant", [-10000.0, float("-inf")])
def test_the_usual_masks_are_fine(constant) -> None:
    assert guards(*masked(constant), X) == ()


def test_a_written_out_softmax_counts() -> None:
    guard = only(guards(*masked(-1e9, written=True), X), "mask")
    assert guard.nodes == ("add", "max", "sub", "exp")


def test_a_mask_computed_from_an_input() -> None:
    s = Sketch()
    inverted = s.op("Sub", 1.0, s.input("keep", [2, 4]), name="invert")
    bias = s.op("Mul", inverted, s.constant(-3.4e38, "lowest"), name="bias")
    y = s.op("Softmax", s.op("Add", s.input("x", [2, 4]), bias, name="add"), name="softmax")
    keep = f32([[1, 1, 1, 0], [1, 1, 0, 0]])
    (guard,) = guards(s, y, {**X, "keep": keep})
    assert (guard.node, guard.nodes) == ("add", ("bias", "add", "softmax"))


def test_a_selected_constant_ranks_below_an_added_one() -> None:
    s = Sketch()
    lowest = s.constant(-1e9, "lowest")
    chosen = s.op("Where", s.input("keep", [2, 4], 9), s.input("x", [2, 4]), lowest)
    y = s.op("Softmax", chosen, name="softmax")
    (guard,) = guards(s, y, {**X, "keep": np.ones((2, 4), bool) & (X["x"] > 2)})
    assert (guard.kind, guard.node, guard.nodes) == ("mask", "softmax", ("softmax",))
    assert guard.severity < only(guards(*masked(-1e9), X), "mask").severity


def test_a_large_constant_that_reaches_no_softmax_is_no_mask() -> None:
    s = Sketch()
    y = s.op("Add", s.input("x", [2, 4]), s.constant(-30000.0, "offset"), name="add")
    assert not [g for g in guards(s, y, X) if g.kind == "mask"]
