"""PNG files are those that others read."""

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image

from halfwise.evidence.png import png

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
