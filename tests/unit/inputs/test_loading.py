import numpy as np
import pytest
from PIL import Image

from halfwise.errors import CaseError, UsageError
from halfwise.inputs import InputSpec, load_samples
from halfwise.reporting.remarks import note_text
from tests.polygraphy_files import write_feeds

X = InputSpec("x", np.dtype(np.float32), ("n", 3))
RAMP = np.linspace(0, 1, 12, dtype=np.float32).reshape(4, 3)


def test_every_form_gives_the_same_samples(tmp_path):
    np.save(tmp_path / "a.npy", RAMP)
    np.savez(tmp_path / "a.npz", anything=RAMP)
    (tmp_path / "folder").mkdir()
    for i, row in enumerate(RAMP):
        np.save(tmp_path / "folder" / f"{i}.npy", row[None])
    code = "import numpy as np\ndef f():\n    for row in np.load(__file__[:-7] + 'a.npy'):\n"
    (tmp_path / "code.py").write_text(code + "        yield {'x': row}\n")
    for source in (
        tmp_path / "a.npy",
        str(tmp_path / "a.npz"),
        tmp_path / "folder",
        f"{tmp_path}/code.py:f",
        {"x": RAMP},
        [{"x": row} for row in RAMP],
    ):
        samples = load_samples(source, [X]).samples
        np.testing.assert_array_equal([s["x"][0] for s in samples], RAMP)
        assert {s["x"].shape for s in samples} == {(1, 3)}


def test_one_image_is_a_sample(tmp_path):
    Image.new("RGB", (1, 1), (1, 2, 3)).save(tmp_path / "a.png")
    code = "import numpy as np\ndef f(path): return np.float32([1, 2, 3])"
    (tmp_path / "prep.py").write_text(code)
    loaded = load_samples(tmp_path / "a.png", [X], preprocess=f"{tmp_path}/prep.py:f")
    assert loaded.samples.ids == ("a.png",)


def test_notes_say_what_was_understood():
    noise = np.random.default_rng(0).standard_normal((500, 3)).astype(np.float32)
    wide = InputSpec("x", np.dtype(np.float32), ("n", 500))
    notes = [*map(note_text, load_samples({"x": noise.T}, [wide]).notes)]
    assert notes[0] == "3 samples"
    assert "3×500 holds 3 samples of 1×500" in notes[1]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("absent.npz", "There is no file or folder .*absent.npz"),
        ("absent.png", "There is no file or folder"),
        (
            "data.pkl",
            "data.pkl: found the suffix '.pkl'; expected .npz, .npy, .json or .py:function",
        ),
        ("code.py:absent", "'absent' in code.py is missing"),
    ],
)
def test_what_cannot_be_inputs_is_an_error(tmp_path, source, message):
    (tmp_path / "data.pkl").touch()
    (tmp_path / "code.py").touch()
    with pytest.raises(CaseError, match=message):
        load_samples(str(tmp_path / source), [X])


@pytest.mark.parametrize("source", ["a.npz", "code.py:f", {"x": RAMP}])
def test_preprocess_is_for_images_only(source):
    with pytest.raises(UsageError, match=r"preprocessing prep.py:f is given"):
        load_samples(source, [X], preprocess="prep.py:f")


def test_a_python_file_without_a_function_is_misuse(tmp_path):
    (tmp_path / "code.py").touch()
    with pytest.raises(UsageError, match="names no function"):
        load_samples(tmp_path / "code.py", [X])


WIDE = InputSpec("x", np.dtype(np.float32), ("n", "m"))
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
    samples = load_samples(folder, [WIDE]).samples
    assert samples.ids == ("a.npz", "b.npz", "c.npz")
    assert [s["x"].shape[1] for s in samples] == [2, 3, 1]


def test_json_files_are_polygraphys(folder):
    for i in range(2):
        write_feeds(folder / f"{i}.json", [{"x": ONE + i}])
    samples = load_samples(folder, [WIDE]).samples
    assert samples.ids == ("0.json", "1.json")
    np.testing.assert_array_equal(samples[1]["x"], ONE + 1)


def test_json_beside_arrays_is_ignored(folder):
    np.savez(folder / "a.npz", x=ONE)
    (folder / "labels.json").write_text("[1]")
    loaded = load_samples(folder, [WIDE])
    assert loaded.samples.ids == ("a.npz",)
    assert "ignored in data: labels.json" in map(note_text, loaded.notes)


def test_npy_files_per_input(folder):
    np.save(folder / "x.npy", ONE)
    np.save(folder / "y.npy", ONE)
    assert len(load_samples(folder, [WIDE, Y]).samples) == 1


def test_images_in_a_folder(folder, prep):
    (folder / "1.JPG").touch()
    one = load_samples(folder, [WIDE], preprocess=f"{prep}:load")
    assert one.samples[0]["x"][0, 0] == 5


def test_what_is_ignored_is_noted_and_hidden_files_are_not(folder):
    np.savez(folder / "a.npz", x=ONE)
    for name in ("readme.md", ".DS_Store"):
        (folder / name).touch()
    assert note_text(load_samples(folder, [WIDE]).notes[-1]) == "ignored in data: readme.md"


def test_the_current_folder_has_a_name(folder, monkeypatch):
    monkeypatch.chdir(folder)
    with pytest.raises(CaseError, match=r"^data holds nothing; expected"):
        load_samples(type(folder)("."), [WIDE])


def test_mixed_kinds_are_an_error(folder):
    np.savez(folder / "a.npz", x=ONE)
    np.save(folder / "b.npy", ONE)
    with pytest.raises(CaseError, match=r"data: found 1 .npy and 1 .npz; expected files of one"):
        load_samples(folder, [WIDE])


def test_a_folder_of_folders_is_told_how_to_be_given(folder):
    (folder / "cats").mkdir()
    with pytest.raises(
        CaseError, match=r"holds cats; expected .npz, .npy or image files"
    ) as caught:
        load_samples(folder, [WIDE, Y])
    assert "x=FOLDER,y=FOLDER" in caught.value.hint


def test_sub_folders_of_other_or_different_kinds_are_an_error(folder):
    for name in "xy":
        (folder / name).mkdir()
    np.save(folder / "x" / "a.npy", ONE)
    given = f"x={folder}/x,y={folder}/y"
    with pytest.raises(CaseError, match=r"hold .npy for 'x', nothing for 'y'"):
        load_samples(given, [WIDE, Y])
    (folder / "y" / "a.png").touch()
    with pytest.raises(CaseError, match=r"hold .npy for 'x', images for 'y'"):
        load_samples(given, [WIDE, Y])


def test_preprocess_is_for_folders_of_images_only(folder, prep):
    np.save(folder / "a.npy", ONE)
    with pytest.raises(UsageError, match=r"the inputs are .npy files, not images"):
        load_samples(folder, [WIDE], preprocess=f"{prep}:load")
    (folder / "a.npy").rename(folder / "a.png")
    with pytest.raises(UsageError, match="--preprocess is needed"):
        load_samples(folder, [WIDE])


def test_sub_folders_of_npz_are_told_where_these_go(folder):
    for name in "xy":
        (folder / name).mkdir()
        np.savez(folder / name / "a.npz", ONE)
    with pytest.raises(
        CaseError, match=r".npz for 'x', .npz for 'y'; expected images or .npy, of one kind"
    ):
        load_samples(f"x={folder}/x,y={folder}/y", [WIDE, Y])


@pytest.fixture
def sources(folder):
    """Folders `one` and `two` of equally named arrays, of images, and single files of them."""
    for i, name in enumerate(("one", "two")):
        (folder / name).mkdir()
        (folder / f"{name}_images").mkdir()
        for k in range(3):
            np.save(folder / name / f"{k}.npy", ONE * (10 * i + k))
            (folder / f"{name}_images" / f"a{'c' * k}.png").touch()
        np.save(folder / f"{name}.npy", np.concatenate([ONE * (10 * i + k) for k in range(3)]))
    return folder


def test_each_input_has_a_source(sources):
    one, two = sources / "one", sources / "two"
    for given in (
        f"x={one},y={two}",
        f"y={two},x={one}",
        f"x={one}.npy,y={two}.npy",
        {"x": str(one), "y": two},
    ):
        samples = load_samples(given, [WIDE, Y]).samples
        assert [s["x"][0, 0] for s in samples] == [0, 1, 2]
        assert [s["y"][0, 0] for s in samples] == [10, 11, 12]
    assert len(load_samples(f"x={one}", [WIDE]).samples) == 3


def test_images_of_several_sources(sources, prep):
    given = f"x={sources}/one_images,y={sources}/two_images"
    loaded = load_samples(given, [WIDE, Y], preprocess=f"{prep}:both")
    assert [s["y"][0, 0] for s in loaded.samples] == [5, 6, 7]
    with pytest.raises(UsageError, match="--preprocess is needed"):
        load_samples(given, [WIDE, Y])


def test_a_function_that_takes_something_else_is_told_what_it_is_called_with(sources, tmp_path):
    (tmp_path / "none.py").write_text("def f(path): raise KeyError('left')")
    given = f"x={sources}/one_images,y={sources}/two_images"
    with pytest.raises(CaseError, match="KeyError: 'left'") as caught:
        load_samples(given, [WIDE, Y], preprocess=f"{tmp_path}/none.py:f")
    assert "It is called with {input name: path}" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("x={}/one,z={}/two", "the model has no input 'z'; expected a source for each of: x, y"),
        ("x={}/one", "Input 'y' has no source; expected one"),
        ("x={}/one,y={}/absent", "There is no file or folder .*absent for input 'y'"),
        ("x={}/one,y={}/one", "The inputs 'x' and 'y' are both read from"),
        ("x={}/one,y={}/one/../one", "The inputs 'x' and 'y' are both read from"),
        ("x={}/one,x={}/two", "Input 'x' is named twice"),
        ("x={}/one,y=", "Input 'y' has no source in"),
        ("x={}/one,y={}/two_images", "hold .npy for 'x', images for 'y'; expected images or .npy"),
        ("x={}/one,y={}/two.npy", "do not pair up .'x' 3, 'y' 1; "),
        ("x={}/one,y={}/empty", "nothing for 'y'"),
    ],
)
def test_sources_that_cannot_be_used_are_named(sources, given, message):
    (sources / "empty").mkdir()
    with pytest.raises(CaseError, match=message):
        load_samples(given.replace("{}", str(sources)), [WIDE, Y])


def test_paths_may_hold_commas_and_equals_signs(folder):
    odd = folder / "a,b=c"
    odd.mkdir()
    np.save(odd / "1.npy", ONE)
    assert len(load_samples(odd, [WIDE]).samples) == 1
    plain = folder / "a,b"
    odd.rename(plain)
    assert len(load_samples(f"x={plain}", [WIDE]).samples) == 1
