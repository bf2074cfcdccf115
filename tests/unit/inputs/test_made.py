import numpy as np
import pytest

from halfwise.case import Samples
from halfwise.errors import CaseError, UsageError
from halfwise.inputs.made import load_made
from halfwise.inputs.raw import load_raw
from tests.unit.inputs.test_files import bomb


@pytest.fixture
def raw(tmp_path):
    np.savez(tmp_path / "raw.npz", x=np.arange(3 * 9 * 9 * 3.0).reshape(3, 9, 9, 3))
    return load_raw(tmp_path / "raw.npz")


@pytest.mark.parametrize(
    ("shape", "count", "sample"),
    [
        ((4, 3, 9, 9), 4, (1, 3, 9, 9)),
        ((4, 1, 3, 9, 9), 4, (1, 3, 9, 9)),
        ((3, 9, 9), 1, (3, 9, 9)),
        ((9, 9, 3), 1, (9, 9, 3)),
        ((6, 9, 9), 6, (1, 9, 9)),
        ((6, 5), 6, (1, 5)),
        ((6,), 1, (6,)),
    ],
)
def test_how_many_samples_an_array_holds(tmp_path, shape, count, sample):
    np.savez(tmp_path / "a.npz", x=np.ones(shape, np.float32))
    for source in (tmp_path / "a.npz", {"x": np.ones(shape, np.float32)}):
        loaded = load_made(source, None)
        assert len(loaded.samples) == count
        assert loaded.samples[count - 1]["x"].shape == sample


def test_types_are_kept(tmp_path):
    np.save(tmp_path / "a.npy", np.ones((2, 3, 9, 9), np.uint8))
    loaded = load_made(tmp_path / "a.npy", None)
    assert loaded.samples[0]["a"].dtype == np.uint8
    assert not any(note.startswith("warning") for note in loaded.notes)


def test_a_folder_of_files(tmp_path):
    for i in range(3):
        np.savez(tmp_path / f"{i}.npz", x=np.full((1, 3, 9, 9), i), y=np.ones((1, 4)))
    loaded = load_made(tmp_path, None)
    assert loaded.samples[2]["x"].max() == 2
    assert set(loaded.samples[0]) == {"x", "y"}


def test_functions_are_called_with_each_raw_sample(tmp_path, raw):
    (tmp_path / "prep.py").write_text("def half(x):\n    return x / 2\n")
    for source in (f"{tmp_path}/prep.py:half", lambda x: {"input": x / 2}):
        loaded = load_made(source, raw)
        assert loaded.samples.ids == raw.ids
        assert np.array_equal(loaded.samples[2]["input"], raw.argument(2) / 2)


def test_a_function_may_fill_one_array_again(raw):
    buffer = np.empty((9, 9, 3))

    def fill(x):
        buffer[:] = x
        return buffer

    samples = load_made(fill, raw).samples
    assert not np.array_equal(samples[0]["input"], samples[1]["input"])


def test_samples_are_taken_as_they_are():
    samples = Samples(("a",), lambda _: {"x": np.ones(3)})
    assert load_made(samples, None).samples is samples


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (None, "returned nothing"),
        (np.full(3, np.nan), "NaN or infinities"),
        (np.array(["a"]), "expected numbers"),
        (np.zeros(0), "expected numbers"),
    ],
)
def test_what_a_function_must_not_return(raw, result, said):
    with pytest.raises(CaseError, match=said):
        load_made(lambda _: result, raw)


def test_bad_sources(tmp_path, raw):
    with pytest.raises(UsageError, match="no raw samples are given"):
        load_made(lambda x: x, None)
    (tmp_path / "a.txt").write_text("x")
    np.savez(tmp_path / "text.npz", x=np.array(["a"]))
    for source, said in (
        (tmp_path / "none.npz", "to compare"),
        (tmp_path / "a.txt", "the suffix '.txt' to compare"),
        (tmp_path / "text.npz", "expected numbers"),
        ({"x": np.zeros((2, 0))}, "expected numbers"),
    ):
        with pytest.raises(CaseError, match=said):
            load_made(source, raw)


def test_an_archive_of_too_many_samples_is_not_unpacked(tmp_path):
    path = bomb(tmp_path / "d.npz", (1 << 27, 1, 8))
    with pytest.raises(CaseError, match="holds 134,217,728 samples"):
        load_made(path, None)


def test_an_archive_without_arrays_is_told(tmp_path):
    np.savez(tmp_path / "d.npz")
    with pytest.raises(CaseError, match="no arrays"):
        load_made(tmp_path / "d.npz", None)
    with pytest.raises(CaseError, match="no arrays"):
        load_made({}, None)
