import numpy as np
import pytest
from PIL import Image

from halfwise.tools.preprocessing.resampling import METHODS, resize
from halfwise.tools.preprocessing.resizing import differ, fit_resizing
from tests.unit.tools.preprocessing.conftest import planar, resized


def fitted(raws, made):
    return fit_resizing(raws, made)


@pytest.fixture
def raws(photos):
    return [planar(photo) for photo in photos[:2]]


@pytest.mark.parametrize("how", ["BILINEAR", "BICUBIC", "LANCZOS", "BOX", "HAMMING", "NEAREST"])
def test_pillows_kernels_are_recognised(photos, raws, how):
    made = [planar(resized(p, 90, Image.Resampling[how])) for p in photos[:2]]
    found = fitted(raws, made)
    assert found.method.kernel == how.lower()
    assert "Pillow" in found.method.used_by
    assert found.error < 1
    rows, columns = found.axes[0]
    assert (rows.raw, rows.resized, columns.raw, columns.resized) == (200, 90, 300, 90)


@pytest.mark.parametrize("method", [m for m in METHODS if not m.antialias], ids=str)
def test_methods_without_antialiasing_are_recognised(raws, method):
    made = [resize(raw, (90, 90), method) for raw in raws]
    assert fitted(raws, made).method == method


def test_a_crop_after_the_resizing_through_a_normalisation(photos, raws):
    made = []
    for photo in photos[:2]:
        rows, columns = (round(n * 110 / min(photo.shape[:2])) for n in photo.shape[:2])
        small = np.asarray(
            Image.fromarray(photo).resize((columns, rows), Image.Resampling.BILINEAR)
        )
        made.append((planar(small)[:, 5:101, 7:103] / 255 - 0.4) / 0.2)
    found = fitted(raws, made)
    assert found.method == METHODS[0]
    rows, columns = found.axes[0]
    assert (rows.resized, rows.start, rows.length) == (110, 5, 96)
    assert (columns.resized, columns.start, columns.length) == (165, 7, 96)
    assert "crop 96×96 at row 5, column 7" in str(found)


def test_a_crop_before_the_resizing(photos, raws):
    made = [planar(resized(photo[20:180, 33:193], 90)) for photo in photos[:2]]
    rows, columns = fitted(raws, made).axes[0]
    assert (rows.cut, rows.kept, columns.cut, columns.kept) == (20, 160, 33, 160)


def test_other_images_are_not_fitted(raws):
    assert fitted(raws, [raws[1][:, :90, :90], raws[0][:, :90, :90]]) is None


def test_what_differs(photos, raws):
    def fit(how):
        return fitted(raws, [planar(resized(p, 90, how)) for p in photos[:2]])

    bilinear, bicubic = fit(Image.Resampling.BILINEAR), fit(Image.Resampling.BICUBIC)
    assert differ(bilinear, bicubic)
    assert not differ(bilinear, bilinear)
    assert not differ(bilinear, bicubic, least=100)
