import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis.extra.numpy import array_shapes, arrays

from halfwise.backends.tensorrt.described import Description, EngineTensor
from halfwise.backends.tensorrt.feeds import packed, unpacked
from halfwise.errors import CaseError
from halfwise.records import TensorName

DTYPES = ("float32", "float16", "bfloat16", "int8", "int32", "int64", "bool", "uint8")


def engine(**dtypes):
    tensors = tuple(EngineTensor(TensorName(n), True, d, (), False, ()) for n, d in dtypes.items())
    return Description(tensors, 1, 1, 0)


@given(arrays(np.float32, array_shapes(min_dims=0, min_side=0)))
def test_arrays_of_every_type_and_shape_come_back(array):
    with np.errstate(all="ignore"):
        feeds = {name: array.astype(np.dtype(name)) for name in DTYPES}
    entries, data = packed(feeds, engine(**{name: name for name in DTYPES}))
    found = unpacked(entries, data)
    assert found.keys() == feeds.keys()
    for name, expected in feeds.items():
        assert found[name].dtype == expected.dtype
        assert found[name].shape == expected.shape
        assert found[name].tobytes() == expected.tobytes()


def test_arrays_that_are_not_contiguous():
    array = np.arange(12, dtype=np.float32).reshape(3, 4).T
    entries, data = packed({"x": array}, engine(x="float32"))
    np.testing.assert_array_equal(unpacked(entries, data)["x"], array)


@pytest.mark.parametrize(
    ("array", "dtype"),
    [
        (np.array([-5, 2**31 - 1], np.int64), "int32"),
        (np.array([0, 1], np.int64), "bool"),
        (np.array([0.5, np.nan, np.inf], np.float32), "float16"),
        (np.array([0.5, -3.0]), "float32"),
        (np.array([0.5, np.nan], np.float32), "bfloat16"),
    ],
)
def test_conversion_that_changes_no_value(array, dtype):
    entries, data = packed({"x": array}, engine(x=dtype))
    assert entries == [{"name": "x", "dtype": dtype, "shape": [len(array)]}]
    np.testing.assert_array_equal(unpacked(entries, data)["x"].astype(array.dtype), array)


@pytest.mark.parametrize(
    ("array", "dtype"),
    [
        (np.array([2**31], np.int64), "int32"),
        (np.array([2], np.int64), "bool"),
        (np.array([-1], np.int64), "uint8"),
        (np.array([1e6], np.float32), "float16"),
        (np.array([0.1], np.float32), "float16"),
        (np.array([1.001], np.float32), "bfloat16"),
        (np.array([0.1], ml_dtypes.bfloat16), "int32"),
    ],
)
def test_conversion_that_would(array, dtype):
    with pytest.raises(CaseError, match=f"Input x is {array.dtype.name} with values that {dtype}"):
        packed({"x": array}, engine(x=dtype))


def test_inputs_that_the_engine_lacks_are_sent_as_they_are():
    entries, _ = packed({"y": np.array([1.5])}, engine(x="float32"))
    assert entries[0]["dtype"] == "float64"
