import numpy as np
import pytest

from halfwise.tools.preprocessing.layout import layout_of


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
