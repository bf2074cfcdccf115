from contextlib import nullcontext

import numpy as np
import pytest
from PIL import Image

from halfwise.errors import CaseError, UsageError
from halfwise.graph.weights import ALIGNMENT
from halfwise.inputs import load_images, load_mapping, load_sequence, load_stream
from halfwise.inputs.fitting import InputSpec, pair_files
from halfwise.reporting.remarks import note_text

IMAGE = InputSpec("image", np.dtype(np.float32), (1, 3, "h", "w"))
OTHER = InputSpec("other", np.dtype(np.float32), (1, 3, "h", "w"))

PREP = """
import numpy as np
from PIL import Image

def load(path):
    with Image.open(path) as image:
        return np.asarray(image, np.float32).transpose(2, 0, 1) / 255

def both(paths):
    return {name: load(path)[None] for name, path in paths.items()}

def split(path):
    return {"image": load(path), "other": load(path)}

def nothing(path):
    pass

def grey(path):
    return load(path)[0]

def nan(path):
    return load(path) * np.nan
"""


@pytest.fixture
def prep(tmp_path):
    path = tmp_path / "prep.py"
    path.write_text(PREP)
    return str(path)


def from_images(files, specs, preprocess):
    return load_images([(file.name, file) for file in files], specs, preprocess)


def photo(path, value=200):
    path.parent.mkdir(exist_ok=True)
    Image.new("RGB", (4, 5), (value, 10, 20)).save(path)
    return path


def test_each_image_goes_through_the_function(tmp_path, prep):
    files = [photo(tmp_path / "a.png", 51), photo(tmp_path / "b.bmp", 102)]
    loaded = from_images(files, [IMAGE], f"{prep}:load")
    assert loaded.samples.ids == ("a.png", "b.bmp")
    assert loaded.samples[1]["image"].shape == (1, 3, 5, 4)
    assert loaded.samples[1]["image"][0, 0, 0, 0] == np.float32(0.4)
    assert "prep.py:load" in note_text(loaded.notes[0])
    assert note_text(loaded.notes[1]) == "2 samples"


def test_a_function_may_return_all_inputs(tmp_path, prep):
    loaded = from_images([photo(tmp_path / "a.png")], [IMAGE, OTHER], f"{prep}:split")
    assert set(loaded.samples[0]) == {"image", "other"}


def test_paired_images_go_through_the_function_together(tmp_path, prep):
    folders = {
        "image": [photo(tmp_path / "image" / "1.png", 51)],
        "other": [photo(tmp_path / "other" / "1.png", 102)],
    }
    samples = load_images(pair_files(folders), [IMAGE, OTHER], f"{prep}:both").samples
    assert samples[0]["image"][0, 0, 0, 0] == np.float32(0.2)
    assert samples[0]["other"][0, 0, 0, 0] == np.float32(0.4)


def test_images_need_a_function(tmp_path):
    with pytest.raises(UsageError, match="--preprocess is needed"):
        from_images([photo(tmp_path / "a.png")], [IMAGE], None)


def test_a_broken_image_is_named_with_the_error_of_the_function(tmp_path, prep):
    bad = tmp_path / "bad.png"
    bad.write_bytes(b"no image")
    files = [photo(tmp_path / "a.png"), bad]
    samples = from_images(files, [IMAGE], f"{prep}:load").samples
    with pytest.raises(CaseError, match=r"bad.png: .*UnidentifiedImageError.*prep.py, line 6"):
        samples[1]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("nothing", "a.png: .* returned NoneType; expected an array"),
        ("grey", "a.png: input 'image' has rank 2"),
        ("nan", "a.png: input 'image' holds 60 NaN"),
        ("both", "a.png: .*AttributeError"),
        ("absent", "'absent' in .* is missing"),
    ],
)
def test_bad_functions_are_errors(tmp_path, prep, function, message):
    with pytest.raises(CaseError, match=message):
        from_images([photo(tmp_path / "a.png")], [IMAGE], f"{prep}:{function}")


def test_several_inputs_need_a_dictionary(tmp_path, prep):
    with pytest.raises(CaseError, match="returned ndarray; expected a dictionary"):
        from_images([photo(tmp_path / "a.png")], [IMAGE, OTHER], f"{prep}:load")


X = InputSpec("x", np.dtype(np.float32), ("n", 2))


def stream(tmp_path, body):
    path = tmp_path / "data.py"
    path.write_text(f"import numpy as np\ndef f():\n    {body}\n")
    return f"{path}:f"


def test_a_mapping_is_understood_like_an_archive_and_not_copied_where_it_is_aligned():
    space = np.zeros(6 + ALIGNMENT // 4, np.float32)
    start = -space.ctypes.data % ALIGNMENT // 4
    array = space[start : start + 6].reshape(3, 2)
    samples = load_mapping({"x": array}, [X], "inputs").samples
    assert samples.ids == ("inputs[0]", "inputs[1]", "inputs[2]")
    assert np.shares_memory(samples[0]["x"], array)
    assert not np.shares_memory(samples[1]["x"], array)


def test_a_sequence_holds_one_sample_each():
    samples = load_sequence([{"x": np.ones((5, 2))}, {"x": np.zeros(2)}], [X], "inputs").samples
    assert [s["x"].shape for s in samples] == [(5, 2), (1, 2)]
    assert samples[0]["x"].dtype == np.float32


def test_values_in_memory_are_checked_at_once():
    bad = np.array([[1, 2], [3, np.inf]], np.float32)
    with pytest.raises(CaseError, match=r"inputs\[1\]: input 'x' holds 0 NaN and 1 inf"):
        load_mapping({"x": bad}, [X], "inputs")
    with pytest.raises(CaseError, match=r"inputs\[1\]: input 'x' holds 0 NaN and 1 inf"):
        load_sequence([{"x": row} for row in bad], [X], "inputs")


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([], "inputs is empty; expected at least one sample"),
        ([np.ones(2)], r"inputs\[0\] is of type ndarray; expected a dictionary"),
        (np.ones(2), "The inputs are of type ndarray; expected a path"),
        (None, "The inputs are of type NoneType"),
        ([{"x": np.ones((1, 2, 2))}], r"inputs\[0\]: input 'x' has rank 3"),
        ([{"x": np.ones(2)}, {}], r"inputs\[1\] holds no arrays; expected 'x'"),
        ([{"x": np.array([None, {}])}], r"inputs\[0\]: input 'x' has dtype Python objects"),
    ],
)
def test_bad_sequences_are_errors(items, message):
    with pytest.raises(CaseError, match=message):
        load_sequence(items, [X], "inputs")


def test_a_stream_may_fill_the_same_array_again(tmp_path):
    source = stream(tmp_path, "a = np.zeros(2)\n    for a[0] in range(3): yield {'x': a}")
    samples = load_stream(source, [X]).samples
    assert samples.ids == ("data.py:f[0]", "data.py:f[1]", "data.py:f[2]")
    assert [s["x"][0, 0] for s in samples] == [0, 1, 2]


@pytest.mark.parametrize(("count", "ends"), [(3, True), (4, False)])
def test_a_stream_may_yield_as_many_samples_as_an_array_may_hold(
    tmp_path, monkeypatch, count, ends
):
    monkeypatch.setattr("halfwise.inputs.MOST_SAMPLES", 3)
    source = stream(tmp_path, f"for i in range({count}): yield {{'x': np.ones(2)}}")
    with nullcontext() if ends else pytest.raises(CaseError, match="does not stop"):
        assert len(load_stream(source, [X]).samples) == count


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("yield np.ones(2)", r"data.py:f\[0\] is of type ndarray; expected a dictionary"),
        ("return []", "data.py:f is empty"),
        ("yield {'x': np.full(2, np.nan)}", r"data.py:f\[0\]: input 'x' holds 2 NaN"),
        ("raise OSError('gone')", "raised OSError: gone"),
    ],
)
def test_bad_streams_are_errors(tmp_path, body, message):
    with pytest.raises(CaseError, match=message):
        load_stream(stream(tmp_path, body), [X])
