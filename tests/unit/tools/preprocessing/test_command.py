from typing import Any

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_sample_images

from halfwise import compare_inputs
from halfwise.errors import CaseError, UsageError
from halfwise.records import InputComparison, InputDifference, PreprocessingReport
from halfwise.tools.preprocessing.command import compared, load_made, load_raw
from tests.unit.inputs.test_array_files import bomb


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

    with pytest.raises(CaseError, match=r"1\.png holds only 'x'"):
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
    assert shown.parts[0].lines == (
        "As they are, the values differ by at most 0; one of 255 levels is 0.004.",
    )


def test_differences_with_evidence_code_and_what_is_left():
    shown = reported(report_of(comparison(CHANNELS, code="import numpy\nx = 1\n")))
    assert shown.title == "1 difference: channels"
    assert shown.passed is False
    assert shown.parts[0].lines[:2] == (
        "error: B has the channels in reverse order.",
        "  → measured",
    )
    assert shown.parts[0].lines[-1].endswith("this explains all.")
    assert shown.parts[1].lines == ("import numpy", "x = 1")
    assert shown.parts[1].whole


def test_what_is_only_stored_differently():
    axis = CHANNELS.model_copy(update={"kind": "batch-axis", "severity": "info"})
    shown = reported(report_of(comparison(axis, shape_b=(3, 9, 9), name_b="y")))
    assert shown.title == "Both pipelines give the same inputs, stored differently: batch-axis"
    assert shown.parts[0].title == (
        "Input x, in B y: 2 samples of 1×3×9×9 float32, in B 3×9×9 float32"
    )


def test_notes():
    shown = reported(report_of(comparison(CHANNELS, exact=False), notes=("a note",)))
    assert shown.parts[1].lines == ("a note",)


def test_names_cannot_repaint_the_terminal():
    shown = reported(report_of(comparison(name="\x1b[2Jx", name_b="\x1b[2Jx"), a="\x1b"))
    assert "\x1b" not in shown.parts[0].title + shown.about


def test_images_are_given_as_paths(tmp_path):
    for i, name in enumerate(("b.png", "a.bmp")):
        Image.new("RGB", (4, 5), (i, 10, 20)).save(tmp_path / name)
    raw: Any = load_raw(tmp_path)
    assert [name for name, _ in raw.named] == ["a.bmp", "b.png"]
    assert raw.named[0][1] == tmp_path / "a.bmp"
    assert load_raw(tmp_path / "b.png").named[0][0] == "b.png"


def test_arrays_are_given_as_paths_too(tmp_path):
    for i in range(2):
        np.save(tmp_path / f"{i}.npy", np.full((5, 6, 3), i))
    raw: Any = load_raw(tmp_path)
    assert raw.named == [(f"{i}.npy", tmp_path / f"{i}.npy") for i in range(2)]


def test_nothing_usable(tmp_path):
    (tmp_path / "a.txt").write_text("x")
    (tmp_path / "sub").mkdir()
    for source in (tmp_path / "sub", tmp_path / "a.txt", tmp_path / "none.npy"):
        with pytest.raises(CaseError, match="no raw samples"):
            load_raw(source)


@pytest.fixture
def arrays(tmp_path):
    (tmp_path / "raw").mkdir()
    for i, x in enumerate(np.arange(3 * 9 * 9 * 3.0).reshape(3, 9, 9, 3)):
        np.save(tmp_path / "raw" / f"{i}.npy", x)
    return load_raw(tmp_path / "raw")


@pytest.mark.parametrize(
    ("shape", "count", "sample"),
    [
        ((4, 3, 9, 9), 4, (1, 3, 9, 9)),
        ((4, 1, 3, 9, 9), 4, (1, 3, 9, 9)),
        ((3, 9, 9), 1, (3, 9, 9)),
        ((9, 9, 3), 1, (9, 9, 3)),
        ((6, 9, 9), 6, (1, 9, 9)),
        ((6, 5), 6, (1, 5)),
        ((6,), 1, (6,)),
    ],
)
def test_how_many_samples_an_array_holds(tmp_path, shape, count, sample):
    np.savez(tmp_path / "a.npz", x=np.ones(shape, np.float32))
    for source in (tmp_path / "a.npz", {"x": np.ones(shape, np.float32)}):
        loaded = load_made(source, None)
        assert len(loaded.samples) == count
        assert loaded.samples[count - 1]["x"].shape == sample


def test_types_are_kept(tmp_path):
    np.save(tmp_path / "a.npy", np.ones((2, 3, 9, 9), np.uint8))
    loaded = load_made(tmp_path / "a.npy", None)
    assert loaded.samples[0]["a"].dtype == np.uint8
    assert not any(note.severity == "warning" for note in loaded.notes)


def test_a_folder_of_files(tmp_path):
    for i in range(3):
        np.savez(tmp_path / f"{i}.npz", x=np.full((1, 3, 9, 9), i), y=np.ones((1, 4)))
    loaded = load_made(tmp_path, None)
    assert loaded.samples[2]["x"].max() == 2
    assert set(loaded.samples[0]) == {"x", "y"}


def test_functions_are_called_with_each_raw_sample(tmp_path, arrays):
    code = "import numpy as np\n\n\ndef half(path):\n    return np.load(path) / 2\n"
    (tmp_path / "prep.py").write_text(code)
    for source in (f"{tmp_path}/prep.py:half", lambda path: {"input": np.load(path) / 2}):
        loaded = load_made(source, arrays)
        assert loaded.samples.ids == ("0.npy", "1.npy", "2.npy")
        assert np.array_equal(loaded.samples[2]["input"], np.load(arrays.named[2][1]) / 2)


def test_a_function_may_fill_one_array_again(arrays):
    buffer = np.empty((9, 9, 3))

    def fill(path):
        buffer[:] = np.load(path)
        return buffer

    samples = load_made(fill, arrays).samples
    assert not np.array_equal(samples[0]["input"], samples[1]["input"])


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (None, "expected numbers"),
        ({}, "no arrays"),
        (np.full(3, np.nan), "3 NaN"),
        (np.array(["a"]), "expected numbers"),
        (np.zeros(0), "expected numbers"),
    ],
)
def test_what_a_function_must_not_return(arrays, result, said):
    with pytest.raises(CaseError, match=said):
        load_made(lambda _: result, arrays)


def test_bad_sources(tmp_path, arrays):
    with pytest.raises(UsageError, match="there are no raw samples"):
        load_made(np.load, None)
    (tmp_path / "a.txt").write_text("x")
    np.savez(tmp_path / "text.npz", x=np.array(["a"]))
    for source, said in (
        (tmp_path / "none.npz", "to compare"),
        (tmp_path / "a.txt", "found .txt to compare"),
        (tmp_path / "text.npz", "expected numbers"),
        ({"x": np.zeros((2, 0))}, "expected numbers"),
    ):
        with pytest.raises(CaseError, match=said):
            load_made(source, arrays)


def test_an_archive_of_too_many_samples_that_were_made_is_not_unpacked(tmp_path):
    path = bomb(tmp_path / "d.npz", (1 << 27, 1, 8))
    with pytest.raises(CaseError, match="holds 134,217,728 samples"):
        load_made(path, None)


def test_an_archive_without_arrays_is_told(tmp_path):
    np.savez(tmp_path / "d.npz")
    with pytest.raises(CaseError, match="no arrays"):
        load_made(tmp_path / "d.npz", None)
    with pytest.raises(CaseError, match="no arrays"):
        load_made({}, None)


def test_raw_samples_of_several_inputs(tmp_path):
    for i, name in enumerate(("left", "right")):
        (tmp_path / name).mkdir()
        (tmp_path / f"{name}_made").mkdir()
        for k in range(2):
            Image.new("RGB", (9, 9), (i, k, 3)).save(tmp_path / name / f"{k}.png")
            np.save(tmp_path / f"{name}_made" / f"{k}.npy", np.full((1, 3, 9, 9), 10 * i + k))
    raw: Any = load_raw(f"left={tmp_path}/left,right={tmp_path}/right")
    assert [name for name, _ in raw.named] == ["0.png", "1.png"]
    assert raw.named[1][1] == {n: tmp_path / n / "1.png" for n in ("left", "right")}

    def prepared(paths: Any) -> Any:
        return {name: np.asarray(Image.open(path)) for name, path in paths.items()}

    made = load_made(prepared, raw).samples
    assert made[1]["right"][0, 0].tolist() == [1, 1, 3]
    stored = load_made(f"left={tmp_path}/left_made,right={tmp_path}/right_made", None).samples
    assert [s["right"][0, 0, 0, 0] for s in stored] == [10, 11]
