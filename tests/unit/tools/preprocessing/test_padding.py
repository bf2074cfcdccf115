import numpy as np

from halfwise.tools.preprocessing.padding import Box, boxes


def framed(image, top, left, value, size=128):
    frame = np.full((3, size, size), float(value))
    frame[:, top : top + image.shape[1], left : left + image.shape[2]] = image
    return frame


def test_the_image_in_its_frame_is_found(planes):
    found = boxes([framed(planes[0], 16, 0, 114), framed(planes[1], 0, 32, 114)])
    assert [(b.top, b.left, b.rows, b.columns) for b in found] == [(16, 0, 96, 96), (0, 32, 96, 96)]
    assert found[0].value == (114.0, 114.0, 114.0)
    assert np.array_equal(found[0].cut(framed(planes[0], 16, 0, 114)), planes[0])


def test_no_frame(planes):
    assert boxes(planes) == [Box(0, 0, 96, 96)] * 3


def test_borders_of_two_values_are_those_of_photos(planes):
    found = boxes([framed(planes[0], 16, 0, 0), framed(planes[1], 16, 0, 9)])
    assert found == [Box(0, 0, 128, 128)] * 2


def test_a_constant_image_has_no_frame():
    assert boxes([np.ones((1, 9, 9))]) == [Box(0, 0, 9, 9)]
