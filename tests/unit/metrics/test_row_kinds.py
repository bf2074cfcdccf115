"""Class scores, tokens and embeddings: what shows them, and what is none."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from halfwise.metrics.kinds import looks
from tests.unit.metrics.looked import IMAGE, RNG, TONE, normal, shown, softmax, unit_rows


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
        looks([{"conf": scores, **beside}], IMAGE) for beside in ({}, {"loc": normal(1, 50, 4)})
    )
    assert [look.shown for look in alone] == [True]
    assert not any(look.shown for look in anchors)


def test_a_thousand_classes_are_of_images() -> None:
    assert shown("y", normal(2, 1000), inputs={"ids": (2, 9)}) is None


@pytest.mark.parametrize(
    ("name", "array", "kind"),
    [
        ("mel", RNG.random((1, 80, 33)), "spectrum"),
        ("y", RNG.random((1, 80, 33)), None),
        ("enhanced", TONE[None, None, :500], "waveform"),
        ("y", TONE[None], None),
        ("audio", 1 + TONE[None], None),
    ],
)
def test_what_shows_sound(name: str, array: NDArray[Any], kind: str | None) -> None:
    assert shown(name, array, array) == kind


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
