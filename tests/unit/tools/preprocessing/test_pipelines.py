import sys
from typing import Any

import numpy as np
import pytest
from PIL import Image

from halfwise.case import Samples
from halfwise.errors import CaseError, UsageError
from halfwise.tools.preprocessing.command import load_made, load_raw
from tests.unit.inputs.test_array_files import bomb


def test_images_are_given_as_paths_and_decoded(tmp_path):
    for i, name in enumerate(("b.png", "a.bmp")):
        Image.new("RGB", (4, 5), (i, 10, 20)).save(tmp_path / name)
    raw: Any = load_raw(tmp_path)
    assert raw.ids == ["a.bmp", "b.png"]
    assert raw.files[0] == tmp_path / "a.bmp"
    assert raw.pixels("x")[1].shape == (5, 4, 3)
    assert raw.pixels("x")[1][0, 0].tolist() == [0, 10, 20]
    assert load_raw(tmp_path / "b.png").ids == ["b.png"]


def test_an_image_that_cannot_be_decoded_is_left_to_the_functions(tmp_path):
    (tmp_path / "a.png").write_bytes(b"none")
    assert load_raw(tmp_path).pixels("x") is None


def test_without_pillow(tmp_path, monkeypatch):
    Image.new("RGB", (4, 5)).save(tmp_path / "a.png")
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert load_raw(tmp_path).pixels("x") is None


def test_arrays_are_given_as_paths_too(tmp_path):
    for i in range(2):
        np.save(tmp_path / f"{i}.npy", np.full((5, 6, 3), i))
    raw: Any = load_raw(tmp_path)
    assert (raw.ids, raw.files[1]) == (["0.npy", "1.npy"], tmp_path / "1.npy")
    assert raw.pixels("x")[1].max() == 1


def test_nothing_usable(tmp_path):
    (tmp_path / "a.txt").write_text("x")
    (tmp_path / "sub").mkdir()
    for source in (tmp_path / "sub", tmp_path / "a.txt", tmp_path / "none.npy"):
        with pytest.raises(CaseError, match="no raw samples"):
            load_raw(source)


@pytest.fixture
def raw(tmp_path):
    (tmp_path / "raw").mkdir()
    for i, x in enumerate(np.arange(3 * 9 * 9 * 3.0).reshape(3, 9, 9, 3)):
        np.save(tmp_path / "raw" / f"{i}.npy", x)
    return load_raw(tmp_path / "raw")


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
    assert not any(note.severity == "warning" for note in loaded.notes)


def test_a_folder_of_files(tmp_path):
    for i in range(3):
        np.savez(tmp_path / f"{i}.npz", x=np.full((1, 3, 9, 9), i), y=np.ones((1, 4)))
    loaded = load_made(tmp_path, None)
    assert loaded.samples[2]["x"].max() == 2
    assert set(loaded.samples[0]) == {"x", "y"}


def test_functions_are_called_with_each_raw_sample(tmp_path, raw):
    code = "import numpy as np\n\n\ndef half(path):\n    return np.load(path) / 2\n"
    (tmp_path / "prep.py").write_text(code)
    for source in (f"{tmp_path}/prep.py:half", lambda path: {"input": np.load(path) / 2}):
        loaded = load_made(source, raw)
        assert loaded.samples.ids == ("0.npy", "1.npy", "2.npy")
        assert np.array_equal(loaded.samples[2]["input"], np.load(raw.files[2]) / 2)


def test_a_function_may_fill_one_array_again(raw):
    buffer = np.empty((9, 9, 3))

    def fill(path):
        buffer[:] = np.load(path)
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
        ({}, "returned nothing"),
        (np.full(3, np.nan), "NaN or infinities"),
        (np.array(["a"]), "expected numbers"),
        (np.zeros(0), "expected numbers"),
    ],
)
def test_what_a_function_must_not_return(raw, result, said):
    with pytest.raises(CaseError, match=said):
        load_made(lambda _: result, raw)


def test_bad_sources(tmp_path, raw):
    with pytest.raises(UsageError, match="there are no raw samples"):
        load_made(np.load, None)
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


def test_an_archive_of_too_many_samples_that_were_made_is_not_unpacked(tmp_path):
    path = bomb(tmp_path / "d.npz", (1 << 27, 1, 8))
    with pytest.raises(CaseError, match="holds 134,217,728 samples"):
        load_made(path, None)


def test_an_archive_without_arrays_is_told(tmp_path):
    np.savez(tmp_path / "d.npz")
    with pytest.raises(CaseError, match="no arrays"):
        load_made(tmp_path / "d.npz", None)
    with pytest.raises(CaseError, match="no arrays"):
        load_made({}, None)


def test_raw_samples_of_several_inputs(tmp_path):
    for i, name in enumerate(("left", "right")):
        (tmp_path / name).mkdir()
        (tmp_path / f"{name}_made").mkdir()
        for k in range(2):
            Image.new("RGB", (9, 9), (i, k, 3)).save(tmp_path / name / f"{k}.png")
            np.save(tmp_path / f"{name}_made" / f"{k}.npy", np.full((1, 3, 9, 9), 10 * i + k))
    raw: Any = load_raw(f"left={tmp_path}/left,right={tmp_path}/right")
    assert raw.ids == ["0.png", "1.png"]
    assert raw.files[1] == {n: tmp_path / n / "1.png" for n in ("left", "right")}
    assert raw.pixels("right")[1][0, 0].tolist() == [1, 1, 3]
    made = load_made(lambda path: np.asarray(Image.open(path)), raw).samples
    assert made[1]["right"][0, 0].tolist() == [1, 1, 3]
    stored = load_made(f"left={tmp_path}/left_made,right={tmp_path}/right_made", None).samples
    assert [s["right"][0, 0, 0, 0] for s in stored] == [10, 11]
