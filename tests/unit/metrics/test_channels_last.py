"""Maps with their channels last are what they are with their channels first."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from halfwise.metrics.targets import class_axis
from halfwise.metrics.task import classes_in, mean_iou, pixels_in
from tests.unit.metrics.looked import DISC, REGIONS, RNG, normal, shown, softmax


def last(array: NDArray[Any]) -> NDArray[Any]:
    return np.moveaxis(array, 1, -1)


@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        ((1, 21, 65, 65), 1),
        ((1, 65, 65, 21), 3),
        ((1, 150, 128, 128), 1),
        ((1, 128, 128, 150), 1),
        ((1, 64, 64, 32), 1),
        ((1, 64, 64, 31), 3),
        ((1, 2, 1, 1), 1),
    ],
)
def test_the_axis_of_the_classes_is_told_by_the_sides(shape, axis) -> None:
    assert class_axis(shape) == axis


@pytest.mark.parametrize(
    ("name", "array", "kind"),
    [
        ("y", softmax(6 * REGIONS, axis=1), "segmentation"),
        ("y", 6 * REGIONS, "segmentation"),
        ("y", 6 * REGIONS[..., ::2, ::2], None),
        ("segmentation", 6 * REGIONS[..., ::2, ::2], "segmentation"),
        ("y", 0.1 * REGIONS, None),
        ("y", normal(1, 7, 64, 64), None),
        ("y", REGIONS.argmax(axis=1)[:, None], "segmentation"),
        ("y", RNG.integers(0, 7, (1, 1, 64, 64)), None),
        ("y", DISC, "mask"),
    ],
)
def test_a_kind_is_told_either_way(name: str, array: NDArray[Any], kind: str | None) -> None:
    assert shown(name, array, array) == kind
    assert shown(name, last(array), last(array)) == kind


def test_overlaps_are_the_same_either_way() -> None:
    truth = softmax(6 * REGIONS, axis=1)
    guess = np.roll(truth, 3, axis=2)
    first = mean_iou([{"y": truth}], [{"y": guess}], None)
    assert mean_iou([{"y": last(truth)}], [{"y": last(guess)}], None) == first < 1
    labels = [REGIONS.argmax(axis=1)]
    assert mean_iou([{"y": last(truth)}], [{"y": last(truth)}], labels) == 1
    assert mean_iou([{"y": last(truth)}], [{"y": last(guess)}], labels) == first
    assert mean_iou([{"y": last(truth)}], [{"y": truth}], None) == 0
    assert classes_in([{"y": last(truth)}]) == 7
    assert pixels_in([{"y": last(truth)}]) == 64 * 64
