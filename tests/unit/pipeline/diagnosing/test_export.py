from dataclasses import replace
from pathlib import Path

import pytest

from halfwise.pipeline.diagnosing.export import exported, healthy
from halfwise.records import NodeName, Sign, TensorName
from tests.unit.stages.compare.copies import network, side


def framework(*names, **altered):
    wanted = [TensorName(f"{name}_out") for name in names]
    return list(side(network(**altered).model).tensors.get(wanted))


def test_nobody_told_what_is_right(subject):
    rung = exported(subject())
    assert rung.passed is None
    assert rung.how == "skipped"
    assert "--expected" in rung.advice[0]


def test_an_export_that_is_right(subject):
    rung = exported(subject(expected=framework("y")))
    assert rung.passed
    assert rung.how == "measured"


@pytest.mark.parametrize("tensors", [("y",), ("a", "b", "centre", "d", "e", "y")])
def test_an_export_that_is_wrong(subject, tensors):
    rung = exported(subject(expected=framework(*tensors, b=1.2)))
    assert rung.passed is False
    assert "does not compute what the framework did" in rung.cause
    assert "b" in rung.nodes
    assert (rung.nodes == ("b",)) == (len(tensors) > 1)
    assert any("dB" in sign.text for sign in rung.evidence)


def test_tensors_without_an_output(subject):
    assert exported(subject(expected=framework("a"))).passed is None


def on_file(subject, lint):
    made = subject(lint=lint)
    case = replace(made.case, network=replace(made.case.network, path=Path("m.onnx")))
    return replace(made, case=case)


def test_without_a_linter(subject):
    assert healthy(on_file(subject, None)).cause == "This version has no linter."
    assert healthy(subject(lint=lambda _: [])).cause == "The model is not a file."


def test_a_healthy_model(subject):
    rung = healthy(on_file(subject, lambda _: [Sign(severity="warning", text="An eps is small.")]))
    assert rung.passed
    assert rung.cause == "No known error; 1 remark."


def test_a_model_with_a_known_fault(subject):
    fault = Sign(severity="error", text="It is broken.", nodes=(NodeName("b"),))
    rung = healthy(on_file(subject, lambda _: [fault]))
    assert rung.passed is False
    assert rung.cause == "It is broken."
    assert rung.nodes == ("b",)
