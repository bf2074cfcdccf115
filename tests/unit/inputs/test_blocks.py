import numpy as np
import pytest

from halfwise.errors import CaseError
from halfwise.inputs.blocks import Block, load_singles, load_stacks
from halfwise.inputs.spec import InputSpec

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
    assert loaded.notes[0] == "3 samples from 2 files"


def test_blocks_read_alike_share_their_notes():
    blocks = [block(f"{i}.npz", x=np.ones((2, i)), scale=[1, 2]) for i in range(1, 5)]
    notes = load_stacks(blocks, SPECS).notes
    assert len(notes) == 3
    assert "2×1 is read as 2 samples of 1×1" in notes[1]


def test_a_dtype_is_refused_before_any_sample_is_loaded():
    wrong = Block("a.npz", lambda: {"x": np.ones((1, 2), int), "scale": np.ones(1, np.float32)})
    with pytest.raises(CaseError, match=r"a.npz: input 'x' has dtype int64, expected float32"):
        load_stacks([wrong], SPECS)


def test_values_are_checked_when_the_sample_is_loaded():
    samples = load_stacks([block("a.npz", x=[[1], [np.nan]], scale=[1, 1])], SPECS).samples
    assert samples[0]["x"].shape == (1, 1)
    with pytest.raises(CaseError, match=r"a.npz\[1\]: input 'x' holds 1 NaN"):
        samples[1]


def test_conversions_are_noted():
    double = Block("a", lambda: {"x": np.ones((2, 2)), "scale": np.ones(2, np.float16)})
    notes = load_stacks([double], SPECS).notes
    assert notes[1].endswith("counts samples); float64 is read as float32 (rounded to nearest)")
    assert notes[2].endswith("float16 is read as float32 (lossless)")


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
    assert loaded.notes == (
        "3 samples",
        "input 'x': 1×3 in the first sample, a batch axis is added",
        "input 'scale': scalar in the first sample",
    )


def test_a_single_input_tells_from_which_array_it_is_taken():
    loaded = load_singles([block("a", y=[[1]]), block("b", x=[[2]])], SPECS[:1])
    assert loaded.samples[0]["x"] == 1
    assert loaded.notes[1].startswith("input 'x', taken from 'y': 1×1 in the first sample")
    named = load_singles([block("b", x=[[2]])], SPECS[:1])
    assert "taken from" not in named.notes[1]


def test_errors_in_singles_name_their_block():
    good, bad = block("good", x=[[1]], scale=1), block("bad", x=[[[1]]], scale=1)
    samples = load_singles([good, bad], SPECS).samples
    with pytest.raises(CaseError, match="bad: input 'x' has rank 3"):
        samples[1]
    with pytest.raises(CaseError, match="bad: input 'x' has rank 3"):
        load_singles([bad, good], SPECS)
