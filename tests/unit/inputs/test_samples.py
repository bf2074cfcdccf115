import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfwise.errors import CaseError
from halfwise.inputs.fitting import InputSpec
from halfwise.inputs.samples import (
    Block,
    Layout,
    agree,
    layout_note,
    load_singles,
    load_stacks,
    repeatable,
    understand,
)
from halfwise.reporting.remarks import note_text


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
    with pytest.raises(CaseError, match="is 1×3, with axis 1 of length 3; expected n×2"):
        understand(shape, spec("n", 2), "f")


def test_samples_stacked_along_a_fixed_batch_of_one_get_a_hint():
    with pytest.raises(CaseError, match="axis 0 of length 8; expected 1×2") as caught:
        understand((8, 2), spec(1, 2), "f")
    assert "8×1×2" in caught.value.hint


@pytest.mark.parametrize(
    ("shape", "wrong", "hint"),
    [
        ((4, 3, 32, 32), "axis 2 of length 32", "Resize or crop"),
        ((4, 64, 64, 3), "axis 1 of length 64", "The data is NHWC"),
        ((4, 3, 64, 64), "axis 0 of length 4", "4×1×3×64×64"),
    ],
)
def test_what_else_is_wrong_is_said_before_how_to_stack_samples(shape, wrong, hint):
    with pytest.raises(CaseError, match=wrong) as caught:
        understand(shape, spec(1, 3, 64, 64), "f")
    assert hint in caught.value.hint


def test_inputs_have_to_agree_on_the_number_of_samples():
    assert agree({"a": Layout("batched", 3), "b": Layout("stacked", 3)}, "f") == 3
    assert agree({"a": Layout("batched", 1), "b": Layout("single", 1)}, "f") == 1
    with pytest.raises(CaseError, match=r"different numbers of samples .'a' 3, 'b' 2."):
        agree({"a": Layout("batched", 3), "b": Layout("stacked", 2)}, "f")
    with pytest.raises(CaseError, match="'b' holds one sample, but others hold several") as e:
        agree({"a": Layout("batched", 3), "b": Layout("single", 1)}, "f")
    assert "np.stack([b] * 3)" in e.value.hint


def test_notes_say_what_was_understood():
    note = layout_note(Layout("batched", 9), (9, 4), spec("n", 4), {})
    assert note_text(note) == (
        "input 'x': 9×4 holds 9 samples of 1×4 (the first axis counts samples)"
    )
    assert "1 sample of 4 (it has" in note_text(layout_note(Layout("single", 1), (4,), spec(4), {}))
    scalar = layout_note(Layout("stacked", 2), (2,), spec(), {})
    assert "2 samples of scalar (the first axis" in note_text(scalar)


def test_more_samples_than_any_run_gets_through_are_an_error():
    with pytest.raises(CaseError, match=r"holds 1,000,001 samples .* at most 1,000,000"):
        understand((1_000_001, 2, 3), spec(2, 3), "a.npy")


SPECS = [
    InputSpec("x", np.dtype(np.float32), ("n", "length")),
    InputSpec("scale", np.dtype(np.float32), ()),
]


def block(where, **arrays):
    return Block(where, lambda: {k: np.asarray(v, np.float32) for k, v in arrays.items()})


def test_samples_of_several_blocks_follow_each_other():
    loaded = load_stacks(
        [
            block("a.npz", x=[[1, 2], [3, 4]], scale=[5, 6]),
            block("b.npz", x=[[7, 8, 9]], scale=10),
        ],
        SPECS,
    )
    assert loaded.samples.ids == ("a.npz[0]", "a.npz[1]", "b.npz")
    assert [s["x"].shape for s in loaded.samples] == [(1, 2), (1, 2), (1, 3)]
    assert [float(s["scale"]) for s in loaded.samples] == [5, 6, 10]
    assert note_text(loaded.notes[0]) == "3 samples from 2 files"


@pytest.mark.parametrize("axes", [("texts", "images"), (None, None)])
def test_inputs_with_first_axes_of_their_own_are_one_sample_per_file(axes):
    """A text encoder and an image encoder: two texts and one image, say."""
    specs = [
        InputSpec(name, np.dtype("f4"), (axis, 2)) for name, axis in zip("ab", axes, strict=True)
    ]
    blocks = [block(f"{i}.npz", a=np.ones((i, 2)), b=np.ones((1, 2))) for i in (1, 2, 3)]
    samples = load_stacks(blocks, specs).samples
    assert samples.ids == ("1.npz", "2.npz", "3.npz")
    assert [sample["a"].shape for sample in samples] == [(1, 2), (2, 2), (3, 2)]
    with pytest.raises(CaseError, match="'a' 3, 'b' 1"):  # one file may be a mistake
        load_stacks(blocks[2:], specs)
    same = [InputSpec(name, np.dtype("f4"), ("batch", 2)) for name in "ab"]
    with pytest.raises(CaseError, match="'a' 2, 'b' 1"):
        load_stacks(blocks, same)


def test_blocks_read_alike_share_their_notes():
    blocks = [block(f"{i}.npz", x=np.ones((2, i)), scale=[1, 2]) for i in range(1, 5)]
    notes = [*map(note_text, load_stacks(blocks, SPECS).notes)]
    assert len(notes) == 3
    assert "2×1 holds 2 samples of 1×1" in notes[1]


def test_a_dtype_is_refused_before_any_sample_is_loaded():
    wrong = Block("a.npz", lambda: {"x": np.ones((1, 2), int), "scale": np.ones(1, np.float32)})
    with pytest.raises(CaseError, match=r"a.npz: input 'x' has dtype int64; expected float32"):
        load_stacks([wrong], SPECS)


def test_values_are_checked_when_the_sample_is_loaded():
    samples = load_stacks([block("a.npz", x=[[1], [np.nan]], scale=[1, 1])], SPECS).samples
    assert samples[0]["x"].shape == (1, 1)
    with pytest.raises(CaseError, match=r"a.npz\[1\]: input 'x' holds 1 NaN"):
        samples[1]


def test_conversions_are_noted():
    double = Block("a", lambda: {"x": np.ones((2, 2)), "scale": np.ones(2, np.float16)})
    notes = [*map(note_text, load_stacks([double], SPECS).notes)]
    assert notes[1].endswith(
        "counts samples); float64 is converted to float32 (rounded to nearest)"
    )
    assert notes[2].endswith("float16 is converted to float32 (lossless)")


def test_singles_are_read_only_when_asked_for():
    read = []

    def make(where):
        def reader():
            read.append(where)
            return {"x": np.ones(3, np.float32), "scale": np.float32(1).reshape(())}

        return Block(where, reader)

    loaded = load_singles([make("a"), make("b"), make("c")], SPECS)
    assert read == ["a"]
    assert loaded.samples.ids == ("a", "b", "c")
    assert loaded.samples[2]["x"].shape == (1, 3)
    assert read == ["a", "c"]
    assert tuple(map(note_text, loaded.notes)) == (
        "3 samples",
        "input 'x': 1×3 in the first sample, a batch axis is added",
        "input 'scale': scalar in the first sample",
    )


def test_a_single_input_tells_from_which_array_it_is_taken():
    loaded = load_singles([block("a", y=[[1]]), block("b", x=[[2]])], SPECS[:1])
    assert loaded.samples[0]["x"] == 1
    assert note_text(loaded.notes[1]).startswith(
        "input 'x', taken from 'y': 1×1 in the first sample"
    )
    named = load_singles([block("b", x=[[2]])], SPECS[:1])
    assert "taken from" not in note_text(named.notes[1])


def test_errors_in_singles_name_their_block():
    good, bad = block("good", x=[[1]], scale=1), block("bad", x=[[[1]]], scale=1)
    samples = load_singles([good, bad], SPECS).samples
    with pytest.raises(CaseError, match="bad: input 'x' has rank 3"):
        samples[1]
    with pytest.raises(CaseError, match="bad: input 'x' has rank 3"):
        load_singles([bad, good], SPECS)


def test_no_array_is_held_beside_the_next():
    """A folder may have more files than may be open, and more data than memory."""
    made, alive = list[weakref.ref[np.ndarray]](), list[int]()

    def read():
        alive.append(sum(one() is not None for one in made))
        array = np.ones((2, 2), np.float32)
        made.append(weakref.ref(array))
        return {"x": array, "scale": np.ones(2, np.float32)}

    load_stacks([Block(str(i), read) for i in range(9)], SPECS)
    assert max(alive) <= 1


def test_what_is_alike_each_time_is_given():
    samples = repeatable(lambda i: {"x": np.full(3, i, np.float32)}, ["a", "b"], "prep.py:f")
    assert samples.ids == ("a", "b")
    for _ in range(2):
        assert [float(s["x"][0]) for s in samples] == [0, 1]


def test_the_first_is_tried_at_once():
    draw = np.random.default_rng(0)
    with pytest.raises(CaseError, match=r"prep.py:f returned different data for a this time"):
        repeatable(lambda _: {"x": draw.random(3, np.float32)}, ["a"], "prep.py:f")


@pytest.mark.parametrize(
    "later",
    [
        {"x": np.array([0, -0.0], np.float32)},
        {"x": np.array([0, 0], np.float64)},
        {"y": np.zeros(2, np.float32)},
        {"x": np.zeros((1, 2), np.float32)},
    ],
)
def test_each_is_compared_to_the_bit(later):
    made = {0: {"x": np.ones(2, np.float32)}, 1: {"x": np.zeros(2, np.float32)}}
    samples = repeatable(made.__getitem__, ["a", "b"], "prep.py:f")
    assert samples[1] is made[1]
    made[1] = later
    with pytest.raises(CaseError, match="different data for b"):
        samples[1]
