import numpy as np
import pytest
from PIL import Image

from halfwise.errors import CaseError, UsageError
from halfwise.inputs import InputSpec, load_samples

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
    notes = load_samples({"x": noise.T}, [wide]).notes
    assert notes[0] == "3 samples"
    assert "3×500 is read as 3 samples of 1×500" in notes[1]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("absent.npz", "Found no file or folder .*absent.npz"),
        ("absent.png", "Found no file or folder"),
        (
            "data.pkl",
            "data.pkl: found the suffix '.pkl', expected .npz, .npy, .json or .py:function",
        ),
        ("code.py:absent", "found no function called 'absent'"),
    ],
)
def test_what_cannot_be_inputs_is_an_error(tmp_path, source, message):
    (tmp_path / "data.pkl").touch()
    (tmp_path / "code.py").touch()
    with pytest.raises(CaseError, match=message):
        load_samples(str(tmp_path / source), [X])


@pytest.mark.parametrize("source", ["a.npz", "code.py:f", {"x": RAMP}])
def test_preprocess_is_for_images_only(source):
    with pytest.raises(UsageError, match=r"--preprocess prep.py:f is given"):
        load_samples(source, [X], preprocess="prep.py:f")


def test_a_python_file_without_a_function_is_misuse(tmp_path):
    (tmp_path / "code.py").touch()
    with pytest.raises(UsageError, match="names no function"):
        load_samples(tmp_path / "code.py", [X])
