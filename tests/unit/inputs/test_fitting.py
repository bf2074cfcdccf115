import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from halfwise.errors import CaseError
from halfwise.inputs.fitting import (
    InputSpec,
    aligned,
    as_arrays,
    as_one_sample,
    check_dtype,
    conversion,
    fit_sample,
    fit_values,
    format_inputs,
    match_names,
)


def spec(dtype=np.float32, shape=("n", 2), name="x"):
    return InputSpec(name, np.dtype(dtype), shape)


@pytest.mark.parametrize(
    ("stored", "wanted"),
    [
        ("float16", "float32"),
        ("float64", "float32"),
        (">f4", "float32"),
        ("uint8", "float32"),
        ("bool", "float32"),
        ("int32", "int64"),
        ("uint8", "int64"),
        ("bool", "int64"),
        ("int64", "int32"),
        ("U3", "O"),
        (ml_dtypes.bfloat16, "float32"),
    ],
)
def test_lossless_dtypes_are_accepted(stored, wanted):
    check_dtype(np.dtype(stored), spec(wanted), "f")


@pytest.mark.parametrize(
    ("stored", "wanted", "named"),
    [
        ("float32", "float16", "float32"),
        ("int32", "float32", "int32"),
        ("int64", "float32", "int64"),
        ("float32", "int64", "float32"),
        ("float32", "bool", "float32"),
        ("complex64", "float32", "complex64"),
        ("U3", "float32", "str"),
        ("float32", "O", "float32"),
        ("O", "float32", "Python objects"),
        ([("a", "f4")], "float32", "void"),
        ("V2", ml_dtypes.bfloat16, "void"),
    ],
)
def test_any_other_dtype_is_an_error_that_names_both(stored, wanted, named):
    with pytest.raises(CaseError) as caught:
        check_dtype(np.dtype(stored), spec(wanted), "data.npz")
    assert caught.value.message.startswith("data.npz: input 'x' has dtype " + named)
    assert f"expected {np.dtype(wanted).name}" in caught.value.message
    assert caught.value.hint


def test_equal_arrays_are_not_copied():
    array = aligned(np.ones((2, 2), np.float32))
    assert np.shares_memory(fit_values(array, spec(), "f"), array)


def test_zero_dimensional_arrays_stay_so():
    assert fit_values(np.array(3.0), spec(shape=()), "f").shape == ()


@given(hnp.arrays(np.float64, (3, 2), elements=st.floats(-3e38, 3e38)))
def test_float64_is_rounded_to_float32(array):
    fitted = fit_values(array, spec(), "f")
    assert fitted.dtype == np.float32
    np.testing.assert_array_equal(fitted, array.astype(np.float32))


def test_float64_beyond_float32_is_an_error():
    with pytest.raises(CaseError, match="float64 and holds -1e39; expected float32"):
        fit_values(np.array([[1.0, -1e39]]), spec(), "f")


def test_missing_float64_is_not_beyond_float32():
    trees = InputSpec("x", np.dtype(np.float32), None, missing=True)
    np.testing.assert_array_equal(fit_values(np.array([np.nan, 1.0]), trees, "f"), [np.nan, 1.0])


def test_int64_beyond_int32_is_an_error():
    assert fit_values(np.array([2**31 - 1]), spec(np.int32), "f").dtype == np.int32
    with pytest.raises(CaseError, match="int64 and holds 2147483648; expected int32"):
        fit_values(np.array([0, 2**31]), spec(np.int32), "f")


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16])
def test_nan_and_inf_are_errors_with_count_and_place(dtype):
    array = np.ones((2, 3), dtype)
    array[1, 0], array[1, 2] = np.nan, -np.inf
    with pytest.raises(CaseError, match=r"f: input 'x' holds 1 NaN and 1 inf, the first at \[1, 0"):
        fit_values(array, spec(), "f")


def test_text_inputs_take_text_only():
    fitted = fit_values(np.array([["a", "bc"]]), spec(object), "f")
    assert fitted.dtype == object
    with pytest.raises(CaseError, match="holds a float; expected text only"):
        fit_values(np.array([["a", 1.0]], dtype=object), spec(object), "f")


@pytest.mark.parametrize(
    ("stored", "wanted", "found"),
    [
        (np.float32, np.float32, None),
        (">f4", np.float32, None),
        (np.float64, np.float32, ("float64", "float32", "nearest")),
        (np.int64, np.int32, ("int64", "int32", "checked")),
        (np.uint8, np.float32, ("uint8", "float32", "lossless")),
    ],
)
def test_conversions_are_noted(stored, wanted, found):
    assert tuple(conversion(np.dtype(stored), spec(wanted)).values()) == (found or ())


def test_one_input_takes_any_name():
    array = np.zeros(1)
    assert match_names({"whatever": array}, [spec()], "f") == {"x": array}


def test_unknown_and_missing_names_are_errors_that_list_the_inputs():
    specs = [spec(name="a"), spec(name="b")]
    array = np.zeros(1)
    assert list(match_names({"b": array, "a": array}, specs, "f")) == ["a", "b"]
    with pytest.raises(
        CaseError, match="f holds 'c', which is not an input of the model; expected 'a', 'b'"
    ) as caught:
        match_names({"a": array, "b": array, "c": array}, specs, "f")
    assert "a (float32 n×2), b (float32 n×2)" in caught.value.hint
    with pytest.raises(CaseError, match="f holds only 'a'; expected 'a', 'b'"):
        match_names({"a": array}, specs, "f")
    with pytest.raises(CaseError, match="f holds no arrays; expected 'x'"):
        match_names({}, [spec()], "f")


def test_one_sample_may_lack_the_batch_axis():
    assert as_one_sample(np.zeros(2), spec(), "f").shape == (1, 2)
    assert as_one_sample(np.zeros(2), spec(shape=(1, 2)), "f").shape == (1, 2)
    assert as_one_sample(np.zeros((5, 2)), spec(), "f").shape == (5, 2)


@pytest.mark.parametrize("shape", [(2, 2, 2), ()])
def test_one_sample_of_another_rank_is_an_error(shape):
    with pytest.raises(CaseError, match=rf"has rank {len(shape)} .* expected one sample of rank 2"):
        as_one_sample(np.zeros(shape), spec(), "f")


def test_one_sample_without_a_fixed_batch_of_several_is_an_error():
    with pytest.raises(CaseError, match="rank 1"):
        as_one_sample(np.zeros(2), spec(shape=(4, 2)), "f")


def test_a_fixed_axis_of_another_length_is_an_error():
    with pytest.raises(CaseError, match="is 1×3, with axis 1 of length 3; expected n×2"):
        as_one_sample(np.zeros((1, 3)), spec(), "f")


def test_one_sample_for_a_batch_of_several_is_told_to_be_joined_with_others():
    with pytest.raises(CaseError) as raised:
        as_one_sample(np.zeros((1, 2)), spec(shape=(8, 2)), "f")
    assert raised.value.hint.startswith("The model takes batches of 8: concatenate 8 samples")
    with pytest.raises(CaseError) as raised:
        as_one_sample(np.zeros((1, 3)), spec(shape=(8, 2)), "f")
    assert "batches" not in raised.value.hint


def test_an_empty_input_is_an_error_unless_another_has_elements():
    specs = [spec(shape=("n", "m"), name="a"), spec(shape=("n", "m"), name="b")]
    none, one = np.zeros((1, 0), np.float32), np.zeros((1, 1), np.float32)
    assert fit_sample({"a": one, "b": none}, specs, "f")["b"].size == 0
    with pytest.raises(CaseError, match="f: the sample is empty"):
        fit_sample({"a": none, "b": none}, specs, "f")


def test_values_are_read_as_arrays_without_a_copy():
    array = np.zeros(3)
    arrays = as_arrays({"a": array, "b": [1, 2], "c": 3.0}, "f")
    assert arrays["a"] is array
    assert arrays["b"].shape == (2,)
    assert arrays["c"].shape == ()


def test_values_that_are_no_arrays_are_errors():
    with pytest.raises(CaseError, match="input 'a' is of type list, which is not an array"):
        as_arrays({"a": [[1], [1, 2]]}, "f")
    with pytest.raises(CaseError, match="found a key of type int"):
        as_arrays({3: np.zeros(1)}, "f")  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("shape", "dynamic"), [(("n", 3), True), ((None,), True), ((1, "n"), False), ((), False)]
)
def test_the_batch_is_dynamic_where_the_first_axis_is(shape, dynamic):
    spec = InputSpec("x", np.dtype(np.float32), shape)
    assert spec.batch_is_dynamic is dynamic


def test_inputs_are_listed_with_dtype_and_shape():
    specs = [InputSpec("x", np.dtype(np.float32), ("n", 3)), InputSpec("m", np.dtype(bool), ())]
    assert format_inputs(specs) == "x (float32 n×3), m (bool scalar)"


@pytest.mark.parametrize(("rows", "is_mapped"), [(8, False), (1 << 14, True)])
def test_small_arrays_do_not_hold_the_file_that_is_mapped(tmp_path, rows, is_mapped):
    """Each map has a file descriptor, and thousands of small samples may stay loaded."""
    np.save(tmp_path / "x.npy", np.ones((rows, 2), np.float32))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    fitted = fit_values(mapped, spec(), "f")
    assert np.shares_memory(fitted, mapped) is is_mapped
    np.testing.assert_array_equal(fitted, mapped)
    np.testing.assert_array_equal(aligned(fitted), fitted)
