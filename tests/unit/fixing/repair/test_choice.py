"""What is repaired, and what is undone."""

from dataclasses import dataclass, field
from math import isfinite

import pytest

from halfwise.emulation.budget import OutOfTime
from halfwise.fixing.fixed import Fixed
from halfwise.fixing.loop import fix
from halfwise.fixing.repair import choice, making
from halfwise.options.loading import load_case
from halfwise.options.options import understand
from halfwise.progress import Silent
from tests.unit.fixing.repair.sluices import WIDE, Sluice, dear, sluiced


@pytest.fixture
def found(monkeypatch):
    def found(*asked, ill=None, **options) -> Fixed:
        monkeypatch.setattr(making, "RULES", asked)
        ill = ill or sluiced()
        request = understand(dict(ill.inputs), options)
        case = load_case(ill.proto, request.data, request.criterion)
        return fix(case, request.settings, Silent())

    return found


def told(fixed: Fixed) -> list[str]:
    return [r.kind for r in fixed.plan.remarks if r.kind.startswith("repair")]


def test_a_repair_takes_the_place_of_keeping(found):
    without, fixed = found(), found(Sluice())
    assert without.plan.keep
    assert not without.plan.repairs
    assert not fixed.plan.keep
    assert fixed.verdict.passed
    assert fixed.baseline == without.baseline
    (repair,) = fixed.plan.repairs
    assert repair.before > 1 > repair.after


def test_with_a_metric_no_error_is_told_as_a_multiple_of_what_is_allowed(found):
    fixed = found(Sluice(exponent=0), metric="snr", metric_drop=50.0)
    assert told(fixed) == ["repair-useless"]
    assert not any(remark.numbers for remark in fixed.plan.remarks)


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        (Sluice(off=1.001), "repair-unproven"),
        (Sluice(exponent=0), "repair-useless"),
        (Sluice(spoil=dear), "repair-dearer"),
        (Sluice(spoil=lambda m, n: m.graph.remove(n)), "repair-unmade"),
    ],
)
def test_what_is_not_worth_making_is_undone_and_told(found, rule, why):
    fixed = found(rule)
    assert told(fixed) == [why]
    assert all(isfinite(n) for r in fixed.plan.remarks for n in r.numbers.values())
    assert not fixed.plan.repairs
    assert fixed.verdict.passed
    assert fixed.plan.keep == found().plan.keep


def test_what_fails_with_everything_in_fp32_is_undone(found):
    fixed = found(Sluice(off=1.000005), rel_max=1e-6)
    assert told(fixed) == ["repair-failing"]
    assert not fixed.plan.repairs
    assert fixed.verdict.passed


def test_of_several_each_is_judged(found):
    fixed = found(Sluice(), ill=sluiced(WIDE, WIDE, WIDE))
    assert not fixed.plan.keep
    assert len(fixed.plan.repairs) == 3


def test_a_run_makes_so_many_trials_and_tells_what_it_left(found, monkeypatch):
    monkeypatch.setattr(choice, "PROBES", 1)
    fixed = found(Sluice(off=1.001), ill=sluiced(WIDE, WIDE))
    assert told(fixed) == ["repair-left"]
    assert fixed.plan.remarks[0].numbers == {"elements": 2, "size": 1}


def test_rules_that_options_leave_out_are_no_stage(found):
    assert "repair" in found(Sluice()).stage_seconds
    assert "repair" not in found(Sluice(), no_repair=Sluice().name).stage_seconds


@dataclass(frozen=True)
class Asked(Sluice):
    """Counts how often it is asked; `late` runs out of time then."""

    late: bool = False
    times: list[int] = field(default_factory=list)

    def propose(self, evidence):
        self.times.append(1)
        if self.late:
            raise OutOfTime
        return list(super().propose(evidence))


def test_rules_are_asked_once_a_round_and_within_the_budget(found):
    idle, rule, late = Asked(above=1e9), Asked(), Asked(late=True)
    found(idle)
    assert len(idle.times) == 1
    assert len(found(rule).plan.repairs) == 1
    assert len(rule.times) == 2
    fixed = found(late)
    assert not fixed.plan.repairs
    assert fixed.verdict.passed
