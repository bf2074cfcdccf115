import numpy as np
import pytest

from halfwise.graph.weights import ALIGNMENT
from halfwise.inputs.fitting import aligned


@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "bool"])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3, 5), (0, 4)])
def test_what_is_not_aligned_is_copied(dtype, shape):
    count = int(np.prod(shape))
    space = np.arange(count + 64).astype(dtype)
    size = space.itemsize
    start = -space.ctypes.data % ALIGNMENT // size
    for shift in (0, 1, 8):
        given = space[start + shift : start + shift + count].reshape(shape)
        found = aligned(given)
        assert not found.size or found.ctypes.data % ALIGNMENT == 0
        assert (found is given) is (not count or shift * size % ALIGNMENT == 0)
        assert found.dtype == given.dtype
        np.testing.assert_array_equal(found, given)


def test_text_stays():
    text = np.array(["a", "b"], object)
    assert aligned(text) is text
