import numpy as np
import pytest

from halfwise.tools.preprocessing.registration import (
    Placement,
    align,
    grey,
    pairs,
    register,
    sampled,
    sharpness,
)
from halfwise.tools.preprocessing.resizing import METHODS, resize
from tests.unit.tools.preprocessing.conftest import planar, resized


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


def by(kernel, convention, antialias=False):
    return next(
        m
        for m in METHODS
        if (m.kernel, m.convention, m.antialias) == (kernel, convention, antialias)
    )


def made(photos, method, side=96):
    return [resize(planar(photo), (side, side), method) for photo in photos]


def test_pixel_on_pixel(planes):
    for other in (planes, [image * 3 - 7 for image in planes], [image[::-1] for image in planes]):
        found = align(planes, other)
        assert (found.kind, found.exact) == ("same", True)
    rounded = [np.round(image + 0.3) for image in planes]
    assert align(planes, rounded).exact


def test_a_crop_by_whole_pixels(planes):
    a = [image[:, 4:84, 6:86] for image in planes]
    b = [image[:, 2:82, 11:91] for image in planes]
    found = align(a, b)
    assert (found.kind, found.exact, found.shift) == ("crop", True, (-2, 5))
    left, right = pairs(found, a, b)
    assert np.array_equal(left[0], right[0])
    assert left[0].shape == (3, 78, 75)


def test_a_crop_out_of_a_larger_image(planes):
    found = align(planes, [image[:, 8:88, 8:88] for image in planes])
    assert (found.kind, found.shift) == ("crop", (8, 8))


def test_conventions_of_pixel_centres(photos):
    plain = made(photos, by("bilinear", "half-pixel"))
    moved = align(plain, made(photos, by("bilinear", "asymmetric")))
    assert moved.kind == "half-pixel"
    stretched = align(plain, made(photos, by("bilinear", "align-corners")))
    assert stretched.kind == "align-corners"


def test_another_kernel_is_in_the_same_place(photos):
    found = align(made(photos, METHODS[0]), made(photos, by("bilinear", "half-pixel")))
    assert (found.kind, found.exact) == ("same", False)


def test_another_size_and_another_part(photos):
    a = made(photos, METHODS[0])
    assert align(a, made(photos, METHODS[0], 120)).kind == "size"
    part = [planar(resized(photo[:, : photo.shape[1] // 2], 96)) for photo in photos]
    assert align(a, part).kind == "fit"


def test_other_images(planes):
    noise = np.random.default_rng(1).normal(size=(3, 3, 96, 96))
    assert align(planes, list(noise)).kind == "unlike"


def test_a_place_is_common_where_all_samples_agree(planes, photos):
    a = made(photos, by("bilinear", "half-pixel"))
    assert align(planes, planes).common is not None
    part = [planar(resized(p[:, : p.shape[1] // (i + 2)], 96)) for i, p in enumerate(photos)]
    assert align(a, part).common is None


def test_sharpness(planes):
    assert sharpness(planes, planes) == pytest.approx(1)
    blurred = [(i + np.roll(i, 1, 1) + np.roll(i, 1, 2)) / 3 for i in planes]
    assert sharpness(planes, blurred) < 0.5
    assert sharpness([np.ones((1, 9, 9))], planes) == np.inf


def test_grey(planes):
    assert grey(planes[0]).mean() == pytest.approx(0, abs=1e-12)
    assert not grey(np.ones((3, 9, 9))).any()
