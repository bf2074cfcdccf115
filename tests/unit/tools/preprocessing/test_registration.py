import numpy as np
import pytest

from halfwise.tools.preprocessing.registration import Placement, register, sampled
from halfwise.tools.preprocessing.resampling import METHODS, resize


def test_a_shift_by_parts_of_a_pixel(photos):
    source = photos[0].mean(axis=2)
    place = Placement((1.0, 1.0), (3.25, 7.5), 1.0)
    found = register(source, sampled(source, (180, 280), place)[0])
    assert found.start == pytest.approx(place.start, abs=0.02)
    assert found.step == pytest.approx(place.step, abs=5e-4)
    assert found.correlation > 0.999


def test_an_image_that_was_resized_and_cropped(photos):
    source = photos[0].mean(axis=2)
    small = resize(source, (100, 120), METHODS[0])[10:90, 15:105]
    found = register(source, small)
    assert found.step == pytest.approx((2.0, 2.5), abs=5e-3)
    # Pixel (10, 15) covers source pixels from 20 and 37.5 on.
    assert found.start == pytest.approx((20.5, 38.25), abs=0.15)


def test_brightness_does_not_matter(photos):
    source = photos[0].mean(axis=2)
    image = sampled(source, (150, 200), Placement((1.0, 1.0), (20.0, 40.0), 1.0))[0]
    assert register(source, image * 0.01 - 3).start == pytest.approx((20, 40), abs=0.02)


def test_what_lies_outside_is_told():
    taken, inside = sampled(np.arange(16.0).reshape(4, 4), (4, 4), Placement((1, 1), (2, 0), 1))
    assert inside[:, 0].tolist() == [True, True, False, False]
    assert taken[1].tolist() == [12, 13, 14, 15]


def test_other_images_do_not_correlate(photos):
    found = register(photos[0].mean(axis=2), photos[1].mean(axis=2))
    assert found.correlation < 0.7
