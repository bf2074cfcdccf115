import sys
from typing import Any

import numpy as np
import pytest
from PIL import Image

from halfwise.errors import CaseError
from halfwise.inputs.raw import load_raw
from tests.unit.inputs.test_files import bomb


def test_images_are_given_as_paths_and_decoded(tmp_path):
    for i, name in enumerate(("b.png", "a.bmp")):
        Image.new("RGB", (4, 5), (i, 10, 20)).save(tmp_path / name)
    raw: Any = load_raw(tmp_path)
    assert raw.ids == ("a.bmp", "b.png")
    assert raw.argument(0) == tmp_path / "a.bmp"
    assert raw.pixels(1).shape == (5, 4, 3)
    assert raw.pixels(1)[0, 0].tolist() == [0, 10, 20]
    assert load_raw(tmp_path / "b.png").ids == ("b.png",)


def test_an_image_that_cannot_be_decoded_is_left_to_the_functions(tmp_path):
    (tmp_path / "a.png").write_bytes(b"none")
    assert load_raw(tmp_path).pixels(0) is None


def test_without_pillow(tmp_path, monkeypatch):
    Image.new("RGB", (4, 5)).save(tmp_path / "a.png")
    monkeypatch.setitem(sys.modules, "PIL", None)
    raw = load_raw(tmp_path)
    assert raw.pixels(0) is None
    assert "Pillow is missing" in raw.notes[0]


def test_arrays(tmp_path):
    np.savez(tmp_path / "many.npz", x=np.zeros((3, 9, 9, 3)), y=np.ones((5, 6, 3)))
    raw: Any = load_raw(tmp_path / "many.npz")
    assert raw.ids == ("many.npz:x[0]", "many.npz:x[1]", "many.npz:x[2]", "many.npz:y")
    assert raw.argument(3).shape == raw.pixels(3).shape == (5, 6, 3)
    folder = tmp_path / "each"
    folder.mkdir()
    for i in range(2):
        np.save(folder / f"{i}.npy", np.zeros((5, 6, 3)))
    assert load_raw(folder).ids == ("0.npy", "1.npy")


def test_nothing_usable(tmp_path):
    (tmp_path / "a.txt").write_text("x")
    np.savez(tmp_path / "empty.npz")
    for source in (tmp_path, tmp_path / "a.txt", tmp_path / "none.npz"):
        if source == tmp_path:
            (tmp_path / "sub").mkdir()
            source = tmp_path / "sub"  # noqa: PLW2901
        with pytest.raises(CaseError, match="no raw samples"):
            load_raw(source)
    with pytest.raises(CaseError, match="holds no sample"):
        load_raw(tmp_path / "empty.npz")


def test_functions_may_work_in_place(tmp_path):
    np.save(tmp_path / "a.npy", np.ones((2, 4, 4, 3), np.float32))
    raw = load_raw(tmp_path / "a.npy")
    np.asarray(raw.argument(1))[:] = 2
    assert np.array_equal(np.asarray(raw.argument(1)), np.ones((4, 4, 3)))


def test_an_archive_of_too_many_samples_is_not_unpacked(tmp_path):
    path = bomb(tmp_path / "d.npz", (1 << 27, 1, 8, 3))
    with pytest.raises(CaseError, match="holds 134,217,728 samples"):
        load_raw(path)
