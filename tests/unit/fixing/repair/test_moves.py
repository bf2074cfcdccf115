"""What is repaired, what is undone, and what is chosen anew where samples join."""

from dataclasses import dataclass, field
from math import isfinite

import pytest

from halfwise.emulation.budget import OutOfTime
from halfwise.fixing.fixed import Fixed
from halfwise.fixing.repair import making, moves
from halfwise.fixing.repair.making import Rule
from tests.unit.casing import names
from tests.unit.fixing import running
from tests.unit.fixing.repair.sluices import WIDE, Sluice, dear, sluiced
from tests.unit.fixing.running import growing

ALONE = ("scale",)
BESIDE = sluiced(1.0, 1.0, 1.0, WIDE, 1.0, 1.0, 1.0)
"""Where keeping nodes costs less than FP32."""
NONE = names()


@pytest.fixture
def repair_run(monkeypatch):
    def repair_run(*wanted, ill=None, **options) -> Fixed:
        monkeypatch.setattr(making, "RULES", wanted)
        return running.found(ill or sluiced(), **options)

    return repair_run


def rules(fixed: Fixed) -> list[str]:
    return [r.kind for r in fixed.plan.remarks if r.kind.startswith("repair")]


def test_a_repair_takes_the_place_of_keeping(repair_run):
    without, fixed = repair_run(), repair_run(Sluice())
    assert without.plan.keep
    assert not without.plan.repairs
    assert not fixed.plan.keep
    assert fixed.verdict.passed
    assert fixed.baseline == without.baseline
    (repair,) = fixed.plan.repairs
    assert repair.before > 1 > repair.after


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        (Sluice(off=1.001), "repair-unproven"),
        (Sluice(exponent=0), "repair-useless"),
        (Sluice(spoil=dear), "repair-outdone"),
        (Sluice(spoil=lambda m, n: m.graph.remove(n)), "repair-unmade"),
    ],
)
def test_what_is_not_worth_making_is_undone_and_told(repair_run, rule, why):
    fixed = repair_run(rule, ill=BESIDE)
    assert rules(fixed) == [why]
    assert all(isfinite(n) for r in fixed.plan.remarks for n in r.numbers.values())
    assert not fixed.plan.repairs
    assert fixed.verdict.passed
    assert fixed.plan.keep == repair_run(ill=BESIDE).plan.keep


def test_of_several_each_is_judged(repair_run):
    fixed = repair_run(Sluice(), ill=sluiced(WIDE, WIDE, WIDE))
    assert not fixed.plan.keep
    assert len(fixed.plan.repairs) == 3


def test_rules_that_options_leave_out_are_no_stage(repair_run):
    assert "repair" in repair_run(Sluice()).stage_seconds
    assert "repair" not in repair_run(Sluice(), no_repair=True).stage_seconds


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


def test_rules_are_asked_once_a_round_and_within_the_budget(repair_run):
    idle, rule, late = Asked(above=1e9), Asked(), Asked(late=True)
    repair_run(idle)
    assert len(idle.times) == 1
    assert len(repair_run(rule).plan.repairs) == 1
    assert len(rule.times) == 1
    fixed = repair_run(late)
    assert not fixed.plan.repairs
    assert fixed.verdict.passed


# --- undoing ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("few", "undone"), [(4, ["repair-spare"]), (1, [])])
def test_what_the_plan_does_not_need_is_undone_and_told(repair_run, monkeypatch, few, undone):
    monkeypatch.setattr(moves, "UNDONE_ALONE", few)
    fixed = repair_run(Sluice(above=0), ill=sluiced(WIDE, 3.0))
    assert fixed.verdict.passed
    assert not fixed.plan.keep
    assert rules(fixed) == undone
    assert len(fixed.plan.repairs) == 1 + (not undone)
    assert fixed.plan.repairs[0].nodes == ("up_0", "wide_0", "down_0")
    assert [r.nodes for r in fixed.space.variant.case.repairs] == [
        r.nodes for r in fixed.plan.repairs
    ]


@pytest.mark.parametrize("beside", [0, 3])
def test_a_repair_that_costs_more_than_keeping_is_undone(repair_run, beside):
    """Where FP32 costs no more either, as with one sluice alone, nothing is gained by keeping."""
    rest = [1.0] * beside
    ill = sluiced(*rest, WIDE, *rest)
    fixed, bare = repair_run(Sluice(spoil=dear), ill=ill), repair_run(ill=ill)
    assert fixed.verdict.passed
    if not beside:
        assert rules(fixed) == []
        assert (len(fixed.plan.repairs), len(fixed.plan.keep)) == (1, 0)
        return
    assert rules(fixed) == ["repair-outdone"]
    assert fixed.plan.repairs == ()
    assert fixed.plan.keep == bare.plan.keep
    assert fixed.plan.minimal
    costs = fixed.plan.remarks[0].numbers
    assert costs["before"] == bare.space.cost(bare.result.kept) < costs["after"]
    assert fixed.space.budget.cut == []


def test_a_search_without_repairs_that_time_ends_is_told_as_such(repair_run, monkeypatch):
    monkeypatch.setattr(moves, "PART_OF_BUDGET", 1e-9)
    ill = sluiced(1.0, 1.0, 1.0, WIDE, 1.0, 1.0, 1.0)
    fixed = repair_run(Sluice(spoil=dear), ill=ill)
    assert fixed.space.budget.cut == ["repair"]
    assert fixed.plan.minimal
    assert fixed.verdict.passed


def exponents(fixed: Fixed) -> dict[str, int]:
    return {name: e for repair in fixed.plan.repairs for name, e in repair.exponents.items()}


def test_what_a_joined_sample_needs_is_repaired_not_kept(repair_run):
    alone: list[Rule] = [rule for rule in making.RULES if rule.name in ALONE]
    ill = growing(7)
    fixed, bare = repair_run(*alone, ill=ill), repair_run(ill=ill)
    assert fixed.search.joined == bare.search.joined == ("inputs[7]",)
    assert fixed.verdict.passed
    assert fixed.verdict.unseen
    assert (len(fixed.plan.keep), len(bare.plan.keep)) == (0, 3)
    assert fixed.search.calibration == fixed.space.bench.samples.ids
    # As if the sample had been there from the start, but for an octave: few samples are looked at.
    assert exponents(fixed).keys() == exponents(repair_run(*alone, ill=growing(1, 7))).keys()


@dataclass(frozen=True)
class Ending(Sluice):
    """Runs out of time."""

    times: list[int] = field(default_factory=list)

    def propose(self, _):
        self.times.append(1)
        raise OutOfTime


@pytest.mark.parametrize("no_repair", [False, True])
def test_without_time_or_rules_what_was_chosen_stays(repair_run, no_repair):
    rule = Ending()
    fixed = repair_run(rule, ill=growing(7), no_repair=no_repair)
    assert len(rule.times) == (0 if no_repair else 1)
    assert fixed.verdict.passed
    assert not fixed.plan.repairs
    assert len(fixed.plan.keep) == 3
    assert fixed.search.joined == ("inputs[7]",)
