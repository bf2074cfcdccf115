"""What counts as the largest value of an output, and what as its error."""

from math import inf

import numpy as np
import pytest

from halfwise.fixing.repair.difference import error_of, lost, size_of
from tests.unit.graph.sketch import f32

LOGITS = [1.0, -2.0, 0.5, 3.0]


@pytest.mark.parametrize("mask", [-1e9, float(np.finfo(np.float32).min)])
def test_masks_hide_no_error_beside_them(mask: float) -> None:
    before = f32([*LOGITS, mask, mask])
    assert size_of(before) == 3
    wrong = f32([*np.multiply(LOGITS, 1.01), mask, mask])
    assert error_of(before, wrong, 0.0) == pytest.approx(0.01, rel=1e-3)
    wrong = f32([*LOGITS, mask, mask * 0.5])
    assert error_of(before, wrong, 0.0) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("before", "after", "error", "more"),
    [
        ([1, inf], [1, inf], 0, 0),
        ([1, inf], [1, -inf], inf, 0),
        ([1, inf], [1, 5], inf, 0),
        ([1, np.nan], [1, 5], 0, 0),
        ([1, 5], [1, np.nan], 0, 1),
        ([1, inf], [1, np.nan], inf, 1),
        ([1, np.nan], [1, np.nan], 0, 0),
        ([0, 0], [0, 1], 16, 0),
        ([], [], 0, 0),
    ],
)
def test_what_is_not_finite(
    before: list[float], after: list[float], error: float, more: int
) -> None:
    assert error_of(f32(before), f32(after), 1 / 16) == error
    assert lost(f32(before), f32(after)) == more


def test_what_is_no_float_counts_by_elements_and_shapes_are_equal() -> None:
    assert error_of(np.arange(4), np.array([0, 1, 2, 0]), 0.0) == 0.25
    assert error_of(f32([1]), f32([1, 2]), 0.0) == inf
