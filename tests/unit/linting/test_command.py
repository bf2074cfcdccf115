import msgspec
import onnx
import pytest

from halfwise.api import lint
from halfwise.errors import CaseError, UsageError
from halfwise.graph.loading import network_from_proto
from halfwise.linting import RULES, linted, precision_remarks
from halfwise.options.loading import load_model
from halfwise.records import Finding, LintReport, NodeName
from halfwise.reporting.parts import Lines
from halfwise.reporting.remarks import note_text
from tests.faults import numbers, quantisation, tensorrt
from tests.unit.graph.sketch import Sketch


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "m.onnx"
    onnx.save(numbers.huge_bound(True), path)
    return path


def test_a_model(model):
    report = lint(model)
    assert [f.rule for f in report.findings] == ["constant-beyond-fp16"]
    assert (report.source, report.opset, report.nodes, report.version) == (str(model), 17, 1, None)
    assert lint(str(model), ignore=["constant-beyond-fp16"]).findings == ()
    assert lint(model, ignore=["constant-beyond-fp16", "constant-beyond-fp16"]).ignored == (
        "constant-beyond-fp16",
    )


def test_a_version(tmp_path):
    onnx.save(tensorrt.native_layer_norm(True), tmp_path / "m.onnx")
    assert lint(tmp_path / "m.onnx").findings == ()
    found = lint(tmp_path / "m.onnx", trt_version="8.5.3.1").findings
    assert [f.rule for f in found] == ["operator-unparsed"]


def test_every_version_has_its_opsets(tmp_path):
    s = Sketch()
    y = s.op("Relu", s.input("x", [1]))
    proto = s.proto(y)
    proto.opset_import[0].version = 26
    onnx.save(proto, tmp_path / "late.onnx")
    assert lint(tmp_path / "late.onnx", trt_version="11").findings == ()
    for version, reads in (("10", "20"), ("v8.6", "17"), ("9.3.0.post12.dev1", "19")):
        (found,) = lint(tmp_path / "late.onnx", trt_version=version).findings
        assert f"read up to {reads}" in found.message, version


def test_bad_requests(model, tmp_path):
    with pytest.raises(UsageError, match="no rule called 'eps'") as raised:
        lint(model, ignore=["eps"])
    assert raised.value.hint.startswith("Rules: ")
    assert all(rule.id in raised.value.hint for rule in RULES)
    with pytest.raises(UsageError) as raised:
        lint(model, ignore=["constant-beyond"])
    assert raised.value.hint == "Did you mean constant-beyond-fp16?"
    with pytest.raises(CaseError, match="There is no file"):
        lint(tmp_path / "none.onnx")


def test_a_remark_on_what_a_run_does_not_show(tmp_path):
    for ill in (True, False):
        onnx.save(quantisation.boxes_and_scores(ill), tmp_path / "my m.onnx")
        remarks = [*map(note_text, precision_remarks(load_model(tmp_path / "my m.onnx")))]
        assert len(remarks) == ill
        if ill:
            assert remarks[0].startswith(
                "warning: the linter finds 1 × quantisation-joined in the file; "
            )
    assert len(precision_remarks(network_from_proto(quantisation.boxes_and_scores(True)))) == 1


def test_nodes_that_no_tensorrt_takes_are_told_by_what_is_wrong(tmp_path):
    s = Sketch(13)
    x = s.input("x", [1, 4, 4])
    ends = [s.op("Det", x, name=f"determinant_{i}") for i in range(3)]
    onnx.save(s.proto(*ends), tmp_path / "m.onnx")
    (remark,) = precision_remarks(load_model(tmp_path / "m.onnx"))
    assert remark.facts["more"] == 0
    told = note_text(remark)
    assert "(determinant_{0–2})" in told
    assert told.count("Det") == 1
    assert "…" not in told


def finding(**changed):
    values = {
        "rule": "constant-beyond-fp16",
        "severity": "warning",
        "node": "/a",
        "place": 3,
        "op": "Add",
        "message": "it is small",
        "fix": "Make it larger.",
        "source": "https://example.org",
    }
    return msgspec.convert(values | changed, Finding)


def lint_report(*findings, **changed):
    values = {
        "source": "m.onnx",
        "producer": "pytorch 2.9",
        "opset": 17,
        "nodes": 3,
        "target": "TensorRT",
        "version": "8.6",
        "findings": findings,
    }
    return msgspec.convert(values | changed, LintReport)


def test_findings_stand_under_their_severity_and_rule():
    shown = linted(
        lint_report(finding(severity="error", rule="checker", node=None), finding(), finding())
    )
    assert (shown.title, shown.passed) == ("1 error, 2 warnings", False)
    assert shown.about == "m.onnx · 3 nodes · opset 17 · pytorch 2.9 · for TensorRT 8.6"
    assert shown.parts == (
        Lines(
            "Errors",
            ("checker", "  it is small.", "  → Make it larger.", "  → See https://example.org"),
        ),
        Lines(
            "Warnings",
            (
                "constant-beyond-fp16 (2 times)",
                "  /a (Add, node 3): it is small.",
                "  /a (Add, node 3): it is small.",
                "  → Make it larger.",
                "  → See https://example.org",
            ),
        ),
    )


def test_many_findings_are_counted():
    (part,) = linted(lint_report(*(finding(node=f"/b.{i}/eps") for i in range(9)))).parts
    assert isinstance(part, Lines)
    assert part.lines[0] == "constant-beyond-fp16 (9 times)"
    assert part.lines[5] == "  and 5 more: /b.{4–8}/eps"
    (part,) = linted(lint_report(*(finding(node="", severity="info") for _ in range(9)))).parts
    assert isinstance(part, Lines)
    assert part.lines[1] == "  unnamed (Add, node 3): it is small."
    assert part.lines[5] == "  and 5 more; halfwise lint m.onnx --json lists them"


def test_nodes_without_a_name_are_called_as_elsewhere():
    numbered = (finding(node="", called=f"node_{i}") for i in range(9))
    (part,) = linted(lint_report(*numbered)).parts
    assert isinstance(part, Lines)
    assert part.lines[1] == "  node_0 (Add, unnamed): it is small."
    assert part.lines[5] == "  and 5 more: node_{4–8}"


def test_nothing_found():
    shown = linted(lint_report(ignored=("checker",)))
    assert (shown.title, shown.passed) == ("Nothing found", True)
    assert shown.about.endswith("without checker")
    assert shown.parts == ()


def test_names_are_cleaned():
    name = NodeName("\x1b[31m" + "x" * 200)
    (part,) = linted(lint_report(finding(node=name, message=f"{name} is odd"))).parts
    assert isinstance(part, Lines)
    assert all(line.isprintable() for line in part.lines)
    assert max(map(len, part.lines)) < 160
