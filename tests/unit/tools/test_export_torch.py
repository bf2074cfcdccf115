from pathlib import Path

import numpy as np
import pytest

from halfwise import api
from halfwise.errors import BackendMissing, BuildFailed, CaseError, UsageError
from halfwise.records import Exported
from halfwise.reporting.parts import Lines, Table
from halfwise.tools.export_torch import _resized
from halfwise.tools.export_torch import exported as reported
from halfwise.tools.pytorch import DynamicAxis
from tests.unit.tools.test_pytorch import HERE, needs_torch

FILE = Path(__file__).resolve().parents[2] / "torch_modules.py"
BATCH = ("image:0=batch", "scale:0=batch")


def exported(tmp_path, factory="small", *arguments, **options):
    return api.export_torch(f"{FILE}:{factory}", tmp_path / "m.onnx", *arguments, **options)


@pytest.mark.skipif(HERE, reason="PyTorch is here")
def test_without_torch(tmp_path):
    with pytest.raises(BackendMissing, match="PyTorch is not installed"):
        exported(tmp_path)
    assert list(tmp_path.iterdir()) == []


@needs_torch
@pytest.mark.parametrize(("exporter", "opset"), [("dynamo", 18), ("torchscript", 17)])
def test_parity_at_two_sizes_of_every_axis(tmp_path, exporter, opset):
    record = exported(tmp_path, dynamic=(*BATCH, "image:2"), exporter=exporter)
    sizes = [check.sizes for check in record.checks]
    assert sizes == [
        {"batch": 1, "image_2": 8},
        {"batch": 2, "image_2": 8},
        {"batch": 1, "image_2": 9},
    ]
    assert record.passed
    assert (record.opset, record.exporter) == (opset, exporter)
    assert record.inputs[0] == "image batch×3×image_2×8"


@needs_torch
def test_a_size_that_was_frozen_fails(tmp_path):
    record = exported(tmp_path, "frozen", dynamic=["x:1=width"], exporter="torchscript")
    assert not record.passed
    assert [check.error <= 1e-4 for check in record.checks] == [False, True]
    assert (tmp_path / "m.onnx").is_file()


@needs_torch
def test_sizes_are_those_that_were_given(tmp_path):
    with pytest.raises(CaseError, match="raised ValueError: odd on inputs of shape x 3×3") as found:
        exported(tmp_path, "picky", dynamic=["x:0=n"], exporter="torchscript")
    assert "--sizes" in found.value.hint
    assert list(tmp_path.iterdir()) == []
    options = {"dynamic": ["x:0=n"], "sizes": ["n=2,6"]}
    record = exported(tmp_path, "picky", exporter="torchscript", **options)
    assert [check.sizes for check in record.checks] == [{"n": 2}, {"n": 6}]


@needs_torch
def test_where_inputs_come_from(tmp_path):
    image, scale = np.ones((4, 3, 8, 8), np.float32), np.ones(4, np.float32)
    with pytest.raises(UsageError, match="--inputs is not given"):
        exported(tmp_path, "without_example")
    path = tmp_path / "x.npz"
    np.savez(path, image=image, scale=scale)
    record = exported(tmp_path, "without_example", path, exporter="torchscript")
    assert record.inputs == ("image 4×3×8×8", "scale 4")
    (tmp_path / "m.onnx").unlink()
    file = tmp_path / "data.py"
    file.write_text("import numpy as np\ndef x():\n    yield {'x': np.ones((2, 5), np.float32)}\n")
    exported(tmp_path, "frozen", f"{file}:x", exporter="torchscript")
    (tmp_path / "bad.npz").write_text("no")
    with pytest.raises(CaseError, match="cannot be read"):
        exported(tmp_path / "..", "frozen", tmp_path / "bad.npz")


@needs_torch
def test_what_tracing_takes_for_constant_is_told(tmp_path):
    record = exported(tmp_path, "branching", exporter="torchscript")
    assert record.passed
    assert len(record.traced) == 1
    assert record.traced[0].startswith("torch_modules.py, line ")
    assert "boolean" in record.traced[0]


@needs_torch
def test_the_exporter_fails(tmp_path):
    with pytest.raises(BuildFailed, match="dynamo exporter failed") as caught:
        exported(tmp_path, "branching")
    assert "\x1b" not in caught.value.message
    assert list(tmp_path.iterdir()) == []


@needs_torch
@pytest.mark.parametrize(
    "options",
    [
        {"dynamic": ["image"]},
        {"dynamic": ["image:9"]},
        {"dynamic": ["depth:0"]},
        {"dynamic": ["image:0=b"], "sizes": ["c=1,2"]},
        {"dynamic": ["image:0=b"], "sizes": ["b=1"]},
        {"opset": 16, "exporter": "torchscript"},
        {"opset": 17},
    ],
)
def test_options_that_mean_nothing(tmp_path, options):
    with pytest.raises(UsageError, match=r"--(dynamic|sizes|opset)"):
        exported(tmp_path, **options)
    assert list(tmp_path.iterdir()) == []


def test_arrays_take_other_sizes():
    axes = [DynamicAxis("x", 1, "n"), DynamicAxis("y", 0, "n")]
    arrays = {"x": np.arange(6).reshape(2, 3), "y": np.arange(3), "z": np.zeros(3)}
    resized = _resized(arrays, axes, {"n": 5})
    assert resized["x"].tolist() == [[0, 1, 2, 0, 1], [3, 4, 5, 3, 4]]
    assert resized["y"].tolist() == [0, 1, 2, 0, 1]
    assert resized["z"] is arrays["z"]
    assert _resized(arrays, axes, {"n": 1})["y"].tolist() == [0]


def record(**changed):
    values = {
        "module": "net.py:make",
        "model": "m.onnx",
        "exporter": "dynamo",
        "opset": 18,
        "nodes": 16,
        "inputs": ("x batch×3",),
        "outputs": ("y",),
        "tolerance": 1e-4,
        "checks": ({"sizes": {"batch": 1}, "error": 1e-7}, {"sizes": {"batch": 2}, "error": 2e-7}),
        "passed": True,
    }
    return Exported.model_validate(values | changed)


def test_an_export_that_is_right():
    shown = reported(record())
    assert shown.title == "m.onnx computes the same: off by at most 2e−7 of the largest value"
    assert shown.passed
    assert shown.about == "net.py:make · dynamo exporter · opset 18 · 16 nodes · 0.0001 is allowed"
    table, inputs = shown.parts
    assert isinstance(table, Table)
    assert table.rows == (("1", "1e−7"), ("2", "2e−7"))
    assert inputs == Lines("Inputs", ("x batch×3",))


def test_an_export_that_is_wrong():
    broken = {"sizes": {"batch": 2}, "error": "Infinity", "problem": "it does not run\x1b"}
    shown = reported(record(passed=False, checks=(broken,)))
    assert "SOMETHING ELSE: off by at most inf" in shown.title
    assert shown.parts[1] == Lines("Problems", ("it does not run\N{REPLACEMENT CHARACTER}",))
    assert reported(record(checks=())).parts


def test_what_tracing_took_for_constant():
    shown = reported(record(traced=("net.py, line 7: Converting a tensor to a Python boolean",)))
    assert shown.passed
    title = "Traced as constants: other inputs may compute something else"
    line = "net.py, line 7: Converting a tensor to a Python boolean"
    assert shown.parts[1] == Lines(title, (line,))
