import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from halfwise.errors import CaseError
from halfwise.formats import BF16, FP16
from halfwise.tensorrt.fitting import (
    Port,
    check_names,
    dtype_of,
    fit_inputs,
    fit_outputs,
    model_ports,
)
from tests.unit.graph.sketch import Sketch

INT32 = np.iinfo(np.int32)
shapes = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)


def port(dtype, shape=None, name="x"):
    return Port(name, np.dtype(dtype), shape)


def there(array, dtype):
    return fit_inputs({"x": array}, [port(dtype)], "s0")["x"]


def back(array, dtype):
    return fit_outputs({"x": array}, [port(dtype)], "s0")["x"]


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *[("FLOAT", np.float32), ("DataType.HALF", np.float16), ("fp16", np.float16)],
        *[("BF16", ml_dtypes.bfloat16), ("BOOL", np.bool_), ("INT64", np.int64)],
        *[("UINT8", np.uint8), ("INT8", np.int8), ("float64", np.float64)],
    ],
)
def test_types_by_any_of_their_names(name, dtype):
    assert dtype_of(name) == np.dtype(dtype)


@pytest.mark.parametrize("name", ["FP8", "INT4", "", "object"])
def test_types_that_no_array_has(name):
    with pytest.raises(CaseError, match="not supported here"):
        dtype_of(name)


@given(hnp.arrays(np.int64, shapes, elements=st.integers(INT32.min, INT32.max)))
def test_int64_passes_through_int32_without_loss(array):
    narrow = there(array, np.int32)
    assert narrow.dtype == np.int32
    np.testing.assert_array_equal(back(narrow, np.int64), array, strict=True)


@given(
    hnp.arrays(np.int64, shapes.filter(lambda s: 0 not in s)),
    st.one_of(st.integers(max_value=INT32.min - 1), st.integers(min_value=INT32.max + 1)),
    st.data(),
)
def test_int64_beyond_int32_is_one_clear_error(array, value, data):
    value = max(min(value, 2**63 - 1), -(2**63))
    array = np.array(np.clip(array, INT32.min, INT32.max))
    place = data.draw(st.integers(0, array.size - 1))
    array.reshape(-1)[place] = value
    with pytest.raises(CaseError) as error:
        there(array, np.int32)
    assert f"Sample s0: input 'x' holds {value}, which int32 cannot hold." in str(error.value)


@given(hnp.arrays(np.float32, shapes, elements=st.floats(width=32)))
@pytest.mark.parametrize("fmt", [FP16, BF16])
def test_floats_are_rounded_and_stay_non_finite(fmt, array):
    low = there(array, fmt.dtype)
    assert low.dtype == fmt.dtype
    np.testing.assert_array_equal(back(low, np.float32), fmt.round(array), strict=True)


@given(hnp.arrays(np.float64, shapes, elements=st.floats(width=32)))
def test_float64_passes_through_float32(array):
    np.testing.assert_array_equal(back(there(array, np.float32), np.float64), array, strict=True)


@given(hnp.arrays(np.bool_, shapes), st.sampled_from([np.uint8, np.int32]))
def test_booleans_are_zero_and_one(array, dtype):
    np.testing.assert_array_equal(back(there(array, dtype), np.bool_), array, strict=True)


@given(hnp.arrays(np.uint8, shapes))
def test_equal_types_are_not_copied(array):
    assert there(array, np.uint8) is array


def test_arrays_are_contiguous_and_scalars_stay_scalars():
    assert there(np.ones((3, 4), np.float32).T, np.float32).flags.c_contiguous
    assert there(np.array(3, np.int64), np.int32).shape == ()


@pytest.mark.parametrize(
    ("value", "dtype"),
    [(2, np.bool_), (-1, np.uint8), (256, np.uint8), (128, np.int8), (-1, np.uint64)],
)
def test_other_integers_that_do_not_fit(value, dtype):
    with pytest.raises(CaseError, match=f"holds {value}, which"):
        there(np.array([0, value]), dtype)


@pytest.mark.parametrize(("dtype", "other"), [(np.float32, np.int8), (np.int64, np.float16)])
def test_floats_and_integers_do_not_become_each_other(dtype, other):
    with pytest.raises(CaseError, match=f"has type {np.dtype(dtype).name}"):
        there(np.ones(2, dtype), other)
    with pytest.raises(CaseError, match="the engine's output 'x' has type"):
        back(np.ones(2, dtype), other)


@pytest.mark.parametrize("found", [["a"], ["a", "b", "c"], ["a", "c"], []])
def test_other_names_are_told_with_both_lists(found):
    with pytest.raises(CaseError) as error:
        check_names(found, ["a", "b"], "inputs")
    assert ", ".join(map(repr, found)) in str(error.value)
    assert "the model's 'a', 'b'" in str(error.value)
    check_names(["b", "a"], ["a", "b"], "inputs")


def test_names_of_inputs_and_outputs_are_checked():
    with pytest.raises(CaseError, match=r"inputs are 'y', the model's 'x'"):
        fit_inputs({"x": np.ones(1)}, [port(np.float32, name="y")], "s0")
    with pytest.raises(CaseError, match=r"outputs are 'x', the model's 'x', 'y'"):
        fit_outputs({"x": np.ones(1)}, [port(float), port(float, name="y")], "s0")


def test_further_outputs_are_left_out():
    outputs = {"debug": np.ones(1), "x": np.zeros(1)}
    assert list(fit_outputs(outputs, [port(float)], "s0")) == ["x"]


@pytest.mark.parametrize("shape", [(2,), (2, 4), (2, 3, 1), ()])
def test_an_input_of_another_shape(shape):
    with pytest.raises(CaseError, match=r"the engine takes \?×3"):
        fit_inputs({"x": np.ones(shape)}, [port(float, (-1, 3))], "s0")


def test_outputs_of_another_size_are_for_the_verdict_but_not_of_another_rank():
    assert fit_outputs({"x": np.ones((2, 5))}, [port(float, (2, 3))], "s0")["x"].shape == (2, 5)
    with pytest.raises(CaseError, match="has rank 1, the model's 2"):
        fit_outputs({"x": np.ones(6)}, [port(float, (2, 3))], "s0")


def test_ports_of_a_model():
    sketch = Sketch()
    x = sketch.input("x", ["N", 3])
    network = sketch.network(sketch.op("Relu", x, name="relu"))
    assert model_ports(network.graph.inputs) == (port(np.float32, (-1, 3)),)
