"""Outputs that look like a kind and are something else: a metric that fits by chance is no help."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from halfwise.metrics.evidence import Inputs
from tests.unit.metrics.looked import (
    DISC,
    IMAGE,
    PAIR,
    PEAK,
    PICTURE,
    REGIONS,
    RNG,
    normal,
    shown,
    softmax,
    unit_rows,
)

WORDS: Inputs = {"ids": (1, 40), "mask": (1, 40)}
WAVE: Inputs = {"wave": (1, 8000)}
BINS = np.exp(-((np.arange(60) - RNG.uniform(10, 50, (9, 1))) ** 2) / 50)
CURVES = np.cumsum(normal(4, 1000), axis=1)
POINTS = np.cumsum(normal(4, 500, 2), axis=1).reshape(4, 1000)
CHANGE = 4 * DISC - 2
TWO_CLASSES = np.concatenate([CHANGE, -CHANGE], axis=1) + 0.1 * normal(1, 2, 64, 64)
SHIFTS = np.concatenate([9 * DISC - 4, 5 * PEAK - 3], axis=1)


@pytest.mark.parametrize(
    ("name", "array", "inputs"),
    [
        ("landmarks", normal(2, 1000), IMAGE),
        ("keypoints_xy", normal(2, 1000), IMAGE),
        ("jointAngles", normal(2, 1000), IMAGE),
        ("depth", normal(2, 1000), IMAGE),
        ("vertices", normal(2, 1000), IMAGE),
        ("image_features", normal(2, 1000), IMAGE),
        ("y", CURVES, IMAGE),
        ("y", POINTS, IMAGE),
        ("allocation", softmax(normal(9, 50)), WORDS),
        ("mixture_pi", softmax(normal(9, 5)), WORDS),
        ("y", BINS / BINS.sum(axis=1, keepdims=True), IMAGE),
        ("y", softmax(normal(30, 30)), IMAGE),  # attention, or what states turn into
        ("y", softmax(normal(1, 9, 40)), WORDS),  # attention to 40 words
        ("y", softmax(normal(1, 8, 9, 40)), WORDS),
        ("y", normal(9, 10), WORDS),
        ("attribute_logits", 1 / (1 + np.exp(-normal(9, 40))), IMAGE),
        ("y", 1 / (1 + np.exp(-normal(9, 40))), IMAGE),
        ("pose", normal(2, 17, 3), IMAGE),
        ("scores", normal(3, 64), WORDS),
        ("scores", unit_rows(3, 64), WORDS),
        ("sequence_lengths", np.arange(4)[None], WORDS),
        ("track_ids", np.arange(4)[None], IMAGE),
        ("anomaly_map", DISC, IMAGE),
        ("confidence_map", DISC, IMAGE),
        ("depth", DISC, IMAGE),
        ("mask", np.kron(DISC, np.ones((1, 1, 1, 4)))[..., :33, :], WAVE),
        ("mask", np.pad(DISC, ((0, 0), (0, 0), (0, 65), (0, 0))), {"x": (1, 1, 480, 640)}),
        ("spec_mask", RNG.random((1, 1, 129, 60)), WAVE),
        ("depth_volume", softmax(6 * REGIONS, axis=1), IMAGE),
        ("change_logits", TWO_CLASSES, PAIR),
        ("y", TWO_CLASSES, PAIR),
        ("flow_logits", TWO_CLASSES, PAIR),
        ("y", np.concatenate([30 * PEAK, DISC], axis=1), PAIR),  # disparity, and how sure it is
        ("router", softmax(normal(9, 8)), WORDS),
        ("instances", REGIONS.argmax(axis=1), IMAGE),
        ("flower", 8 * normal(1, 2, 16, 16), IMAGE),
        ("points", PICTURE, IMAGE),
        ("xyz", PICTURE, IMAGE),
        ("class_scores", PICTURE, IMAGE),
    ],
)
def test_what_is_something_else_is_not_taken_for_a_kind(
    name: str, array: NDArray[Any], inputs: Inputs
) -> None:
    assert shown(name, array, array, inputs=inputs) is None


@pytest.mark.parametrize(
    ("name", "array", "inputs", "kind"),
    [
        ("log_probs", np.log(softmax(normal(2, 50))), WORDS, "class-scores"),
        ("landmark_logits", normal(2, 1000), IMAGE, "class-scores"),  # which sight it is
        ("joint_embedding", unit_rows(3, 64), WORDS, "embedding"),
        ("y", SHIFTS, PAIR, "flow"),
        ("y", DISC, IMAGE, "mask"),
        ("y", np.kron(DISC, np.ones((1, 1, 2, 2)))[..., :65, :65], IMAGE, None),
    ],
)
def test_what_is_of_a_kind_is_still_told(
    name: str, array: NDArray[Any], inputs: Inputs, kind: str | None
) -> None:
    assert shown(name, array, array, inputs=inputs) == kind
