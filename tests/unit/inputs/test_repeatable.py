import numpy as np
import pytest

from halfwise.errors import CaseError
from halfwise.inputs.repeatable import repeatable


def test_what_is_alike_each_time_is_given():
    samples = repeatable(lambda i: {"x": np.full(3, i, np.float32)}, ["a", "b"], "prep.py:f")
    assert samples.ids == ("a", "b")
    for _ in range(2):
        assert [float(s["x"][0]) for s in samples] == [0, 1]


def test_the_first_is_tried_at_once():
    draw = np.random.default_rng(0)
    with pytest.raises(CaseError, match=r"prep.py:f made something else of a than before"):
        repeatable(lambda _: {"x": draw.random(3, np.float32)}, ["a"], "prep.py:f")


@pytest.mark.parametrize(
    "later",
    [
        {"x": np.array([0, -0.0], np.float32)},
        {"x": np.array([0, 0], np.float64)},
        {"y": np.zeros(2, np.float32)},
        {"x": np.zeros((1, 2), np.float32)},
    ],
)
def test_each_is_compared_to_the_bit(later):
    made = {0: {"x": np.ones(2, np.float32)}, 1: {"x": np.zeros(2, np.float32)}}
    samples = repeatable(made.__getitem__, ["a", "b"], "prep.py:f")
    assert samples[1] is made[1]
    made[1] = later
    with pytest.raises(CaseError, match="something else of b"):
        samples[1]
