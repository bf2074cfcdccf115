import numpy as np
import pytest
from PIL import Image

from halfwise.tools.preprocessing.changes import transformation
from halfwise.tools.preprocessing.comparing import compare_arrays
from tests.unit.tools.preprocessing.conftest import resized

MEAN, DEVIATION = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])


def pipeline(photo, *, how=Image.Resampling.BILINEAR, channels=(0, 1, 2), flip=False, nhwc=False):
    x = resized(photo, 96, how)[..., list(channels)] / 255
    x = ((x - MEAN) / DEVIATION).astype(np.float32)
    x = x[:, ::-1] if flip else x
    return x[None] if nhwc else np.ascontiguousarray(x.transpose(2, 0, 1)[None])


def letterboxed(photo, *, value=114, start=False):
    factor = 96 / max(photo.shape[:2])
    rows, columns = (round(n * factor) for n in photo.shape[:2])
    frame = np.full((96, 96, 3), value, np.uint8)
    top, left = (0, 0) if start else ((96 - rows) // 2, (96 - columns) // 2)
    small = Image.fromarray(photo).resize((columns, rows), Image.Resampling.BILINEAR)
    frame[top : top + rows, left : left + columns] = np.asarray(small)
    return (frame.transpose(2, 0, 1)[None] / 255).astype(np.float32)


def made(photos, function, **options):
    return [function(photo, **options) for photo in photos]


@pytest.mark.parametrize("options", [{"value": 0}, {"start": True}, {"start": True, "value": 7}])
def test_padding(photos, options):
    found = compare_arrays(made(photos, letterboxed), made(photos, letterboxed, **options))
    assert {d.kind for d in found.differences} == {"padding"}
    assert len(found.differences) == len(options)


def cropped(photo, *, down=0, along=0, how=Image.Resampling.BILINEAR):
    factor = 110 / min(photo.shape[:2])
    rows, columns = (round(n * factor) for n in photo.shape[:2])
    x = np.asarray(Image.fromarray(photo).resize((columns, rows), how))
    top, left = (rows - 96) // 2 + down, (columns - 96) // 2 + along
    return x[top : top + 96, left : left + 96].transpose(2, 0, 1)[None].astype(np.float32)


def test_a_crop_that_begins_elsewhere(photos):
    a, b = made(photos, cropped), made(photos, cropped, down=-3, along=2)
    found = compare_arrays(a, b)
    assert [(d.kind, d.b) for d in found.differences] == [("crop", "(-3, 2)")]
    assert found.exact
    assert np.array_equal(transformation(found.code)(a[0])[..., 3:, :-2], b[0][..., 3:, :-2])
    b = made(photos, cropped, along=2, how=Image.Resampling.BICUBIC)
    found = compare_arrays(a, b, raws=photos)
    assert [d.kind for d in found.differences] == ["crop", "kernel"]
    assert found.differences[1].b == "bicubic with antialiasing"


def test_a_crop_against_the_whole_image(photos):
    found = compare_arrays(made(photos, pipeline), made(photos, cropped))
    assert [d.kind for d in found.differences][:2] == ["fit", "scale"]


def test_a_letterboxed_image_against_a_stretched_one(photos):
    found = compare_arrays(made(photos, letterboxed), made(photos, pipeline))
    assert "fit" in {d.kind for d in found.differences}


def test_other_images(photos):
    a = made(photos, pipeline)
    noise = [x.astype(np.float32) for x in np.random.default_rng(1).normal(size=(3, 1, 3, 96, 96))]
    assert [d.kind for d in compare_arrays(a, noise).differences] == ["values"]


def test_a_frame_that_stays_is_not_touched(photos):
    a = made(photos, letterboxed)
    found = compare_arrays(a, [x * 16 for x in a])
    assert [d.kind for d in found.differences] == ["scale"]
    assert found.exact
    assert "padding" not in found.code


@pytest.mark.parametrize("turned", [0, 1])
def test_kernels_behind_a_flip(photos, turned):
    ways = [{}, {"how": Image.Resampling.BICUBIC}]
    a, b = (made(photos, pipeline, flip=i == turned, **how) for i, how in enumerate(ways))
    found = compare_arrays(a, b, raws=photos)
    assert [d.kind for d in found.differences] == ["flip", "kernel"]
