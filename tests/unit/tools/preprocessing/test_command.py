from typing import Any

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_sample_images

from halfwise import compare_inputs
from halfwise.errors import CaseError, UsageError
from halfwise.records import InputComparison, InputDifference, PreprocessingReport
from halfwise.tools.preprocessing.command import compared


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


def kinds(report, number=0):
    return [d.kind for d in report.inputs[number].differences]


def test_two_functions_on_images(raw):
    report = compare_inputs(small, swapped, samples=raw)
    assert kinds(report) == ["channels"]
    assert (report.a, report.b, report.same) == ("small", "swapped", False)
    assert report.inputs[0].exact
    assert compare_inputs(small, small, samples=raw).same


def test_kernels_are_named_by_raw_images(raw):
    def cubic(path):
        return small(path, Image.Resampling.BICUBIC)

    report = compare_inputs(small, cubic, samples=raw)
    assert kinds(report) == ["kernel"]
    assert "bicubic" in report.inputs[0].differences[0].b
    arrays = [{"x": np.concatenate([f(p) for p in sorted(raw.iterdir())])} for f in (small, cubic)]
    assert kinds(compare_inputs(*arrays)) == ["resampling"]
    assert kinds(compare_inputs(*arrays, samples=raw)) == ["kernel"]


def test_several_inputs_are_paired_by_name(tmp_path):
    rows = np.random.default_rng(1).normal(size=(4, 6)).astype(np.float32)
    code = tmp_path / "code.py"
    a, b = {"x": rows, "y": rows}, {"y": rows * 2, "x": rows * 3}
    report = compare_inputs(a, b, code=code)
    assert [(each.name, kinds(report, i)) for i, each in enumerate(report.inputs)] == [
        ("x", ["scale"]),
        ("y", ["scale"]),
    ]
    text = code.read_text()
    assert "def a_to_b_0" in text
    assert "def a_to_b_1" in text
    with pytest.raises(CaseError, match="expected the same names"):
        compare_inputs(a, {"z": rows, "x": rows})


def test_the_code_file(tmp_path, raw):
    code = tmp_path / "code.py"
    report = compare_inputs(small, swapped, samples=raw, code=code)
    assert code.read_text() == report.inputs[0].code
    with pytest.raises(UsageError, match="exists"):
        compare_inputs(small, swapped, samples=raw, code=code)
    with pytest.raises(UsageError, match="no folder"):
        compare_inputs(small, swapped, samples=raw, code=tmp_path / "none" / "code.py")
    compare_inputs(small, small, samples=raw, code=tmp_path / "same.py")
    assert "are the same" in (tmp_path / "same.py").read_text()


def test_other_numbers_of_samples(raw):
    rows = np.ones((4, 6), np.float32)
    with pytest.raises(CaseError, match="A 4, B 3"):
        compare_inputs({"x": rows}, {"x": rows[:3]})
    with pytest.raises(CaseError, match="the raw samples 4"):
        compare_inputs({"x": rows[:3]}, {"x": rows[:3]}, samples=raw)


def test_samples_that_lack_an_input(raw):
    def uneven(path):
        x = small(path)
        return {"x": x, "y": x} if "0" in path.name else {"x": x}

    with pytest.raises(CaseError, match="has no input 'y'"):
        compare_inputs(uneven, uneven, samples=raw)


CHANNELS = InputDifference(
    kind="channels",
    severity="error",
    sentence="B has the channels in reverse order.",
    a="0, 1, 2",
    b="2, 1, 0",
    evidence="measured",
)


def comparison(*differences, **changed):
    values = {
        "name": "x",
        "name_b": "x",
        "samples": 2,
        "shape_a": (1, 3, 9, 9),
        "shape_b": (1, 3, 9, 9),
        "dtype_a": "float32",
        "dtype_b": "float32",
        "differences": differences,
        "residual_max": 0.0,
        "level": 0.004,
        "exact": True,
    }
    return InputComparison.model_validate(values | changed)


def report_of(*inputs, **changed):
    return PreprocessingReport.model_validate(
        {"a": "a.npz", "b": "b.npz", "inputs": inputs} | changed
    )


def reported(report) -> Any:
    return compared(report)


def test_nothing_differs():
    shown = reported(report_of(comparison()))
    assert shown.title == "Both pipelines give the same inputs"
    assert shown.passed
    assert shown.parts[0].title == "Input x: 2 samples of 1×3×9×9 float32"
    assert shown.parts[0].lines == ("No difference: nothing between the values.",)


def test_differences_with_evidence_code_and_what_is_left():
    shown = reported(report_of(comparison(CHANNELS, code="import numpy\nx = 1\n")))
    assert shown.title == "1 difference: channels"
    assert shown.passed is False
    assert shown.parts[0].lines[:3] == (
        "error: B has the channels in reverse order.",
        "  → A: 0, 1, 2; B: 2, 1, 0",
        "  → measured",
    )
    nothing = "After the code below, nothing is left: this explains all of it."
    assert shown.parts[0].lines[-1] == nothing
    assert shown.parts[1].lines == ("import numpy", "x = 1")
    assert shown.parts[1].whole


def test_what_is_only_stored_differently():
    axis = CHANNELS.model_copy(update={"kind": "batch-axis", "severity": "info"})
    shown = reported(report_of(comparison(axis, shape_b=(3, 9, 9), name_b="y")))
    assert shown.title == "Both pipelines give the same inputs, stored differently: batch-axis"
    assert shown.parts[0].title == (
        "Input x (in B y): 2 samples of 1×3×9×9 float32 and 3×9×9 float32"
    )


def test_notes():
    shown = reported(report_of(comparison(CHANNELS, exact=False), notes=("a note",)))
    assert shown.parts[1].lines == ("a note",)


def test_names_cannot_repaint_the_terminal():
    shown = reported(report_of(comparison(name="\x1b[2Jx", name_b="\x1b[2Jx"), a="\x1b"))
    assert "\x1b" not in shown.parts[0].title + shown.about
