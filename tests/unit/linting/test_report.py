from halfwise.linting.report import checked, linted
from halfwise.records import ConstraintReport, Finding, LintReport, NodeName
from halfwise.reporting.parts import Lines


def finding(**changed):
    values = {
        "rule": "eps-vanishes",
        "severity": "warning",
        "node": "/a",
        "place": 3,
        "op": "Add",
        "message": "it is small",
        "fix": "Make it larger.",
        "source": "https://example.org",
    }
    return Finding.model_validate(values | changed)


def lint_report(*findings, **changed):
    values = {
        "source": "m.onnx",
        "producer": "pytorch 2.9",
        "opset": 17,
        "nodes": 3,
        "tensorrt": "8.6",
        "findings": findings,
    }
    return LintReport.model_validate(values | changed)


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
                "eps-vanishes (2 times)",
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
    assert part.lines[0] == "eps-vanishes (9 times)"
    assert part.lines[4] == "  and 6 more: /b.{3–8}/eps"
    (part,) = linted(lint_report(*(finding(node="", severity="info") for _ in range(9)))).parts
    assert isinstance(part, Lines)
    assert part.lines[1] == "  unnamed (Add, node 3): it is small."
    assert part.lines[4] == "  and 6 more; halfwise lint --json lists them"


def test_nothing_found_and_nothing_read():
    shown = linted(lint_report(skipped=("the graph cannot be read",), ignored=("checker",)))
    assert (shown.title, shown.passed) == ("Nothing found", True)
    assert shown.about.endswith("without checker")
    assert shown.parts == (Lines("Not looked at", ("the graph cannot be read",)),)


def test_names_are_cleaned():
    name = NodeName("\x1b[31m" + "x" * 200)
    (part,) = linted(lint_report(finding(node=name, message=f"{name} is odd"))).parts
    assert isinstance(part, Lines)
    assert all(line.isprintable() for line in part.lines)
    assert max(map(len, part.lines)) < 160


def test_constraints_end_with_the_corrected_ones():
    values = {
        "source": "m.onnx",
        "tensorrt": "8.6",
        "command": True,
        "keys": 2,
        "findings": (finding(rule="unmatched", severity="error"),),
        "corrected": "trtexec --onnx=m.onnx",
    }
    shown = checked(ConstraintReport.model_validate(values))
    assert shown.about == "m.onnx · 2 constraints · as trtexec 8.6 reads them"
    assert shown.parts[-1] == Lines("Corrected command", ("trtexec --onnx=m.onnx",), whole=True)
    shown = checked(ConstraintReport.model_validate(values | {"corrected": "", "command": False}))
    assert shown.parts[-1].title == "Corrected"
    shown = checked(ConstraintReport.model_validate(values | {"findings": ()}))
    assert (shown.title, shown.parts) == ("Nothing found", ())
