import numpy as np
import pytest
from PIL import Image

from halfwise.errors import CaseError, UsageError
from halfwise.inputs.images import load_images, load_paired_images
from halfwise.inputs.spec import InputSpec

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


def photo(path, value=200):
    path.parent.mkdir(exist_ok=True)
    Image.new("RGB", (4, 5), (value, 10, 20)).save(path)
    return path


def test_each_image_goes_through_the_function(tmp_path, prep):
    files = [photo(tmp_path / "a.png", 51), photo(tmp_path / "b.bmp", 102)]
    loaded = load_images(files, [IMAGE], f"{prep}:load")
    assert loaded.samples.ids == ("a.png", "b.bmp")
    assert loaded.samples[1]["image"].shape == (1, 3, 5, 4)
    assert loaded.samples[1]["image"][0, 0, 0, 0] == np.float32(0.4)
    assert "prep.py:load" in loaded.notes[0]
    assert loaded.notes[1] == "2 samples"


def test_a_function_may_return_all_inputs(tmp_path, prep):
    loaded = load_images([photo(tmp_path / "a.png")], [IMAGE, OTHER], f"{prep}:split")
    assert set(loaded.samples[0]) == {"image", "other"}


def test_paired_images_go_through_the_function_together(tmp_path, prep):
    folders = {
        "image": [photo(tmp_path / "image" / "1.png", 51)],
        "other": [photo(tmp_path / "other" / "1.png", 102)],
    }
    samples = load_paired_images(folders, [IMAGE, OTHER], f"{prep}:both").samples
    assert samples[0]["image"][0, 0, 0, 0] == np.float32(0.2)
    assert samples[0]["other"][0, 0, 0, 0] == np.float32(0.4)


def test_images_need_a_function(tmp_path):
    with pytest.raises(UsageError, match="--preprocess is missing"):
        load_images([photo(tmp_path / "a.png")], [IMAGE], None)


def test_a_broken_image_is_named_with_the_error_of_the_function(tmp_path, prep):
    bad = tmp_path / "bad.png"
    bad.write_bytes(b"no image")
    files = [photo(tmp_path / "a.png"), bad]
    samples = load_images(files, [IMAGE], f"{prep}:load").samples
    with pytest.raises(CaseError, match=r"bad.png: .*UnidentifiedImageError.*prep.py, line 6"):
        samples[1]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("nothing", "a.png: .* returned a NoneType, expected an array"),
        ("grey", "a.png: input 'image' has rank 2"),
        ("nan", "a.png: input 'image' holds 60 NaN"),
        ("both", "a.png: .*AttributeError"),
        ("absent", "found no function called 'absent'"),
    ],
)
def test_bad_functions_are_errors(tmp_path, prep, function, message):
    with pytest.raises(CaseError, match=message):
        load_images([photo(tmp_path / "a.png")], [IMAGE], f"{prep}:{function}")


def test_several_inputs_need_a_dictionary(tmp_path, prep):
    with pytest.raises(CaseError, match="returned a ndarray, expected a dictionary"):
        load_images([photo(tmp_path / "a.png")], [IMAGE, OTHER], f"{prep}:load")
