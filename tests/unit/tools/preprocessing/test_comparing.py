import numpy as np
import pytest
from PIL import Image

from halfwise.errors import CaseError
from halfwise.tools.preprocessing.changes import transformation
from halfwise.tools.preprocessing.comparing import compare_arrays
from tests.unit.tools.preprocessing.conftest import resized

MEAN, DEVIATION = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])


def pipeline(photo, *, side=96, how=Image.Resampling.BILINEAR, channels=(0, 1, 2), nhwc=False):
    x = resized(photo, side, how)[..., list(channels)] / 255
    x = ((x - MEAN) / DEVIATION).astype(np.float32)
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


@pytest.mark.parametrize(
    ("function", "options", "kinds"),
    [
        (pipeline, {}, set()),
        (pipeline, {"channels": (2, 1, 0)}, {"channels"}),
        (pipeline, {"nhwc": True}, {"layout"}),
        (pipeline, {"channels": (1, 0, 2)}, {"channels"}),
    ],
)
def test_what_explains_all(photos, function, options, kinds):
    a, b = made(photos, function), made(photos, function, **options)
    found = compare_arrays(a, b)
    assert {d.kind for d in found.differences} == kinds
    assert found.exact
    if kinds:
        gap = np.abs(transformation(found.code)(a[0]) - b[0]).max()
        assert gap == pytest.approx(0, abs=0.01)


def test_another_kernel_is_fine_detail(photos):
    a = made(photos, pipeline)
    b = made(photos, pipeline, how=Image.Resampling.LANCZOS, channels=(2, 1, 0))
    found = compare_arrays(a, b)
    assert [d.kind for d in found.differences] == ["channels", "resampling"]
    assert not found.exact


def test_types_and_layouts(photos):
    a = made(photos, pipeline)
    b = [resized(photo, 96) for photo in photos]
    found = compare_arrays(a, b)
    kinds = [d.kind for d in found.differences]
    assert kinds == ["dtype", "batch-axis", "layout", "scale", "mean", "deviation"]
    assert found.exact
    assert transformation(found.code)(a[1]).dtype == np.uint8
    assert np.array_equal(transformation(found.code)(a[1]), b[1])


def test_what_nothing_explains_is_not_passed_over(photos):
    a = made(photos, pipeline)
    b = [x.copy() for x in a]
    for x in b:
        x[..., 10:12, 10:12] += 1
    found = compare_arrays(a, b)
    assert found.differences[-1].kind == "values"


def test_inputs_that_are_no_images():
    rows = [np.arange(5.0) * i for i in (1, 2)]
    assert compare_arrays(rows, rows).differences == ()


def test_bright_and_dark_exchanged(photos):
    a = made(photos, pipeline)
    found = compare_arrays(a, [1 - x for x in a])
    assert {d.kind for d in found.differences} <= {"mean", "deviation", "scale"}
    assert found.exact


def test_other_numbers_of_channels(photos):
    a = made(photos, pipeline)
    more = [np.concatenate([x, x[:, :1] * 0 + 1], axis=1) for x in a]
    found = compare_arrays(more, a)
    assert [d.kind for d in found.differences] == ["channels"]
    assert found.exact
    found = compare_arrays(a, [x[:, 1:2] for x in a])
    assert [d.kind for d in found.differences] == ["channels"]
    assert found.exact


def test_constant_images():
    zeros = [np.zeros((1, 3, 32, 32), np.float32)] * 2
    assert compare_arrays(zeros, zeros).differences == ()
    found = compare_arrays(zeros, [x + 1 for x in zeros])
    assert [d.kind for d in found.differences] == ["mean"]


def test_samples_of_several_layouts_are_refused(photos):
    a = made(photos, pipeline)
    with pytest.raises(CaseError, match="Sample 1 of B has the shape"):
        compare_arrays(a, [a[0], a[1][0], a[2]])


def page(seed):
    """Return a page of one colour with a few coloured words, u8[64, 64, 3]."""
    rng = np.random.default_rng(seed)
    image = np.tile(rng.integers(180, 256, 3), (64, 64, 1))
    for row, column in rng.integers(4, 52, (12, 2)):
        image[row : row + 3, column : column + 8] = rng.integers(0, 200, (3, 8, 3))
    return image.astype(np.uint8)


@pytest.mark.parametrize(
    ("change", "kinds"),
    [
        (lambda x: x[:, ::-1], {"channels"}),
        (lambda x: (x - MEAN[:, None, None]) / DEVIATION[:, None, None], {"mean", "deviation"}),
    ],
)
def test_pages_of_one_colour_have_no_other_kernel(change, kinds):
    """Fits that leave out what is far off must not be left with the background alone."""
    images = [page(seed) for seed in range(4)]
    a = [np.ascontiguousarray(x.transpose(2, 0, 1)[None] / 255).astype(np.float32) for x in images]
    found = compare_arrays(a, [change(x).astype(np.float32) for x in a])
    assert {d.kind for d in found.differences} == kinds
    assert found.exact
    assert "resampling" not in found.code


@pytest.mark.parametrize("rows", [32, 16])
def test_noise_that_lies_nowhere_in_the_other_is_no_crash(rows):
    a = np.random.default_rng(0).random((4, 3, 32, 32)).astype(np.float32) * 255
    b = np.roll(a, 1, axis=3)[:, :, :rows]
    assert compare_arrays(list(a), list(b)).differences


@pytest.fixture
def rows():
    return list(np.random.default_rng(2).normal(size=(5, 4, 7)).astype(np.float32))


def test_rows_that_are_the_same(rows):
    found = compare_arrays(rows, rows)
    assert (found.differences, found.exact, found.code) == ((), True, "")


@pytest.mark.parametrize(
    ("change", "kinds"),
    [
        (lambda x: x * 2, ["scale"]),
        (lambda x: x + 1, ["mean"]),
        (lambda x: x.astype(np.float64), ["dtype"]),
        (lambda x: x * 3 - 2, ["scale", "mean"]),
    ],
)
def test_what_explains_rows(rows, change, kinds):
    other = [change(x) for x in rows]
    found = compare_arrays(rows, other)
    assert [d.kind for d in found.differences] == kinds
    assert found.exact
    made = transformation(found.code)(rows[3])
    assert np.allclose(made, other[3], atol=1e-5)
    assert made.dtype == other[3].dtype


def test_what_explains_no_rows(rows):
    found = compare_arrays(rows, [np.sin(9 * x) for x in rows])
    assert [d.kind for d in found.differences] == ["values"]
    assert not found.exact


def test_other_shapes(rows):
    found = compare_arrays(rows, [x[:2] for x in rows])
    assert [d.kind for d in found.differences] == ["shape"]
    assert not found.exact


def test_scalars():
    one, two = np.array(1, np.float32), np.array(3, np.float32)
    assert compare_arrays([one], [one]).differences == ()
    found = compare_arrays([one, two], [one * 2, two * 2])
    assert [d.kind for d in found.differences] == ["scale"]
    assert found.exact


def test_text_is_equal_or_not():
    words = [np.array(["a", "b"], dtype=object), np.array(["c"], dtype=object)]
    assert compare_arrays(words, words).differences == ()
    found = compare_arrays(words, [words[0], words[1] + "d"])
    assert [d.kind for d in found.differences] == ["values"]


def test_one_sample_of_another_shape():
    a, b = [np.ones(4), np.ones(5)], [np.ones(4), np.ones(6)]
    found = compare_arrays(a, b)
    assert [(d.kind, d.a, d.b) for d in found.differences] == [("shape", "(5,)", "(6,)")]
    assert not found.exact


def cropped(photo, *, down=0):
    factor = 110 / min(photo.shape[:2])
    rows, columns = (round(n * factor) for n in photo.shape[:2])
    x = np.asarray(Image.fromarray(photo).resize((columns, rows), Image.Resampling.BILINEAR))
    top, left = (rows - 96) // 2 + down, (columns - 96) // 2
    return x[top : top + 96, left : left + 96].transpose(2, 0, 1)[None].astype(np.float32)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"function": pipeline}, {"function": cropped}),
        ({"function": cropped}, {"function": cropped, "down": 20}),
        ({"function": pipeline}, {"function": pipeline, "side": 80}),
        ({"function": cropped}, {"function": pipeline, "side": 110}),
        ({"function": letterboxed}, {"function": pipeline}),
        ({"function": letterboxed}, {"function": letterboxed, "value": 0}),
        ({"function": letterboxed}, {"function": letterboxed, "start": True}),
        ({"function": letterboxed}, {"function": letterboxed, "start": True, "value": 7}),
    ],
)
def test_other_fits_frames_and_sizes_are_not_taken_apart(photos, one, other):
    found = compare_arrays(made(photos, **one), made(photos, **other))
    assert [d.kind for d in found.differences] == ["fit"]
    assert not found.exact
    assert found.code == ""
    found = compare_arrays(
        made(photos, **one), [x[:, ::-1, :, ::-1] for x in made(photos, **other)]
    )
    assert [d.kind for d in found.differences] == ["fit"]


def test_how_another_fit_is_stored_is_still_named(photos):
    a, b = made(photos, pipeline), made(photos, pipeline, side=80, nhwc=True)
    found = compare_arrays(a, b)
    assert [d.kind for d in found.differences] == ["layout", "fit"]
    assert transformation(found.code)(a[0]).shape == (1, 96, 96, 3)


def test_other_images(photos):
    a = made(photos, pipeline)
    noise = [x.astype(np.float32) for x in np.random.default_rng(1).normal(size=(3, 1, 3, 96, 96))]
    assert [d.kind for d in compare_arrays(a, noise).differences] == ["fit"]
    assert [d.kind for d in compare_arrays(a, a[::-1]).differences] == ["fit"]


def test_gamma_is_no_gain(photos):
    a = [resized(photo, 96).astype(np.float32) / 255 for photo in photos]
    found = compare_arrays(a, [x**2.2 for x in a])
    assert [d.kind for d in found.differences] == ["values"]


def test_a_frame_that_stays_is_not_touched(photos):
    a = made(photos, letterboxed)
    found = compare_arrays(a, [x * 16 for x in a])
    assert [d.kind for d in found.differences] == ["scale"]
    assert found.exact
    assert "padding" not in found.code
