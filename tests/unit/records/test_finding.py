import pytest
from pydantic import ValidationError

from halfwise.records import SEVERITIES, Finding, LogFinding, LogNode, LogReport, NodeName


def test_the_worst_severity_is_first():
    assert SEVERITIES == ("error", "warning", "info")


def test_a_finding_survives_json():
    found = Finding(rule="r", severity="info", message="m", fix="f", source="https://example.org")
    assert Finding.model_validate_json(found.model_dump_json()) == found
    with pytest.raises(ValidationError):
        Finding.model_validate(found.model_dump() | {"severity": "note"})


NAME = NodeName("/a/Pow")


def test_a_report_survives_json():
    finding = LogFinding(
        kind="tf32", severity="info", sentence="It rounds.", count=2, lines=("[I]",)
    )
    report = LogReport(
        source="a.log",
        lines=9,
        tensorrt=None,
        findings=(finding,),
        nodes=(LogNode(name=NAME, node=NAME, op="Pow", place=3, via="node"),),
        model_nodes=7,
    )
    assert LogReport.model_validate_json(report.model_dump_json()) == report


def test_other_severities_are_refused():
    with pytest.raises(ValidationError):
        LogFinding.model_validate({"kind": "x", "severity": "verbose", "sentence": ""})
