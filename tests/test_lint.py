"""Every rule of the linter has a model with its fault, and none finds anything without it."""

from random import Random

import pytest

from halfwise.linting import RULES
from tests.faults import FAULTS, Fault, linted
from tests.faults.damage import damaged

TWO_FINDINGS = {"truncated": {"checker"}}
"""What ONNX's checker or the builder refuses for the same reason."""


def test_every_rule_has_a_fault() -> None:
    assert {rule.id for rule in RULES} == {fault.rule for fault in FAULTS}


def test_every_rule_says_why_and_where_it_is_from() -> None:
    for rule in RULES:
        assert rule.why.endswith("."), rule.id
        assert rule.source.startswith("https://"), rule.id


@pytest.fixture(params=FAULTS, ids=lambda f: f"{f.rule}:{f.name}")
def fault(request) -> Fault:
    given: Fault = request.param
    return given


def test_the_fault_is_found(fault: Fault, tmp_path) -> None:
    found = linted(fault.make(True), tmp_path, fault.tensorrt).findings
    others = TWO_FINDINGS.get(fault.name, set()) | fault.besides
    assert {f.rule for f in found} == {fault.rule} | others
    first = next(f for f in found if f.rule == fault.rule)
    assert (first.severity, first.node) == (fault.severity, fault.node)
    assert first.message.isprintable()
    assert not first.message.endswith(".")
    assert first.fix.endswith((".", "?"))


def test_nothing_is_found_without_it(fault: Fault, tmp_path) -> None:
    report = linted(fault.make(False), tmp_path, fault.tensorrt)
    assert {f.rule for f in report.findings} == fault.besides
    assert report.skipped == ()


def test_damaged_models_are_linted_as_far_as_they_can_be_read(tmp_path) -> None:
    chance = Random(5)  # noqa: S311 - it damages models
    for _ in range(200):
        fault = chance.choice(FAULTS)
        report = linted(damaged(fault.make(True), chance), tmp_path, chance.choice([None, "8.6"]))
        # Of types that there are not, the checker says nothing, and nobody reads the graph.
        unread = any(reason.startswith("the graph cannot be read") for reason in report.skipped)
        assert unread or not report.skipped or report.findings
