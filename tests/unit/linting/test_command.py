import onnx
import pytest

from halfwise.api import check_constraints, lint
from halfwise.errors import CaseError, UsageError
from halfwise.graph.model import network_from_proto
from halfwise.linting.command import precision_remarks
from halfwise.options.loading import load_model
from halfwise.reporting.notes import told
from tests.faults import numbers, tensorrt
from tests.faults.fault import registered


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "m.onnx"
    onnx.save(numbers.logarithm(True), path)
    return path


def test_a_model(model):
    report = lint(model)
    assert [f.rule for f in report.findings] == ["eps-vanishes"]
    assert (report.source, report.opset, report.nodes, report.tensorrt) == (str(model), 17, 2, None)
    assert lint(str(model), ignore=["eps-vanishes"]).findings == ()
    assert lint(model, ignore=["eps-vanishes", "eps-vanishes"]).ignored == ("eps-vanishes",)


def test_a_version(tmp_path):
    onnx.save(tensorrt.native_layer_norm(True), tmp_path / "m.onnx")
    assert lint(tmp_path / "m.onnx").findings == ()
    found = lint(tmp_path / "m.onnx", trt_version="8.5.3.1").findings
    assert [f.rule for f in found] == ["operator-unparsed"]


def test_bad_requests(model, tmp_path):
    with pytest.raises(UsageError, match="no rule called 'eps'") as raised:
        lint(model, ignore=["eps"])
    assert raised.value.hint == "docs/lint.md lists them."
    with pytest.raises(UsageError) as raised:
        lint(model, ignore=["eps-vanish"])
    assert raised.value.hint == "Did you mean eps-vanishes?"
    with pytest.raises(CaseError, match="is not a file"):
        lint(tmp_path / "none.onnx")


def test_constraints(model):
    report = check_constraints("eps:fp32,lag:fp32", trt_version="8.6", model=model)
    assert (report.keys, report.command, report.tensorrt) == (2, False, "8.6")
    assert [f.rule for f in report.findings] == ["unmatched"]
    assert report.corrected == "--layerPrecisions=eps:fp32"


def test_the_model_of_the_command(model):
    spec = ["trtexec", f"--onnx={model}", "--fp16", "--precisionConstraints=obey"]
    spec += ["--layerPrecisions=eps:fp32"]
    report = check_constraints(spec, trt_version="8.6")
    assert (report.findings, report.source, report.command) == ((), str(model), True)
    with pytest.raises(UsageError, match="No model is named"):
        check_constraints("eps:fp32", trt_version="8.6")


def test_constraints_on_models_that_nobody_else_takes(tmp_path):
    for fault in registered():
        (tmp_path / "m.onnx").write_bytes(fault.make(True).SerializeToString())
        report = check_constraints("*:fp32", trt_version="9.0", model=tmp_path / "m.onnx")
        assert report.keys == 1


def test_a_remark_on_what_matters_for_precision(tmp_path):
    for ill in (True, False):
        onnx.save(numbers.logarithm(ill), tmp_path / "my m.onnx")
        remarks = [*map(told, precision_remarks(load_model(tmp_path / "my m.onnx")))]
        assert len(remarks) == ill
        if ill:
            assert remarks[0].startswith("warning: the linter finds 1 × eps-vanishes in the file; ")
            assert f"halfwise lint '{tmp_path}/my m.onnx'" in remarks[0]
    assert precision_remarks(network_from_proto(numbers.logarithm(True))) == ()


def test_a_fault_of_the_linter_ends_nothing_else(model, monkeypatch):
    def fail(_):
        raise ZeroDivisionError

    monkeypatch.setattr("halfwise.linting.command.lint_model", fail)
    (remark,) = precision_remarks(load_model(model))
    assert (
        told(remark)
        == "warning: the linter failed on this file (ZeroDivisionError); please report it"
    )
