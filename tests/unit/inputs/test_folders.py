import numpy as np
import pytest

from halfwise.errors import CaseError, UsageError
from halfwise.inputs.folders import load_folder
from halfwise.inputs.spec import InputSpec
from tests.polygraphy_files import write_feeds

X = InputSpec("x", np.dtype(np.float32), ("n", "m"))
Y = InputSpec("y", np.dtype(np.float32), ("n", "m"))
ONE = np.ones((1, 3), np.float32)

PREP = """
import numpy as np
def load(path): return np.full((1, 2), len(path.name), np.float32)
def both(paths): return {name: load(path) for name, path in paths.items()}
"""


@pytest.fixture
def prep(tmp_path):
    path = tmp_path / "prep.py"
    path.write_text(PREP)
    return str(path)


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "data"
    path.mkdir()
    return path


def test_npz_files_are_sorted_by_name(folder):
    for i, name in enumerate("cab"):
        np.savez(folder / name, x=ONE[:, : i + 1])
    samples = load_folder(folder, [X], None).samples
    assert samples.ids == ("a.npz", "b.npz", "c.npz")
    assert [s["x"].shape[1] for s in samples] == [2, 3, 1]


def test_json_files_are_polygraphys(folder):
    for i in range(2):
        write_feeds(folder / f"{i}.json", [{"x": ONE + i}])
    samples = load_folder(folder, [X], None).samples
    assert samples.ids == ("0.json", "1.json")
    np.testing.assert_array_equal(samples[1]["x"], ONE + 1)


def test_json_beside_arrays_is_ignored(folder):
    np.savez(folder / "a.npz", x=ONE)
    (folder / "labels.json").write_text("[1]")
    loaded = load_folder(folder, [X], None)
    assert loaded.samples.ids == ("a.npz",)
    assert "ignored in data: labels.json" in loaded.notes


def test_npy_files_per_input_and_in_sub_folders(folder):
    np.save(folder / "x.npy", ONE)
    np.save(folder / "y.npy", ONE)
    assert len(load_folder(folder, [X, Y], None).samples) == 1
    for name in "xy":
        (folder / "sub" / name).mkdir(parents=True)
        np.save(folder / "sub" / name / "7.npy", ONE)
    assert load_folder(folder / "sub", [X, Y], None).samples.ids == ("7.npy",)


def test_images_in_a_folder_and_in_sub_folders(folder, prep):
    for name in ("x", "y"):
        (folder / name).mkdir()
        (folder / name / "1.JPG").touch()
    both = load_folder(folder, [X, Y], f"{prep}:both")
    assert both.samples.ids == ("1.JPG",)
    one = load_folder(folder / "x", [X], f"{prep}:load")
    assert one.samples[0]["x"][0, 0] == 5


def test_what_is_ignored_is_noted_and_hidden_files_are_not(folder):
    np.savez(folder / "a.npz", x=ONE)
    for name in ("readme.md", ".DS_Store"):
        (folder / name).touch()
    assert load_folder(folder, [X], None).notes[-1] == "ignored in data: readme.md"


def test_the_current_folder_has_a_name(folder, monkeypatch):
    monkeypatch.chdir(folder)
    with pytest.raises(CaseError, match=r"^data: found no inputs"):
        load_folder(type(folder)("."), [X], None)


def test_mixed_kinds_are_an_error(folder):
    np.savez(folder / "a.npz", x=ONE)
    np.save(folder / "b.npy", ONE)
    with pytest.raises(CaseError, match=r"data: found 1 .npy and 1 .npz, expected files of one"):
        load_folder(folder, [X], None)


def test_sub_folders_have_to_be_named_after_the_inputs(folder):
    (folder / "cats").mkdir()
    with pytest.raises(CaseError, match=r"the sub-folders cats, expected .* each input: x, y"):
        load_folder(folder, [X, Y], None)


def test_sub_folders_of_other_or_different_kinds_are_an_error(folder):
    for name in "xy":
        (folder / name).mkdir()
    np.save(folder / "x" / "a.npy", ONE)
    with pytest.raises(CaseError, match=r"sub-folders hold .npy and nothing"):
        load_folder(folder, [X, Y], None)
    (folder / "y" / "a.png").touch()
    with pytest.raises(CaseError, match=r"sub-folders hold .npy and images"):
        load_folder(folder, [X, Y], None)


def test_preprocess_is_for_images_only(folder, prep):
    np.save(folder / "a.npy", ONE)
    with pytest.raises(UsageError, match=r"the inputs are .npy files; expected images"):
        load_folder(folder, [X], f"{prep}:load")
    (folder / "a.npy").rename(folder / "a.png")
    with pytest.raises(UsageError, match="--preprocess is missing"):
        load_folder(folder, [X], None)
