from typing import Any

import numpy as np
import pytest

from halfwise.tools.preprocessing.photometry import (
    channel_difference,
    clipped,
    is_8_bit,
    is_half,
    is_half_of,
    limits,
    photometry,
    step_of,
)


def test_channels_gain_and_offset(planes):
    gain, offset = np.array([0.1, 0.2, 0.3])[:, None, None], np.array([1, 2, 3])[:, None, None]
    fit = photometry(planes, [image[[2, 0, 1]] * gain + offset for image in planes])
    assert fit.channels == (2, 0, 1)
    assert fit.gain == pytest.approx((0.1, 0.2, 0.3))
    assert fit.offset == pytest.approx((1, 2, 3))
    assert fit.misfit < 1e-9
    assert np.allclose(fit(planes[0]), planes[0][[2, 0, 1]] * gain + offset)


def test_what_is_cut_off_does_not_count(planes):
    fit = photometry(planes, [np.clip(image / 255, 0.2, 0.8) for image in planes])
    assert fit.gain == pytest.approx((1 / 255,) * 3, rel=1e-3)


def test_outliers_do_not_count(planes):
    spoiled = [image.copy() for image in planes]
    for image in spoiled:
        image[:, 40:50, 40:50] = 1000
    assert photometry(planes, spoiled).gain == pytest.approx((1, 1, 1), rel=1e-6)


def test_grey_images_keep_their_channels(planes):
    grey = [np.repeat(image[:1], 3, axis=0) for image in planes]
    assert photometry(grey, grey).channels == (0, 1, 2)


def test_a_constant_channel():
    fit = photometry([np.ones((1, 9, 9))], [np.full((1, 9, 9), 5.0)])
    assert (fit.gain, fit.offset) == ((1.0,), (4.0,))


LEVEL = np.full(3, 1 / 255)


def test_bytes_are_told_through_a_normalisation(planes):
    normed = [(np.round(image) / 255 - 0.4) / 0.2 for image in planes]
    assert is_8_bit(normed)
    assert is_8_bit([image.astype(np.float32).astype(np.float64) for image in normed])
    assert not is_8_bit([image + 0.3 * np.sin(image) for image in normed])
    assert not is_8_bit([np.ones((3, 9, 9))])


def test_fp16_is_told(planes):
    precise = (planes[0] / 255 - 0.4) / 0.2
    stored = precise.astype(np.float16).astype(np.float64)
    assert is_half([stored])
    assert not is_half([precise])
    assert not is_half([planes[0]])  # bytes are FP16 numbers anyway
    assert is_half_of(precise, stored)
    assert not is_half_of(stored, stored)
    assert not is_half_of(stored, precise)


def test_what_is_cut_off_is_counted(planes):
    scaled = [image / 255 for image in planes]
    cut = [np.clip(image, 0.2, 0.8) for image in scaled]
    beyond = sum(int(((x < 0.2 - 1 / 255) | (x > 0.8 + 1 / 255)).sum()) for x in scaled)
    assert clipped(scaled, cut, LEVEL) == beyond
    assert clipped(cut, scaled, LEVEL) == 0
    assert clipped(scaled, [image[::-1] for image in cut], LEVEL) == 0


def test_limits(planes):
    low, high = limits(planes)
    assert low.tolist() == [min(image[c].min() for image in planes) for c in range(3)]
    assert high.tolist() == [max(image[c].max() for image in planes) for c in range(3)]


def test_steps():
    whole = np.arange(200, dtype=np.float64)
    roots: Any = np.sqrt(whole)
    assert step_of(whole[20:140] * 0.5 + 3) == 0.5
    assert step_of(roots) == 0
    assert step_of(whole[:5]) == 0


def test_channels():
    assert "one is RGB, the other BGR" in channel_difference((2, 1, 0), 3).sentence
    assert "another order" in channel_difference((1, 2, 0), 3).sentence
    assert "1 channels where A has 3" in channel_difference((0,), 3).sentence
