import numpy as np
import onnx
import onnx.parser
import pytest
from PIL import Image
from sklearn.datasets import load_sample_images

from halfwise import compare_inputs
from halfwise.errors import CaseError, UsageError

MODEL = """<ir_version: 8, opset_import: ["": 17]>
g (float[1, 3, 24, 24] x) => (float[1, 3] y) { y = ReduceMean<axes = [2, 3], keepdims = 0>(x) }"""


@pytest.fixture(scope="module")
def photos():
    return [
        np.asarray(Image.fromarray(photo[:, start : start + 400]).resize((96, 72)))
        for photo in load_sample_images()["images"]
        for start in (0, 200)
    ]


@pytest.fixture
def raw(tmp_path, photos):
    folder = tmp_path / "photos"
    folder.mkdir()
    for i, photo in enumerate(photos):
        Image.fromarray(photo).save(folder / f"{i}.png")
    return folder


def small(path, how=Image.Resampling.BILINEAR):
    with Image.open(path) as image:
        x = np.asarray(image.resize((24, 24), how), np.float32)
    return x.transpose(2, 0, 1)[None] / 255


def swapped(path):
    return small(path)[:, ::-1]


def compared(*pipelines, **options):
    return compare_inputs(*pipelines, **options)


def kinds(report, number=0):
    return [d.kind for d in report.inputs[number].differences]


def test_two_functions_on_images(raw):
    report = compared(small, swapped, samples=raw)
    assert kinds(report) == ["channels"]
    assert (report.a, report.b, report.same) == ("small", "swapped", False)
    assert report.inputs[0].exact
    assert compared(small, small, samples=raw).same


def test_kernels_are_named_by_raw_images(raw):
    def cubic(path):
        return small(path, Image.Resampling.BICUBIC)

    report = compared(small, cubic, samples=raw)
    assert kinds(report) == ["kernel"]
    assert "bicubic" in report.inputs[0].pipeline_b
    arrays = [{"x": np.concatenate([f(p) for p in sorted(raw.iterdir())])} for f in (small, cubic)]
    assert kinds(compared(*arrays)) == ["resampling"]
    assert kinds(compared(*arrays, samples=raw)) == ["kernel"]


def test_what_it_does_to_a_model(raw):
    model = onnx.parser.parse_model(MODEL)
    report = compared(small, swapped, samples=raw, model=model)
    assert report.outputs["y"].max_abs > 0.01
    assert report.outputs_mapped["y"].max_abs == 0
    assert compared(small, small, samples=raw, model=model).outputs_mapped is None


def test_a_pipeline_that_the_model_does_not_take(raw):
    model = onnx.parser.parse_model(MODEL)

    def nhwc(path):
        return small(path).transpose(0, 2, 3, 1)

    report = compared(nhwc, small, samples=raw, model=model)
    assert report.outputs is None
    assert report.outputs_mapped["y"].max_abs == 0
    assert any("does not take A" in note for note in report.notes)
    report = compared(small, nhwc, samples=raw, model=model)
    assert (report.outputs, report.outputs_mapped) == (None, None)


def test_several_inputs_are_paired_by_name(tmp_path):
    rows = np.random.default_rng(1).normal(size=(4, 6)).astype(np.float32)
    code = tmp_path / "code.py"
    a, b = {"x": rows, "y": rows}, {"y": rows * 2, "x": rows * 3}
    report = compared(a, b, code=code)
    assert [(each.name, kinds(report, i)) for i, each in enumerate(report.inputs)] == [
        ("x", ["scale"]),
        ("y", ["scale"]),
    ]
    text = code.read_text()
    assert "def a_to_b_0" in text
    assert "def a_to_b_1" in text
    with pytest.raises(CaseError, match="expected the same names"):
        compared(a, {"z": rows, "x": rows})


def test_the_code_file(tmp_path, raw):
    code = tmp_path / "code.py"
    report = compared(small, swapped, samples=raw, code=code)
    assert code.read_text() == report.inputs[0].code
    with pytest.raises(UsageError, match="exists"):
        compared(small, swapped, samples=raw, code=code)
    with pytest.raises(UsageError, match="no folder"):
        compared(small, swapped, samples=raw, code=tmp_path / "none" / "code.py")
    compared(small, small, samples=raw, code=tmp_path / "same.py")
    assert "are the same" in (tmp_path / "same.py").read_text()


def test_other_numbers_of_samples(raw):
    rows = np.ones((4, 6), np.float32)
    with pytest.raises(CaseError, match="A 4, B 3"):
        compared({"x": rows}, {"x": rows[:3]})
    with pytest.raises(CaseError, match="the raw samples 4"):
        compared({"x": rows[:3]}, {"x": rows[:3]}, samples=raw)


def test_samples_that_lack_an_input(raw):
    def uneven(path):
        x = small(path)
        return {"x": x, "y": x} if "0" in path.name else {"x": x}

    with pytest.raises(CaseError, match="has no input 'y'"):
        compared(uneven, uneven, samples=raw)
