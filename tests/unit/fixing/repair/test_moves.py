"""What is repaired, what is undone, and what is chosen anew where samples join."""

from dataclasses import dataclass, field
from math import isfinite

import pytest

from halfwise.emulation.budget import OutOfTime
from halfwise.fixing import loop
from halfwise.fixing.fixed import Fixed
from halfwise.fixing.plan.plan import Nodes, Variant
from halfwise.fixing.plan.result import SearchResult
from halfwise.fixing.plan.search import Search
from halfwise.fixing.repair import making, moves
from halfwise.fixing.repair.moves import Choice, _best, _Undoing, needed_repairs
from halfwise.fixing.repair.rule import Rule
from halfwise.fixing.space import LowSpace
from tests import models
from tests.unit.casing import names
from tests.unit.fixing import running
from tests.unit.fixing.repair.sluices import WIDE, Sluice, dear, sluiced
from tests.unit.fixing.repair.test_making import repair
from tests.unit.fixing.running import growing, heldout_of, space_of

ALONE = ("scale",)
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


def test_with_a_metric_no_error_is_told_as_a_multiple_of_what_is_allowed(repair_run):
    fixed = repair_run(Sluice(exponent=0), metric="snr", metric_drop=50.0)
    assert rules(fixed) == ["repair-useless"]
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
def test_what_is_not_worth_making_is_undone_and_told(repair_run, rule, why):
    fixed = repair_run(rule)
    assert rules(fixed) == [why]
    assert all(isfinite(n) for r in fixed.plan.remarks for n in r.numbers.values())
    assert not fixed.plan.repairs
    assert fixed.verdict.passed
    assert fixed.plan.keep == repair_run().plan.keep


def test_what_fails_with_everything_in_fp32_is_undone(repair_run):
    fixed = repair_run(Sluice(off=1.000005), rel_max=1e-6)
    assert rules(fixed) == ["repair-failing"]
    assert not fixed.plan.repairs
    assert fixed.verdict.passed


def test_of_several_each_is_judged(repair_run):
    fixed = repair_run(Sluice(), ill=sluiced(WIDE, WIDE, WIDE))
    assert not fixed.plan.keep
    assert len(fixed.plan.repairs) == 3


def test_a_run_makes_so_many_trials_and_tells_what_it_left(repair_run, monkeypatch):
    monkeypatch.setattr(moves, "MODELS", 1)
    fixed = repair_run(Sluice(off=1.001), ill=sluiced(WIDE, WIDE))
    assert rules(fixed) == ["repair-left"]
    assert fixed.plan.remarks[0].numbers == {"elements": 2, "size": 1}


def test_twenty_four_models_are_tried(repair_run):
    fixed = repair_run(Sluice(off=1.001), ill=sluiced(*[WIDE] * 16))
    (note,) = [r for r in fixed.plan.remarks if r.kind == "repair-left"]
    assert note.numbers == {"elements": 4, "size": 24}


def test_rules_that_options_leave_out_are_no_stage(repair_run):
    assert "repair" in repair_run(Sluice()).stage_seconds
    assert "repair" not in repair_run(Sluice(), no_repair=Sluice().name).stage_seconds


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
    assert len(rule.times) == 2
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


def repaired(monkeypatch, ill: models.Ill, *repairs) -> LowSpace:
    monkeypatch.setattr(making, "RULES", (Sluice(),))
    return space_of(ill).repaired(repairs)


def plan(kept: Nodes, *, passed: bool = True) -> SearchResult:
    return SearchResult(kept, passed, False, {}, NONE, {}, False, ())


def test_the_mixed_model_alone_tells_that_a_repair_is_needed(monkeypatch):
    small = repair(0).model_copy(update={"numbers": {"exponent": 14}})
    both = [small, small.model_copy(update={"nodes": repair(1).nodes})]
    space = repaired(monkeypatch, sluiced(1e-6, 1e-6), *both)
    monkeypatch.setattr(LowSpace, "repaired", pytest.fail)
    chosen = needed_repairs(space, plan(NONE), heldout_of(space), joined=False)
    assert (chosen.space, chosen.remarks, chosen.kept) == (space, (), NONE)


@pytest.mark.parametrize("i", [0, 1])
def test_a_repair_of_nodes_that_the_plan_keeps_anyway_is_undone(monkeypatch, i):
    space = repaired(monkeypatch, sluiced(WIDE, WIDE, 1.0, 1.0), repair(0), repair(1))
    kept = names(*repair(i).nodes)
    assert space.original is not None
    undoing = _Undoing(space, space.original, kept, heldout_of(space))
    undoing.run()
    assert [r.nodes for r in undoing.space.repairs] == [repair(1 - i).nodes]
    assert undoing.kept == kept


@pytest.mark.parametrize("beside", [0, 3])
def test_a_repair_that_costs_more_than_keeping_is_undone(repair_run, monkeypatch, beside):
    """Where FP32 costs no more either, as with one sluice alone, nothing is gained by keeping."""
    monkeypatch.setattr(Variant, "cost_within", lambda *_: None)
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
    monkeypatch.setattr(Variant, "cost_within", lambda *_: None)
    monkeypatch.setattr(moves, "PART_OF_BUDGET", 1e-9)
    ill = sluiced(1.0, 1.0, 1.0, WIDE, 1.0, 1.0, 1.0)
    fixed = repair_run(Sluice(spoil=dear), ill=ill)
    assert fixed.space.budget.cut == ["repair"]
    assert fixed.plan.minimal
    assert fixed.verdict.passed


def test_a_plan_without_repairs_that_costs_no_more_is_taken(monkeypatch):
    space = repaired(monkeypatch, sluiced(), repair())
    original, heldout = space.original, heldout_of(space)
    assert original is not None
    everything = original.choices
    assert original.evaluate(everything).passed
    chosen = needed_repairs(space, plan(everything), heldout, joined=False)
    assert (chosen.space.variant, chosen.kept) == (original.variant, everything)
    (remark,) = chosen.remarks
    assert remark.kind == "repair-outdone"
    assert remark.numbers["before"] <= remark.numbers["after"]
    chosen = needed_repairs(space, plan(NONE, passed=False), heldout, joined=False)
    assert (chosen.space.variant, chosen.remarks[0].numbers) == (original.variant, {})
    chosen = needed_repairs(space, plan(NONE), heldout, joined=False)
    assert (chosen.space, chosen.kept) == (space, NONE)


def exponents(fixed: Fixed) -> dict[str, int]:
    return {name: e for repair in fixed.plan.repairs for name, e in repair.exponents.items()}


def test_a_plan_without_repairs_counts_with_what_keeps_it_finite_inside():
    original = space_of(models.small_token())
    assert original.evaluate(NONE).passed
    assert _best(original, heldout_of(original)) == models.small_token().kept


def test_what_a_joined_sample_needs_is_repaired_not_kept(repair_run):
    alone: list[Rule] = [rule for rule in making.RULES if rule.name in ALONE]
    ill = growing(7)
    fixed, bare = repair_run(*alone, ill=ill), repair_run(ill=ill)
    assert fixed.search.joined == bare.search.joined == ("inputs[7]",)
    assert fixed.verdict.passed
    assert fixed.verdict.unseen
    assert (len(fixed.plan.keep), len(bare.plan.keep)) == (0, 3)
    assert fixed.search.calibration == fixed.space.bench.samples.ids
    assert fixed.curve.unrepaired is not None
    # As if the sample had been there from the start.
    assert exponents(fixed) == exponents(repair_run(*alone, ill=growing(1, 7)))


@dataclass(frozen=True)
class Ending(Sluice):
    """Proposes nothing, and runs out of time where it is asked again."""

    times: list[int] = field(default_factory=list)

    def propose(self, _):
        self.times.append(1)
        if len(self.times) > 1:
            raise OutOfTime
        return []


@pytest.mark.parametrize("no_repair", [(), ("scale",)])
def test_without_time_or_rules_what_was_chosen_stays(repair_run, no_repair):
    rule = Ending()
    fixed = repair_run(rule, ill=growing(7), no_repair=no_repair)
    assert len(rule.times) == (0 if no_repair else 2)
    assert fixed.verdict.passed
    assert not fixed.plan.repairs
    assert len(fixed.plan.keep) == 3
    assert fixed.search.joined == ("inputs[7]",)


def test_where_everything_is_kept_no_repair_is_delivered(monkeypatch):
    def out_of_time(search, *_, **__):
        every = frozenset(search.nodes)
        return SearchResult(every, True, False, {}, NONE, {}, True, ())

    def unchanged(space, result, *_, **__):
        return Choice(space, (), result.kept)

    monkeypatch.setattr(Search, "run", out_of_time)
    monkeypatch.setattr(loop, "needed_repairs", unchanged)
    fixed = running.found(models.conv_chain())
    assert len(fixed.plan.keep) == fixed.plan.candidates
    assert fixed.plan.repairs == ()
    assert fixed.verdict.passed
