"""Samples are shown where inputs are images, and nothing is taken for one that is none."""

import base64
import io
from dataclasses import replace
from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image

from halfwise.case import Samples
from halfwise.evidence import TYPICAL, WORST, evidence_of, png, previews
from tests.unit.evidence.test_evidence import case_of, network
from tests.unit.reporting import runs

RANDOM = np.random.default_rng(0)
ROWS, COLUMNS = np.mgrid[0:40, 0:300] / 40
PHOTO = np.stack([np.sin(ROWS * k) + np.cos(COLUMNS + k) for k in (1, 2, 3)]).astype(np.float32)
SPEECH = np.sin(np.arange(4096) / 9).astype(np.float32) + RANDOM.normal(0, 0.1, 4096)


def case(make, count=12):
    """Held-out samples h0 to h11, and others for calibration."""
    found = case_of(network())
    heldout = Samples(tuple(f"h{i}" for i in range(count)), lambda i: {"x": make(i)})
    return replace(found, heldout=heldout, calibration=Samples(("c0",), lambda _: {"x": make(0)}))


def judged(count=12, **changed):
    excesses = (*map(float, range(count - 1)), inf)
    ids = tuple(f"h{i}" for i in range(count))
    return runs.verdict(samples=ids, excesses=excesses, **changed)


def test_the_worst_come_first_then_some_of_median_error() -> None:
    found = previews(case(lambda i: PHOTO[None] * (1 + i)), judged())
    assert [one.sample for one in found] == ["h11", "h10", "h9", "h8", "h6", "h5"]
    assert [one.why for one in found] == ["worst"] * WORST + ["typical"] * TYPICAL
    assert found[0].shape == (1, 3, 40, 300)
    image = Image.open(io.BytesIO(base64.b64decode(found[0].png)))
    assert (image.mode, image.size) == ("RGB", (100, 13))
    assert np.ptp(np.asarray(image)) == 255


def test_of_few_samples_none_is_shown_twice() -> None:
    found = previews(case(lambda _: PHOTO, 5), judged(5))
    assert [one.why for one in found] == ["worst"] * 4 + ["typical"]
    assert len({one.sample for one in found}) == 5


@pytest.mark.parametrize(
    ("array", "shown"),
    [
        (PHOTO, True),
        (PHOTO[None], True),
        (PHOTO.transpose(1, 2, 0), True),
        ((PHOTO[None, :1] * 20 + 50).astype(np.uint8), True),
        (SPEECH, False),
        (PHOTO[:1], False),
        (PHOTO[:, :7], False),
        (np.repeat(PHOTO, 4, 0)[None], False),
        (RANDOM.normal(size=(1, 3, 64, 64)), False),
        (RANDOM.normal(size=(1, 2048)), False),
        (np.arange(2048)[None], False),
        (np.zeros((1, 2048), np.float32), False),
        (np.full((1, 3, 32, 32), np.nan), False),
        (np.zeros((0, 3, 32, 32), np.float32), False),
        (np.float32(3), False),
    ],
)
def test_what_is_shown(array, shown) -> None:
    assert bool(previews(case(lambda i: array * (1 + i)), judged())) is shown


@pytest.mark.parametrize("asked", [True, False])
def test_samples_are_left_out_where_nobody_is_to_see_them(asked) -> None:
    made = replace(case(lambda _: PHOTO), previews=asked)
    assert bool(evidence_of(made, runs.run(verdict=judged())).previews) is asked


IMAGES = st.tuples(st.integers(1, 9), st.integers(1, 9), st.sampled_from([1, 3])).flatmap(
    lambda shape: arrays(np.uint8, shape)
)


@given(IMAGES)
def test_others_read_what_was_written(image) -> None:
    read = np.asarray(Image.open(io.BytesIO(png(image))))
    np.testing.assert_array_equal(read.reshape(image.shape), image)


def test_two_channels_are_no_image() -> None:
    with pytest.raises(KeyError):
        png(np.zeros((2, 2, 2), np.uint8))
