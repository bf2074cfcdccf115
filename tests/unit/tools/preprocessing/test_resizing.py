import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper
from PIL import Image

from halfwise.tools.preprocessing.resizing import (
    METHODS,
    differ,
    fit_resizing,
    positions,
    resize,
    weights,
)
from tests.unit.tools.preprocessing.conftest import planar, resized

PILLOW = {
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
    "hamming": Image.Resampling.HAMMING,
    "nearest": Image.Resampling.NEAREST,
}


def method(kernel, convention="half-pixel", antialias=False):
    return next(
        m
        for m in METHODS
        if (m.kernel, m.convention, m.antialias) == (kernel, convention, antialias)
    )


@pytest.mark.parametrize("shape", [(50, 70), (331, 402)])
@pytest.mark.parametrize("kernel", PILLOW)
def test_as_pillow(photos, kernel, shape):
    expected = np.asarray(Image.fromarray(photos[0]).resize(shape[::-1], PILLOW[kernel]))
    found = resize(
        photos[0].transpose(2, 0, 1).astype(float),
        shape,
        method(kernel, antialias=kernel != "nearest"),
    )
    gap = np.abs(np.clip(found, 0, 255) - expected.transpose(2, 0, 1))
    # Pillow rounds and clips after each of two passes, in fixed point.
    assert gap.mean() < 0.5
    assert np.percentile(gap, 99) < 1.6


@pytest.mark.parametrize("side", [150, 224, 448])
def test_a_box_has_pillows_pixels_also_where_they_lie_on_its_ends(side):
    image = np.random.default_rng(0).random((300, 300), np.float32)
    expected = np.asarray(Image.fromarray(image).resize((side, side), Image.Resampling.BOX))
    found = resize(image.astype(float), (side, side), method("box", antialias=True))
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("shape", [(50, 70), (331, 402)])
@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("convention", ["half-pixel", "asymmetric", "align-corners"])
def test_as_onnx_runtime(photos, mode, convention, shape):
    value = helper.make_tensor_value_info
    node = helper.make_node(
        "Resize",
        ["x", "", "", "sizes"],
        ["y"],
        mode=mode,
        coordinate_transformation_mode=convention.replace("-", "_"),
    )
    graph = helper.make_graph(
        [node],
        "g",
        [value("x", TensorProto.FLOAT, [1, 3, None, None]), value("sizes", TensorProto.INT64, [4])],
        [value("y", TensorProto.FLOAT, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    image = photos[0].transpose(2, 0, 1).astype(np.float32)
    sizes = np.array([1, 3, *shape], np.int64)
    expected = session.run(None, {"x": image[None], "sizes": sizes})[0][0]
    found = resize(
        image.astype(float),
        shape,
        method({"linear": "bilinear", "cubic": "bicubic"}[mode], convention),
    )
    assert np.abs(found - expected).max() < 2e-2


def test_area_takes_the_mean_of_what_a_pixel_covers():
    found = weights(6, 4, method("area", antialias=True))
    assert np.allclose(found[0], [2 / 3, 1 / 3, 0, 0, 0, 0])


@pytest.mark.parametrize("each", METHODS, ids=str)
@pytest.mark.parametrize("sizes", [(9, 4), (4, 9), (5, 5), (3, 1)])
def test_rows_have_the_sum_one(each, sizes):
    source, target = sizes
    assert np.allclose(weights(source, target, each).sum(axis=1), 1)


def test_positions():
    assert positions(8, 4, "half-pixel") == (2, 0.5)
    assert positions(8, 4, "asymmetric") == (2, 0)
    assert positions(7, 4, "align-corners") == (2, 0)


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


def test_area_shares_pixels_also_where_it_enlarges():
    found = weights(2, 3, method("area", antialias=True))
    assert np.allclose(found, np.array([[1.0, 0.0], [0.5, 0.5], [0.0, 1.0]]))
