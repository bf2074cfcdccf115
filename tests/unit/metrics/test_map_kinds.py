"""Masks, segmentations, flow, images and heat maps: what shows them, and what is none."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.unit.metrics.looked import (
    DIRECTIONS,
    DISC,
    PAIR,
    PEAK,
    PICTURE,
    REGIONS,
    RNG,
    normal,
    shown,
    softmax,
)


@pytest.mark.parametrize(
    ("name", "array", "kind"),
    [
        ("y", DISC, "mask"),
        ("y", 0.98 * DISC + 0.01, "mask"),
        ("alpha", DISC, None),
        ("y", DISC[..., 10:50:8, 10:50:8], None),
        ("y", PEAK, None),
        ("y", RNG.random((1, 1, 64, 64)), None),
        ("flow", 8 * normal(1, 2, 16, 16), "flow"),
        ("y", 8 * normal(1, 2, 16, 16), None),
        ("flow", 8 * normal(1, 16, 16, 2), None),
        ("y", softmax(6 * REGIONS, axis=1), "segmentation"),
        ("y", 6 * REGIONS, "segmentation"),
        ("y", 6 * REGIONS[..., ::2, ::2], None),  # not of the image's size
        ("segmentation", 6 * REGIONS[..., ::2, ::2], "segmentation"),
        ("y", 0.1 * REGIONS, None),
        ("y", normal(1, 7, 64, 64), None),
        ("y", REGIONS.argmax(axis=1), "segmentation"),
        ("y", RNG.integers(0, 7, (1, 64, 64)), None),
        ("heatmap", np.repeat(PEAK, 3, axis=1), "heat-map"),
        ("y", np.repeat(PEAK, 3, axis=1)[..., ::2, ::2], None),
        ("y", PICTURE, "image"),
        ("y", 255 * PICTURE, "image"),
        ("y", 2 * PICTURE - 1, "image"),
        ("y", 7 * PICTURE, None),
        ("y", np.moveaxis(PICTURE, 1, -1), "image"),
        ("y", np.kron(PICTURE, np.ones((1, 1, 2, 2))), "image"),
        ("y", np.kron(PICTURE[:, :1], np.ones((1, 1, 4, 4))), "image"),
        ("y", PICTURE[..., :-1], None),
        ("y", RNG.random((1, 3, 64, 64)), None),
        ("normals", PICTURE, None),
        ("y", DIRECTIONS, None),
        ("y", np.repeat(DISC, 3, axis=1), None),
    ],
)
def test_what_shows_a_kind(name: str, array: NDArray[Any], kind: str | None) -> None:
    assert shown(name, array, array) == kind


def test_two_images_of_one_size_show_a_flow() -> None:
    assert shown("y", 8 * normal(1, 2, 16, 16), inputs=PAIR) == "flow"


def test_two_values_of_the_inputs_own_shape_may_be_a_page() -> None:
    assert shown("y", DISC, inputs={"page": DISC.shape}) is None


def test_the_size_of_the_image_is_needed_where_nothing_else_shows_it() -> None:
    for array in (PICTURE, 6 * REGIONS, REGIONS.argmax(axis=1)):
        assert shown("y", array, inputs={}) is None
