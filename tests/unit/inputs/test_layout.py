import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfwise.errors import CaseError
from halfwise.inputs.layout import Layout, agree, layout_note, understand
from halfwise.inputs.spec import InputSpec


def spec(*shape):
    return InputSpec("x", np.dtype(np.float32), shape)


sizes = st.integers(1, 4)
axes = st.lists(st.tuples(sizes, st.booleans()), max_size=4)


@given(axes, st.integers(1, 5))
def test_rank_one_above_is_n_samples(axes, count):
    sample = tuple(size for size, _ in axes)
    model = spec(*(size if fixed else None for size, fixed in axes))
    array = np.arange(count * np.prod(sample, dtype=int)).reshape(count, *sample)
    layout = understand(array.shape, model, "f")
    assert layout == Layout("stacked", count)
    for i in range(count):
        np.testing.assert_array_equal(layout.take(array, i), array[i])
        assert layout.take(array, i).shape == sample


@given(axes, st.integers(1, 5), st.sampled_from(["n", None]))
def test_own_rank_with_a_dynamic_batch_is_n_samples_with_a_batch_of_one(axes, count, batch):
    sample = tuple(size for size, _ in axes)
    model = spec(batch, *(size if fixed else "s" for size, fixed in axes))
    array = np.arange(count * np.prod(sample, dtype=int)).reshape(count, *sample)
    layout = understand(array.shape, model, "f")
    assert layout == Layout("batched", count)
    for i in range(count):
        assert layout.take(array, i).shape == (1, *sample)
        np.testing.assert_array_equal(layout.take(array, i)[0], array[i])


@given(sizes, axes)
def test_own_rank_with_a_fixed_batch_is_one_sample(batch, axes):
    sample = (batch, *(size for size, _ in axes))
    model = spec(batch, *(size if fixed else None for size, fixed in axes))
    array = np.zeros(sample)
    layout = understand(sample, model, "f")
    assert layout == Layout("single", 1)
    assert layout.take(array, 0) is array


def test_samples_are_views():
    array = np.zeros((3, 1, 2))
    for layout in (Layout("stacked", 3), Layout("batched", 3), Layout("single", 1)):
        assert np.shares_memory(layout.take(array, 0), array)
    assert isinstance(Layout("stacked", 3).take(np.zeros(3), 1), np.ndarray)


@pytest.mark.parametrize("shape", [(2,), (2, 2, 2, 2)])
def test_other_ranks_are_errors(shape):
    with pytest.raises(CaseError, match=rf"f: input 'x' has rank {len(shape)}.*expected rank 2"):
        understand(shape, spec("n", 2), "f")


@pytest.mark.parametrize("shape", [(0, 2), (0, 1, 2)])
def test_no_samples_is_an_error(shape):
    with pytest.raises(CaseError, match="is empty"):
        understand(shape, spec("n", 2), "f")


@pytest.mark.parametrize("shape", [(5, 3), (5, 1, 3)])
def test_a_fixed_axis_of_another_length_is_an_error(shape):
    with pytest.raises(CaseError, match="is 1×3, with axis 1 of length 3, expected n×2"):
        understand(shape, spec("n", 2), "f")


def test_samples_stacked_along_a_fixed_batch_of_one_get_a_hint():
    with pytest.raises(CaseError, match="axis 0 of length 8, expected 1×2") as caught:
        understand((8, 2), spec(1, 2), "f")
    assert "8×1×2" in caught.value.hint


def test_inputs_have_to_agree_on_the_number_of_samples():
    assert agree({"a": Layout("batched", 3), "b": Layout("stacked", 3)}, "f") == 3
    assert agree({"a": Layout("batched", 1), "b": Layout("single", 1)}, "f") == 1
    with pytest.raises(CaseError, match=r"different numbers of samples .'a' 3, 'b' 2."):
        agree({"a": Layout("batched", 3), "b": Layout("stacked", 2)}, "f")
    with pytest.raises(CaseError, match="'b' is given as one sample and others as several") as e:
        agree({"a": Layout("batched", 3), "b": Layout("single", 1)}, "f")
    assert "np.stack([b] * 3)" in e.value.hint


def test_notes_say_what_was_understood():
    note = layout_note(Layout("batched", 9), (9, 4), spec("n", 4))
    assert note == (
        "input 'x': 9×4 is read as 9 samples of 1×4 (the model's dynamic batch axis counts samples)"
    )
    assert "1 sample of 4 (it has" in layout_note(Layout("single", 1), (4,), spec(4))
    assert "2 samples of scalar (the axis" in layout_note(Layout("stacked", 2), (2,), spec())


def test_more_samples_than_any_run_gets_through_are_an_error():
    with pytest.raises(CaseError, match=r"holds 1,000,001 samples .* at most 1,000,000"):
        understand((1_000_001, 2, 3), spec(2, 3), "a.npy")
