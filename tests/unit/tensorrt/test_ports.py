import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from onnx import TensorProto

from halfwise.case import Samples
from halfwise.errors import CaseError, UsageError
from halfwise.formats import BF16, FP16
from halfwise.records import Profile, ShapeRange, TensorName
from halfwise.tensorrt.ports import (
    Port,
    check_covered,
    check_names,
    dtype_of,
    fit_inputs,
    fit_outputs,
    model_ports,
    profile_of,
    profiles_from_data,
    profiles_from_options,
)
from halfwise.tensorrt.trtexec import format_shapes
from tests.unit.graph.sketch import Sketch

X, S = TensorName("x"), TensorName("s")
IMAGES = ShapeRange(min=(1, 3, 8, 4), opt=(1, 3, 8, 8), max=(2, 3, 16, 8))


def images(*shapes):
    return Samples(
        tuple(f"s{i}" for i in range(len(shapes))), lambda i: {"x": np.zeros(shapes[i], np.float32)}
    )


def image_model():
    sketch = Sketch()
    x = sketch.input("x", ["N", 3, "H", "W"])
    sketch.input("scale", [1])
    return sketch.network(sketch.op("Mul", x, "scale"))


def with_scale(samples):
    scale = {"scale": np.ones(1, np.float32)}
    return Samples(samples.ids, lambda i: {**samples[i], **scale})


DATA = with_scale(images((1, 3, 8, 8), (2, 3, 8, 4), (1, 3, 8, 8), (1, 3, 16, 8)))


def from_options(network, low=(), opt=(), high=(), samples=DATA):
    return profiles_from_options(network, samples, low, opt, high)


def shape_tensor_model():
    sketch = Sketch()
    x, s = sketch.input("x", ["N"]), sketch.input("s", [2], TensorProto.INT64)
    return sketch.network(sketch.op("Reshape", x, s))


def shaped(*values):
    return Samples(
        tuple(f"s{i}" for i in range(len(values))),
        lambda i: {
            "x": np.zeros(int(np.prod(values[i])), np.float32),
            "s": np.array(values[i], np.int64),
        },
    )


def test_ranges_of_the_data_and_the_most_frequent_shape():
    assert profiles_from_data(image_model(), DATA) == (Profile(shapes={X: IMAGES}),)


def test_among_equally_frequent_shapes_the_largest_is_usual():
    (profile,) = profiles_from_data(
        image_model(), with_scale(images((1, 3, 8, 8), (1, 3, 16, 16), (1, 3, 4, 4)))
    )
    assert profile.shapes[X].opt == (1, 3, 16, 16)


def test_a_model_without_dynamic_axes_needs_no_profile():
    sketch = Sketch()
    network = sketch.network(sketch.op("Relu", sketch.input("x", [1, 4])))
    assert profiles_from_data(network, images((1, 4))) == ()
    assert from_options(network, samples=images((1, 4))) == ()
    check_covered((), images((1, 4)))


def test_shape_tensors_have_values_that_go_with_the_usual_shape():
    samples = shaped((2, 6), (4, 3), (4, 3))
    (profile,) = profiles_from_data(shape_tensor_model(), samples)
    assert profile == Profile(
        shapes={X: ShapeRange(min=(12,), opt=(12,), max=(12,))},
        values={S: ShapeRange(min=(2, 3), opt=(4, 3), max=(4, 6))},
    )


def test_shape_tensors_of_several_lengths():
    sketch = Sketch()
    x, s = sketch.input("x", ["N"]), sketch.input("s", ["R"], TensorProto.INT64)
    network = sketch.network(sketch.op("Reshape", sketch.op("Reshape", x, s), [-1]))
    with pytest.raises(CaseError, match="'s' decides shapes and has 1 to 2 elements"):
        profiles_from_data(network, shaped((12,), (4, 3)))
    (profile,) = from_options(network, opt=["x:12,s:4x3"], samples=shaped((2, 6)))
    assert profile.shapes[S] == ShapeRange(min=(2,), opt=(2,), max=(2,))


@given(st.lists(st.tuples(*[st.integers(0, 5)] * 3), min_size=1, max_size=6))
def test_a_profile_from_data_holds_the_data_and_can_be_given_as_options(sizes):
    network = image_model()
    samples = with_scale(images(*((n, 3, h, w) for n, h, w in sizes)))
    profiles = profiles_from_data(network, samples)
    check_covered(profiles, samples)
    (x,) = (p.shapes[X] for p in profiles)
    assert x.opt in [s["x"].shape for s in samples]
    low, opt, high = ([format_shapes({X: shape})] for shape in (x.min, x.opt, x.max))
    assert from_options(network, low, opt, high, samples=samples) == profiles


def test_options_for_several_profiles():
    profiles = from_options(
        image_model(),
        ["x:1x3x8x8", "x:1x3x16x16,scale:1"],
        ["x:1x3x8x8", "x:1x3x16x16,scale:1"],
        ["x:4x3x8x8", "x:1x3x32x32,scale:1"],
    )
    assert [list(p.shapes) for p in profiles] == [["x"], ["x"]]
    assert [p.shapes[X].max for p in profiles] == [(4, 3, 8, 8), (1, 3, 32, 32)]
    assert [profile_of(profiles, sample) for sample in DATA] == [0, None, 0, None]


@pytest.mark.parametrize(
    ("given_options", "expected"),
    [
        ({"opt": 2}, (2, 2, 2)),
        ({"low": 1}, (1, 1, 1)),
        ({"high": 4}, (4, 4, 4)),
        ({"low": 1, "high": 4}, (1, 4, 4)),
        ({"low": 1, "opt": 2}, (1, 2, 2)),
        ({"opt": 2, "high": 4}, (2, 2, 4)),
        ({"low": 1, "opt": 2, "high": 4}, (1, 2, 4)),
    ],
)
def test_missing_options_are_filled_as_trtexec_fills_them(given_options, expected):
    texts = {option: [f"x:{size}x3x8x8"] for option, size in given_options.items()}
    (profile,) = from_options(image_model(), **texts)
    x = profile.shapes[X]
    assert (x.min[0], x.opt[0], x.max[0]) == expected


def test_sizes_of_a_shape_tensor_are_its_values():
    network, samples = shape_tensor_model(), shaped((2, 6), (4, 3))
    (profile,) = from_options(network, ["x:6,s:1x2"], high=["x:24,s:8x6"], samples=samples)
    assert profile.values == {S: ShapeRange(min=(1, 2), opt=(8, 6), max=(8, 6))}
    assert profile.shapes == {X: ShapeRange(min=(6,), opt=(24,), max=(24,))}
    (profile,) = from_options(network, opt=["x:12"], samples=samples)
    assert profile.values == {S: ShapeRange(min=(2, 3), opt=(2, 6), max=(4, 6))}
    (profile,) = from_options(network, opt=["x:12,s:-1x3"], samples=samples)
    assert profile.values[S].opt == (-1, 3)
    with pytest.raises(CaseError, match="gives input 's' 3 values, but it has 2"):
        from_options(network, opt=["x:12,s:1x2x3"], samples=samples)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"opt": ["y:1"]}, "no input 'y'"),
        ({"opt": ["x:1x3x8"]}, r"rank 3 \(1×3×8\), the model rank 4 \(N×3×H×W\)"),
        ({"opt": ["x:"]}, r"rank 0 \(scalar\)"),
        (
            {"opt": ["x:1x4x8x8"]},
            "optShapes gives input 'x' 4 at axis 1, but the model fixes it to 3",
        ),
        ({"opt": ["x:1x3x8x8,scale:2"]}, "'scale' 2 at axis 0, but the model fixes it to 1"),
        ({"high": ["x:1x3x-8x8"]}, "maxShapes gives input 'x' the negative size -8 at axis 2"),
        (
            {"low": ["x:2x3x8x8"], "opt": ["x:1x3x8x8"]},
            "minShapes is larger than optShapes at axis 0: 2 > 1",
        ),
        (
            {"opt": ["x:1x3x8x9"], "high": ["x:1x3x8x8"]},
            "optShapes is larger than maxShapes at axis 3: 9 > 8",
        ),
        (
            {"low": ["x:2x3x8x8"], "high": ["x:1x3x8x8"]},
            "minShapes is larger than maxShapes at axis 0: 2 > 1",
        ),
        ({"opt": ["scale:1"]}, "'x' has a dynamic axis and no shape: N×3×H×W"),
    ],
)
def test_options_that_do_not_fit(options, message):
    with pytest.raises(CaseError, match=message) as error:
        from_options(image_model(), **options)
    assert error.value.hint


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"low": ["x:1x3x8x8"] * 2, "high": ["x:2x3x8x8"]},
            "minShapes 2 times, maxShapes 1 times",
        ),
        (
            {"low": ["x:1x3x8x8"], "opt": ["x:1x3x8x8,scale:1"]},
            "minShapes gives no shape for input 'scale'",
        ),
        ({"opt": ["x:1x3x8x8x"]}, "is not a 32-bit integer"),
    ],
)
def test_options_that_contradict_each_other(options, message):
    with pytest.raises(UsageError, match=message):
        from_options(image_model(), **options)


def test_a_sample_outside_is_named_with_its_shape():
    profiles = from_options(image_model(), ["x:1x3x8x8"], high=["x:4x3x8x8"])
    with pytest.raises(CaseError) as error:
        check_covered(profiles, DATA)
    expected = "Sample s1 is outside the profile: x is 2×3×8×4, allowed 1×3×8×8 to 4×3×8×8."
    assert error.value.message == expected
    with pytest.raises(CaseError, match="outside every profile"):
        check_covered(profiles * 2, DATA)


def test_values_outside_are_told_too():
    network = shape_tensor_model()
    profiles = from_options(network, opt=["x:12,s:4x3"], samples=shaped((4, 3)))
    with pytest.raises(CaseError, match="s holds 2×6, allowed 4×3 to 4×3"):
        check_covered(profiles, shaped((4, 3), (2, 6)))


def test_without_samples_the_options_are_all_there_is():
    (made,) = from_options(image_model(), opt=["x:2x3x8x8"], samples=None)
    assert made.shapes[X].min == made.shapes[X].max == (2, 3, 8, 8)
    (made,) = from_options(
        shape_tensor_model(), ["x:1,s:1x1"], ["x:6,s:2x3"], ["x:9,s:3x3"], samples=None
    )
    assert made.values == {S: ShapeRange(min=(1, 1), opt=(2, 3), max=(3, 3))}
    assert from_options(image_model(), samples=None) == ()


def test_without_samples_shape_tensors_have_to_be_named():
    with pytest.raises(CaseError, match="'s' decides shapes, but its values are not given"):
        from_options(shape_tensor_model(), opt=["x:6"], samples=None)
    with pytest.raises(CaseError, match="has 2"):
        from_options(shape_tensor_model(), ["x:6,s:1"], ["x:6,s:1"], ["x:6,s:1x2"], samples=None)


def test_without_samples_a_shape_tensor_may_have_a_dynamic_length():
    sketch = Sketch()
    s = sketch.input("s", ["rank"], TensorProto.INT64)
    full = sketch.op("Reshape", sketch.op("ConstantOfShape", s), [-1])
    network = sketch.network(full)
    (made,) = from_options(network, opt=["s:2x3"], samples=None)
    assert made.shapes == {S: ShapeRange(min=(2,), opt=(2,), max=(2,))}
    assert made.values == {S: ShapeRange(min=(2, 3), opt=(2, 3), max=(2, 3))}


INT32 = np.iinfo(np.int32)
shapes = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)


def port(dtype, shape=None, name="x"):
    return Port(name, np.dtype(dtype), shape)


def there(array, dtype):
    return fit_inputs({"x": array}, [port(dtype)], "s0")["x"]


def back(array, dtype):
    return fit_outputs({"x": array}, [port(dtype)], "s0")["x"]


@pytest.mark.parametrize("name", ["float32", "float16", "int32", "int64", "uint8", "bool"])
def test_types_by_name(name):
    assert dtype_of(name) == np.dtype(name)
    assert dtype_of("bfloat16") == BF16.dtype


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
