"""What shows that an output is of a kind, and what looks like it and is none."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from halfwise.metrics.evidence import Inputs
from halfwise.metrics.kinds import looks

RNG = np.random.default_rng(11)
IMAGE: Inputs = {"image": (1, 3, 64, 64)}
PAIR: Inputs = {"left": (1, 3, 64, 64), "right": (1, 3, 64, 64)}
DISC = (np.hypot(*np.mgrid[-32:32, -32:32]) < 20).astype(np.float32)[None, None]
PEAK = np.exp(-(np.hypot(*np.mgrid[-32:32, -32:32]) ** 2) / 30).astype(np.float32)[None, None]


def normal(*shape: int) -> NDArray[np.float32]:
    return RNG.standard_normal(shape).astype(np.float32)


def softmax(values: NDArray[Any], axis: int = -1) -> NDArray[np.float32]:
    powers = np.exp(values - values.max(axis=axis, keepdims=True))
    return np.asarray(powers / powers.sum(axis=axis, keepdims=True), np.float32)


def unit_rows(*shape: int) -> NDArray[np.float32]:
    rows = normal(*shape)
    return np.asarray(rows / np.linalg.norm(rows, axis=-1, keepdims=True))


ROW, COLUMN = np.mgrid[:64, :64] / 64
REGIONS = np.stack([(ROW * 7).astype(int) == kind for kind in range(7)])[None].astype(np.float32)
PICTURE = np.stack([ROW, COLUMN, np.abs(np.sin(5 * ROW + 3 * COLUMN))])[None].astype(np.float32)
DIRECTIONS = np.stack([ROW, COLUMN, np.ones_like(ROW)])[None]
DIRECTIONS /= np.linalg.norm(DIRECTIONS, axis=1, keepdims=True)
TONE = np.sin(np.arange(8000) / 7).astype(np.float32)


def shown(name: str, *samples: NDArray[Any], inputs: Inputs = IMAGE) -> str | None:
    found = looks([{name: array} for array in samples], inputs)
    return found[0].kind if found and found[0].shown else None


@pytest.mark.parametrize(
    ("name", "array", "kind"),
    [
        ("y", softmax(normal(2, 5)), "class-scores"),
        ("y", np.log(softmax(normal(2, 5))), None),  # too few to be told from anything
        ("y", np.log(softmax(normal(2, 50))), "class-scores"),
        ("logits", normal(2, 37), "class-scores"),
        ("y", normal(2, 1000), "class-scores"),
        ("y", normal(1, 136), None),  # 68 landmarks
        ("scores", RNG.random((1, 37)), None),  # several may hold at once
        ("y", normal(1, 512), None),
        ("gate_weights", softmax(normal(2, 5)), None),
        ("y", DISC, "mask"),
        ("y", 0.98 * DISC + 0.01, "mask"),
        ("alpha", DISC, None),
        ("y", PEAK, None),
        ("y", RNG.random((1, 1, 64, 64)), None),
        ("flow", 8 * normal(1, 2, 16, 16), "flow"),
        ("y", 8 * normal(1, 2, 16, 16), None),
        ("flow", 8 * normal(1, 16, 16, 2), None),
        ("tokens", np.arange(12).reshape(1, 12), "tokens"),
        ("indices", np.arange(12).reshape(1, 12), None),
        ("logits", normal(1, 9, 40), "tokens"),
        ("y", softmax(normal(1, 9, 40)), "tokens"),
        ("y", normal(1, 9, 40), None),
        ("y", normal(3, 64) / 8, None),
        ("y", unit_rows(3, 64), "embedding"),
        ("y", unit_rows(3, 4), None),  # quaternions
        ("sentence_embedding", normal(3, 64), "embedding"),
        ("last_hidden_state", normal(1, 9, 64), "embedding"),
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
        ("mel", RNG.random((1, 80, 33)), "spectrum"),
        ("y", RNG.random((1, 80, 33)), None),
        ("enhanced", TONE[None, None, :500], "waveform"),
        ("y", TONE[None], None),
        ("audio", 1 + TONE[None], None),
    ],
)
def test_what_shows_a_kind(name: str, array: NDArray[Any], kind: str | None) -> None:
    assert shown(name, array, array) == kind


def test_two_images_of_one_size_show_a_flow() -> None:
    assert shown("y", 8 * normal(1, 2, 16, 16), inputs=PAIR) == "flow"


def test_two_values_of_the_inputs_own_shape_may_be_a_page() -> None:
    assert shown("y", DISC, inputs={"page": DISC.shape}) is None


def test_one_sample_is_enough_against() -> None:
    assert shown("y", DISC, 2 + DISC) is None


@pytest.mark.parametrize(
    ("name", "array", "kind"),
    [
        ("y", TONE[None], "waveform"),
        ("y", TONE[None, :, None], "waveform"),
        ("state_out", TONE[None], None),
        ("enh", normal(1, 257, 5, 2), "spectrum"),
        ("conv_cache", normal(1, 257, 5, 2), None),
        ("hidden_out", normal(2, 1, 128), None),
    ],
)
def test_inputs_of_the_same_shape_show_sound_but_no_state(
    name: str, array: NDArray[Any], kind: str | None
) -> None:
    assert shown(name, array, 2 * array, inputs={"x": array.shape}) == kind


def test_scores_of_anchors_beside_boxes_are_no_tokens() -> None:
    scores = softmax(normal(1, 50, 21))
    alone, anchors = (
        looks([{"conf": scores, **beside}], IMAGE) for beside in ({}, {"loc": normal(1, 50, 4)})
    )
    assert [look.shown for look in alone] == [True]
    assert not any(look.shown for look in anchors)


def test_the_size_of_the_image_is_needed_where_nothing_else_shows_it() -> None:
    for array in (PICTURE, 6 * REGIONS, REGIONS.argmax(axis=1)):
        assert shown("y", array, inputs={}) is None
