"""Every rule of the linter has a model with its fault, and none finds anything without it."""

from random import Random

import pytest

from halfwise.linting import RULES
from tests.faults import FAULTS, Fault, linted
from tests.faults.damage import damaged


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
    assert {f.rule for f in found} == {fault.rule} | fault.besides
    first = next(f for f in found if f.rule == fault.rule)
    assert (first.severity, first.node) == (fault.severity, fault.node)
    assert first.message.isprintable()
    assert not first.message.endswith(".")
    assert first.fix.endswith((".", "?"))


def test_nothing_is_found_without_it(fault: Fault, tmp_path) -> None:
    report = linted(fault.make(False), tmp_path, fault.tensorrt)
    assert {f.rule for f in report.findings} == fault.besides


def test_what_no_command_reads_is_the_finding(tmp_path) -> None:
    chance = Random(5)  # noqa: S311 - it damages models
    for _ in range(200):
        proto = damaged(chance.choice(FAULTS).make(True), chance)
        report = linted(proto, tmp_path, chance.choice([None, "8.6"]))
        assert report.opset is not None or [f.rule for f in report.findings] == ["checker"]
