import numpy as np
import pytest

from halfwise.tools.preprocessing.photometry import photometry


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
