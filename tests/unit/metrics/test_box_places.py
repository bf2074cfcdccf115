"""Which four numbers in order are boxes, and which are quantiles, bounds or lines."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from halfwise.metrics import recognise
from halfwise.metrics.box_places import Places
from halfwise.metrics.evidence import Inputs
from tests.unit.metrics.looked import IMAGE, RNG, ROW, normal, softmax

SCORES = RNG.uniform(0.1, 0.9, 20)
QUANTILES = np.cumsum(RNG.random((20, 4)), axis=1)
BOUNDS = np.sort(RNG.random((20, 2, 2)), axis=1).reshape(20, 4)
CORNERS = np.sort(RNG.uniform(0, 60, (20, 2, 2)), axis=1).reshape(20, 4)
SAME_SIZE = np.tile(RNG.uniform(0, 40, (20, 2)), 2) + np.array([0, 0, 8, 8])
LINES = np.where(np.arange(4) % 2, 30 * ROW[0, :20, None], CORNERS)
FINAL = np.column_stack([QUANTILES, SCORES, np.zeros(20)])


def taken(outputs: dict[str, NDArray[Any]], inputs: Inputs = IMAGE) -> tuple[str, ...]:
    return tuple(one.kind for one in recognise([outputs, outputs], inputs))


@pytest.mark.parametrize(
    ("outputs", "inputs"),
    [
        ({"quantiles": QUANTILES, "confidence": SCORES}, IMAGE),
        ({"y": QUANTILES, "confidence": SCORES}, IMAGE),
        ({"y": 20 * QUANTILES, "confidence": SCORES}, IMAGE),
        ({"bounds": BOUNDS, "confidence": SCORES}, IMAGE),  # shares of anything
        ({"y": BOUNDS, "confidence": SCORES}, {"x": (20, 32)}),
        ({"y": CORNERS, "confidence": SCORES}, {"x": (20, 32)}),  # no image to lie in
        ({"y": 100 * CORNERS, "confidence": SCORES}, IMAGE),
        ({"y": SAME_SIZE, "confidence": SCORES}, IMAGE),
        ({"y": LINES, "confidence": SCORES}, IMAGE),  # no area
        ({"depth": CORNERS, "confidence": SCORES}, IMAGE),
        ({"keypoints": CORNERS, "confidence": SCORES}, IMAGE),
        ({"box_offsets": CORNERS, "confidence": SCORES}, {"x": (20, 32)}),
        ({"y": FINAL[None]}, IMAGE),
        ({"y": np.column_stack([BOUNDS, SCORES, np.zeros(20)])[None]}, {"x": (1, 32)}),
        ({"y": QUANTILES[None], "p": softmax(normal(1, 20, 5))}, {"x": (1, 20, 8)}),
        ({"poses": normal(20, 7)}, IMAGE),
        ({"trajectory": np.cumsum(RNG.random((1, 20, 6)), axis=1)}, IMAGE),
    ],
)
def test_four_numbers_in_order_are_not_enough_for_boxes(
    outputs: dict[str, NDArray[Any]], inputs: Inputs
) -> None:
    assert "boxes" not in taken(outputs, inputs)


@pytest.mark.parametrize(
    ("outputs", "inputs"),
    [
        ({"boxes": BOUNDS, "scores": SCORES}, {"x": (1, 32)}),
        ({"6568": CORNERS, "6572": SCORES}, IMAGE),
        ({"6568": CORNERS, "6572": SCORES}, {"image": (3, 64, 64)}),
        ({"6568": CORNERS, "6572": SCORES}, {"image": (64, 64, 3)}),
        ({"y": np.column_stack([BOUNDS, SCORES, np.arange(20) % 3])[None]}, IMAGE),
        ({"y": CORNERS[None], "p": RNG.random((1, 20, 5))}, IMAGE),
    ],
)
def test_names_and_places_in_the_image_show_boxes(
    outputs: dict[str, NDArray[Any]], inputs: Inputs
) -> None:
    assert taken(outputs, inputs)[:1] == ("boxes",)


def test_one_box_needs_its_name() -> None:
    one = np.array([[4.0, 9, 30, 20]])
    assert Places("boxes", {}).shown(one, fewest=8) == ("corners-in-order", "by-name")
    assert Places("detach_1", IMAGE).shown(one, fewest=8) == ()
    assert Places("y", IMAGE).shown(one, fewest=1) == ("corners-in-order", "within-image")
    assert Places("boxes", {}).shown(one[:0], fewest=1) == ()
