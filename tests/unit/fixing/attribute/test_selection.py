import numpy as np
import pytest

from halfwise.records import InnerObservation
from tests.unit.fixing.attribute.observing import guards, inner, only
from tests.unit.graph.sketch import Sketch, f32

X = {"x": np.ones((2, 4), np.float32)}


def choice() -> tuple[Sketch, str]:
    s = Sketch()
    scores = s.op("Sigmoid", s.input("x", [2, 4]), name="scores")
    return s, s.op("ArgMax", s.op("Transpose", scores), axis=-1, name="choice")


def margin(value: float) -> tuple[InnerObservation, ...]:
    return (inner("choice", "ArgMax", "margin", value),)


def test_a_close_choice_names_the_scores_too() -> None:
    guard = only(guards(*choice(), X, inside=margin(0.25)), "margin")
    assert (guard.node, guard.nodes) == ("choice", ("scores", "choice"))
    assert 0.5 <= guard.severity < 1.0
    assert "differ by 0.25 of FP16's spacing there" in guard.message


@pytest.mark.parametrize("value", [1.0, 50.0])
def test_a_clear_choice_is_none(value) -> None:
    assert guards(*choice(), X, inside=margin(value)) == ()


def test_a_tie_means_less_than_a_close_choice() -> None:
    tie, close = (guards(*choice(), X, inside=margin(v))[0].severity for v in (0.0, 0.9))
    assert tie < close


def test_a_suppression_names_what_makes_its_scores() -> None:
    s = Sketch()
    boxes = s.op("Relu", s.input("b", [1, 3, 4]), name="boxes")
    scores = s.op("Sigmoid", s.input("x", [1, 1, 3]), name="scores")
    y = s.op("NonMaxSuppression", boxes, scores, [3], f32([0.5]), name="choice")
    inputs = {"b": np.ones((1, 3, 4), np.float32), "x": np.ones((1, 1, 3), np.float32)}
    inside = (inner("choice", "NonMaxSuppression", "margin", 0.25),)
    guard = only(guards(s, y, inputs, inside=inside), "margin")
    assert (guard.node, guard.tensor, guard.nodes) == ("choice", "scores_out", ("scores",))
