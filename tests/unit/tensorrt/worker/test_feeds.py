import numpy as np
import pytest
from hypothesis import given
from hypothesis.extra.numpy import array_shapes, arrays

from halfwise.errors import CaseError
from halfwise.records import EngineTensor, TensorName
from halfwise.tensorrt.worker.described import Description
from halfwise.tensorrt.worker.feeds import packed, unpacked

DTYPES = ("float32", "float16", "bfloat16", "int8", "int32", "int64", "bool", "uint8")


def engine(rank=1, **dtypes):
    shape = (-1,) * rank
    tensors = tuple(
        EngineTensor(
            name=TensorName(n), is_input=True, dtype=d, shape=shape, shape_tensor=False, limits=()
        )
        for n, d in dtypes.items()
    )
    return Description(tensors, 1, 1, 0)


@given(arrays(np.float32, array_shapes(min_dims=0, min_side=0)))
def test_arrays_of_every_type_and_shape_come_back(array):
    with np.errstate(all="ignore"):
        feeds = {name: array.astype(np.dtype(name)) for name in DTYPES}
    entries, data = packed(feeds, engine(array.ndim, **{name: name for name in DTYPES}))
    found = unpacked(entries, data)
    assert found.keys() == feeds.keys()
    for name, expected in feeds.items():
        assert found[name].dtype == expected.dtype
        assert found[name].shape == expected.shape
        assert found[name].tobytes() == expected.tobytes()


def test_arrays_that_are_not_contiguous():
    array = np.arange(12, dtype=np.float32).reshape(3, 4).T
    entries, data = packed({"x": array}, engine(2, x="float32"))
    np.testing.assert_array_equal(unpacked(entries, data)["x"], array)


def test_types_become_the_engines():
    feeds = {"n": np.array([-5, 2**31 - 1]), "x": np.array([0.1, np.nan], np.float32)}
    entries, data = packed(feeds, engine(n="int32", x="float16"))
    assert [entry["dtype"] for entry in entries] == ["int32", "float16"]
    found = unpacked(entries, data)
    assert found["n"].tolist() == [-5, 2**31 - 1]
    np.testing.assert_array_equal(found["x"], feeds["x"].astype(np.float16))


def test_values_and_names_that_the_engine_does_not_take():
    with pytest.raises(CaseError, match="input 'n' holds 2147483648, which int32 cannot hold"):
        packed({"n": np.array([2**31])}, engine(n="int32"))
    with pytest.raises(CaseError, match="The engine's inputs are 'x', the model's 'y'"):
        packed({"y": np.array([1.5])}, engine(x="float32"))
