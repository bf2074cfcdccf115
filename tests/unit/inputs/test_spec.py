import numpy as np
import pytest

from halfwise.inputs.spec import InputSpec, count_samples, format_inputs, format_shape


@pytest.mark.parametrize(
    ("shape", "text"),
    [((), "scalar"), ((1, 3, None, "w"), "1×3×?×w"), ((7,), "7"), ((0, 2), "0×2")],
)
def test_shapes_are_written_with_their_dynamic_axes(shape, text):
    assert format_shape(shape) == text


@pytest.mark.parametrize(
    ("shape", "dynamic"), [(("n", 3), True), ((None,), True), ((1, "n"), False), ((), False)]
)
def test_the_batch_is_dynamic_where_the_first_axis_is(shape, dynamic):
    spec = InputSpec("x", np.dtype(np.float32), shape)
    assert spec.batch_is_dynamic is dynamic


def test_inputs_are_listed_with_dtype_and_shape():
    specs = [InputSpec("x", np.dtype(np.float32), ("n", 3)), InputSpec("m", np.dtype(bool), ())]
    assert format_inputs(specs) == "x (float32 n×3), m (bool scalar)"


def test_samples_are_counted_in_words():
    assert count_samples(1) == "1 sample"
    assert count_samples(12) == "12 samples"
