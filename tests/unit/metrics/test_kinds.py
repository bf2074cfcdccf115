"""Which looks an output has, and what they go by."""

from typing import Any, get_args

import numpy as np
import pytest
from numpy.typing import NDArray

from halfwise.metrics import BUILT_IN
from halfwise.metrics.evidence import METRIC_OF
from halfwise.metrics.kinds import looked_at, recognise
from halfwise.records import Kind
from tests.unit.metrics.looked import (
    DIRECTIONS,
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


def test_every_kind_has_a_built_in_metric() -> None:
    assert set(METRIC_OF) == set(get_args(Kind))
    assert set(METRIC_OF.values()) < set(BUILT_IN)


def test_one_sample_is_enough_against() -> None:
    assert shown("y", DISC, 2 + DISC) is None


def test_the_first_samples_are_looked_at_and_no_more() -> None:
    samples, other = [{"y": DISC}] * 8, {"y": 2 + DISC}
    assert recognise([*samples, other], {})
    assert not recognise([*samples[:7], other], {})
    assert [looked_at({"y": np.zeros(1 << n)}, 99) for n in (19, 21, 23)] == [8, 2, 1]
    assert recognise([], {}) == ()


def test_nothing_is_said_of_weights_nan_and_constants() -> None:
    scores = softmax(normal(2, 5))
    for outputs in ({"attention": scores}, {"y": scores * np.nan}, {"y": np.full((2, 5), 0.2)}):
        assert recognise([outputs], {}) == ()


def test_boxes_come_first_and_take_their_outputs() -> None:
    corners = np.cumsum(RNG.random((9, 4)) + 1, axis=1)
    outputs = {"mask": DISC, "scores": RNG.random(9), "boxes": corners}
    first, second = recognise([outputs], IMAGE)
    assert (first.kind, first.outputs) == ("boxes", ("boxes", "scores"))
    assert (second.kind, second.outputs) == ("mask", ("mask",))


@pytest.mark.parametrize(
    ("name", "array", "kind"),
    [
        ("y", softmax(normal(2, 5)), "class-scores"),
        ("y", np.eye(5, dtype=np.float32)[[0, 1, 2, 3, 4, 0]], "class-scores"),
        ("y", np.eye(5, dtype=np.float32), None),  # or what states turn into
        ("y", np.eye(2, dtype=np.float32), None),
        ("y", np.log(softmax(normal(2, 5))), None),  # too few to be told from anything
        ("y", np.log(softmax(normal(2, 50))), "class-scores"),
        ("logits", normal(2, 37), "class-scores"),
        ("y", normal(2, 1000), "class-scores"),
        ("y", normal(1, 136), None),  # 68 landmarks
        ("scores", RNG.random((1, 37)), None),  # several may hold at once
        ("y", normal(1, 512), None),
        ("gate_weights", softmax(normal(2, 5)), None),
        ("tokens", np.arange(12).reshape(1, 12), "tokens"),
        ("indices", np.arange(12).reshape(1, 12), None),
        ("logits", normal(1, 9, 40), "tokens"),
        ("probabilities", normal(1, 9, 40), None),
        ("y", softmax(normal(1, 9, 40)), "tokens"),
        ("y", normal(1, 9, 40), None),
        ("y", normal(3, 64) / 8, None),
        ("y", unit_rows(3, 64), "embedding"),
        ("y", unit_rows(3, 4), None),  # quaternions
        ("sentence_embedding", normal(3, 64), "embedding"),
        ("last_hidden_state", normal(1, 9, 64), "embedding"),
    ],
)
def test_what_shows_a_kind(name: str, array: NDArray[Any], kind: str | None) -> None:
    assert shown(name, array, array) == kind


def test_scores_of_anchors_beside_boxes_are_no_tokens() -> None:
    scores = softmax(normal(1, 50, 21))
    alone, anchors = (
        recognise([{"conf": scores, **beside}], IMAGE) for beside in ({}, {"loc": normal(1, 50, 4)})
    )
    assert [one.kind for one in alone] == ["tokens"]
    assert not anchors


def test_a_thousand_classes_are_of_images() -> None:
    assert shown("y", normal(2, 1000), inputs={"ids": (2, 9)}) is None


@pytest.mark.parametrize("name", ["hidden_out", "hidden"])
def test_an_output_of_an_inputs_shape_may_be_a_state(name: str) -> None:
    array = normal(2, 1, 128)
    assert shown(name, array, 2 * array, inputs={"x": array.shape}) is None


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
def test_map_kinds_what_shows_a_kind(name: str, array: NDArray[Any], kind: str | None) -> None:
    assert shown(name, array, array) == kind


def test_two_images_of_one_size_show_a_flow() -> None:
    assert shown("y", 8 * normal(1, 2, 16, 16), inputs=PAIR) == "flow"


def test_two_values_of_the_inputs_own_shape_may_be_a_page() -> None:
    assert shown("y", DISC, inputs={"page": DISC.shape}) is None


def test_the_size_of_the_image_is_needed_where_nothing_else_shows_it() -> None:
    for array in (PICTURE, 6 * REGIONS, REGIONS.argmax(axis=1)):
        assert shown("y", array, inputs={}) is None


def walk(correlation: float) -> NDArray[np.float32]:
    """Return two rows of probabilities whose neighbours correlate."""
    rows = normal(2, 4000)
    for i in range(1, rows.shape[1]):
        fresh = np.sqrt(1 - correlation**2) * rows[:, i]
        rows[:, i] = correlation * rows[:, i - 1] + fresh
    return softmax(0.1 * rows)


def levels(inside: int, *, low: float = 0.0, high: float = 1.0) -> NDArray[np.float32]:
    """Return a map of which 1,000 pixels have risen, and so many to `high`; 64 × 64."""
    values = np.full(64 * 64, low)
    values[:1000], values[:inside] = 0.5, high
    return values.reshape(1, 1, 64, 64).astype(np.float32)


def stripes(borders: int) -> NDArray[np.int64]:
    return (np.arange(64) * (borders + 1) // 64)[None, :, None] + np.zeros((1, 64, 64), int)


def shifts(correlation: float) -> NDArray[np.float32]:
    across, other = normal(2, 64, 64)
    down = np.sqrt(1 - correlation**2) * other + correlation * across
    return np.stack([across, down])[None]


def rough(correlation: float) -> NDArray[np.float32]:
    """Return a picture whose neighbouring pixels correlate so, of blocks and noise."""
    share = correlation / (7 / 8)
    blocks = np.kron(RNG.random((1, 3, 8, 8)), np.ones((8, 8))) - 0.5
    noise = RNG.random((1, 3, 64, 64)) - 0.5
    mixed = 0.5 + 0.7 * (share**0.5 * blocks + (1 - share) ** 0.5 * noise)
    return np.asarray(mixed, np.float32)


def bins(count: int) -> NDArray[np.float32]:
    return np.repeat(DISC[..., 32:33, :], count, axis=2) * (np.arange(count) < 40)[:, None]


@pytest.mark.parametrize(
    ("kind", "one", "other"),
    [
        ("class-scores", np.log(softmax(normal(2, 48))), np.log(softmax(normal(2, 96)))),
        ("class-scores", np.log(softmax(normal(2, 10))), np.log(softmax(normal(2, 9)))),
        ("class-scores", walk(0.75), walk(0.85)),
        ("embedding", unit_rows(3, 16), unit_rows(3, 15)),
        ("mask", levels(550), levels(450)),
        ("mask", levels(1000, low=0.08), levels(1000, low=0.12)),
        ("mask", levels(1000, high=0.95), levels(1000, high=0.85)),
        ("mask", bins(66), bins(65)),
        ("segmentation", stripes(10), stripes(15)),
        ("segmentation", 150 * stripes(6), 200 * stripes(6)),
        ("segmentation", 1.15 * REGIONS - 1, 0.85 * REGIONS - 1),
        ("image", rough(0.56), rough(0.44)),
        ("image", 0.6 * PICTURE - 0.08, 0.6 * PICTURE - 0.12),
        ("image", 0.6 * PICTURE + 0.48, 0.6 * PICTURE + 0.52),
        ("image", 0.52 * PICTURE, 0.48 * PICTURE),
    ],
)
def test_it_is_of_a_kind_just_within_the_limit(kind, one, other) -> None:
    assert shown("y", one) == kind
    assert shown("y", other) is None


def test_a_map_has_eight_pixels_to_each_side() -> None:
    kinds = [shown("y", stripes(3)[..., :n], inputs={"x": (1, 3, 64, n)}) for n in (8, 7)]
    assert kinds == ["segmentation", None]


def test_shifts_do_not_oppose_each_other() -> None:
    assert shown("y", shifts(-0.43), inputs=PAIR) == "flow"
    assert shown("y", shifts(-0.57), inputs=PAIR) is None
