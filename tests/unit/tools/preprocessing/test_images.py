import numpy as np
import pytest

from halfwise.tools.preprocessing.images import TURNS, Box, Turn, boxes, layout_of, match, thumbnail


def laid_out(sample):
    return layout_of(sample)


@pytest.mark.parametrize(
    ("shape", "name"),
    [
        ((1, 3, 20, 30), "NCHW"),
        ((3, 20, 30), "CHW"),
        ((1, 20, 30, 3), "NHWC"),
        ((20, 30, 3), "HWC"),
        ((1, 1, 8, 8), "NCHW"),
        ((20, 30), "HW"),
    ],
)
def test_axes_are_told_by_their_lengths(shape, name):
    layout = laid_out(np.zeros(shape, np.float32))
    assert str(layout) == name
    channels = 3 if 3 in shape else 1
    assert layout.image(np.zeros(shape)).shape[0] == channels


@pytest.mark.parametrize("shape", [(7,), (4, 5), (2, 3, 20, 30), (1, 128, 16, 16), (5, 20, 30)])
def test_what_is_no_image(shape):
    assert laid_out(np.zeros(shape, np.float32)) is None


def test_text_is_no_image():
    assert laid_out(np.full((3, 20, 30), "a")) is None


@pytest.mark.parametrize("order", ["CHW", "HWC"])
def test_a_buffer_that_was_reshaped_is_read_as_what_it_is(planes, order):
    image = planes[0]
    if order == "CHW":
        wrong = np.ascontiguousarray(image.transpose(1, 2, 0)).reshape(image.shape)
    else:
        wrong = image.reshape(*image.shape[1:], 3)
    layout = laid_out(wrong)
    assert layout.reshaped
    assert "reshaped instead of transposed" in str(layout)
    assert np.array_equal(layout.image(wrong), image)


def test_a_photo_is_not_taken_for_reshaped(planes):
    for image in planes:
        assert not laid_out(image).reshaped
        assert not laid_out(image.transpose(1, 2, 0)).reshaped


@pytest.mark.parametrize("turn", TURNS, ids=str)
def test_every_turn_is_found(planes, turn):
    a = [thumbnail(image) for image in planes]
    b = [thumbnail(turn(image)) for image in planes]
    assert match(a, b) == (turn, (0, 1, 2))


def test_order_and_turn_together(planes):
    a = [thumbnail(image) for image in planes]
    b = [thumbnail(planes[i][:, ::-1]) for i in (2, 0, 1)]
    assert match(a, b) == (Turn(rows=True), (2, 0, 1))


def test_equal_samples_stay_where_they_are(planes):
    same = [thumbnail(planes[0])] * 3
    assert match(same, same) == (Turn(), (0, 1, 2))


def test_a_thumbnail_does_not_depend_on_scale_or_channel_order(planes):
    one = thumbnail(planes[0])
    other = thumbnail(planes[0][::-1] / np.array([51, 58, 2.0])[:, None, None] - 1)
    assert one.shape == (24, 24)
    assert float((one * other).sum()) == pytest.approx(1, abs=1e-6)


def test_a_constant_image():
    assert not thumbnail(np.ones((3, 30, 30))).any()


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
