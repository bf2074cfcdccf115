"""Waveforms and spectra: what shows them, and what is none."""

from typing import Any

import pytest
from numpy.typing import NDArray

from tests.unit.metrics.looked import RNG, TONE, normal, shown


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
def test_what_shows_a_kind(name: str, array: NDArray[Any], kind: str | None) -> None:
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
