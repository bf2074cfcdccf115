"""What rules go by."""

from typing import get_args

import numpy as np
import pytest

from halfwise.metrics.evidence import (
    Seen,
    begins,
    image_sizes,
    is_against,
    is_weights,
    sums_to_one,
    without_trailing_ones,
)
from halfwise.records import Kind


def test_images_are_told_by_their_channels_in_either_order() -> None:
    inputs = {"a": (1, 3, 32, 64), "b": (1, 48, 40, 1), "c": (1, 16, 8, 8), "d": (4, 9)}
    assert image_sizes(inputs) == [(32, 64), (48, 40)]


@pytest.mark.parametrize(
    ("shape", "cut"), [((1, 5, 1, 1), (1, 5)), ((1, 1), (1, 1)), ((2, 3, 4), (2, 3, 4)), ((), ())]
)
def test_trailing_axes_of_one_are_cut_beyond_two(shape, cut) -> None:
    assert without_trailing_ones(np.zeros(shape)).shape == cut


def test_rows_sum_to_one_within_what_rounding_does() -> None:
    assert sums_to_one(np.array([[0.5, 0.503]]), 1)
    assert not sums_to_one(np.array([[0.5, 0.505]]), 1)
    assert not sums_to_one(np.array([[1.5, -0.5]]), 1)
    assert not sums_to_one(np.array([[np.nan, 1.0]]), 1)


@pytest.mark.parametrize(
    ("name", "shape", "state"),
    [("Conv_Cache", (1, 4), True), ("conv_cache", (1, 5), False), ("y", (1, 4), False)],
)
def test_a_state_is_named_so_and_goes_into_the_next_call(name, shape, state) -> None:
    seen = Seen(name, [np.zeros(shape)], discrete=False, inputs={"x": (1, 4)}, beside={})
    assert seen.is_state is state


@pytest.mark.parametrize(
    ("name", "called"),
    [
        ("mel_spec", True),
        ("logSpectrum", True),
        ("STFT_spec0", True),
        ("SPEC", True),
        ("perspective", False),
        ("inspection.out", False),
    ],
)
def test_a_name_is_looked_at_word_by_word(name, called) -> None:
    seen = Seen(name, [np.zeros(2)], discrete=False, inputs={}, beside={})
    assert seen.called("spec") is called
    assert seen.mentions("spec")


@pytest.mark.parametrize(
    ("kind", "name", "against"),
    [
        ("class-scores", "facelandmarks", True),  # long words are found anywhere
        ("class-scores", "composed", False),  # short ones begin a word
        ("class-scores", "kpsOut", True),
        ("class-scores", "landmark_probs", False),
        ("class-scores", "scores", False),
        ("embedding", "scores", True),
        ("embedding", "joint_embedding", False),
        ("boxes", "bbox_regression", True),
        ("boxes", "box_coordinates", False),
        ("mask", "probability_map", False),
        ("flow", "flower", True),
        ("waveform", "audio_features", True),
    ],
)
def test_a_name_speaks_against_a_kind(kind: Kind, name: str, against: bool) -> None:
    assert is_against(kind, name) is against


@pytest.mark.parametrize("kind", get_args(Kind))
def test_no_kind_is_spoken_against_by_its_own_name(kind: Kind) -> None:
    assert not is_against(kind, {"waveform": "audio"}.get(kind, kind))
    assert not is_against(kind, "output")


def test_weights_and_words() -> None:
    assert is_weights("crossAttention.1")
    assert not is_weights("output")
    assert begins("pred_boxes", "box")
    assert not begins("inbox", "box")
