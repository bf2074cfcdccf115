"""A repair without which no more is kept is undone; others are chosen where samples join."""

from dataclasses import dataclass, field
from functools import partial

import pytest

from halfwise.emulation.budget import OutOfTime
from halfwise.fixing.fixed import Fixed
from halfwise.fixing.plan.found import Found
from halfwise.fixing.repair import choice, making, needed
from halfwise.fixing.repair.choice import with_repairs
from halfwise.fixing.repair.needed import needed_repairs
from halfwise.fixing.repair.rule import Rule
from halfwise.progress import Silent
from halfwise.records import NodeName
from tests import models
from tests.unit.fixing.repair.sluices import WIDE, Sluice, dear, sluiced
from tests.unit.fixing.repair.test_choice import found, told
from tests.unit.fixing.repair.test_making import repair
from tests.unit.fixing.running import growing, planner

__all__ = ["found"]
ALONE = ("scale",)


@pytest.mark.parametrize(("few", "undone"), [(4, ["repair-spare"]), (1, [])])
def test_what_the_plan_does_not_need_is_undone_and_told(found, monkeypatch, few, undone):
    monkeypatch.setattr(needed, "FEW", few)
    fixed = found(Sluice(above=0), ill=sluiced(WIDE, 3.0))
    assert fixed.verdict.passed
    assert not fixed.plan.keep
    assert told(fixed) == undone
    assert len(fixed.plan.repairs) == 1 + (not undone)
    assert fixed.plan.repairs[0].nodes == ("up_0", "wide_0", "down_0")
    assert fixed.planner.case.repairs == fixed.plan.repairs


def test_the_mixed_model_alone_tells_that_a_repair_is_needed(monkeypatch):
    small = repair(0).model_copy(update={"numbers": {"exponent": 14}})
    both = [small, small.model_copy(update={"nodes": repair(1).nodes})]
    monkeypatch.setattr(making, "RULES", (Sluice(),))
    original = planner(sluiced(1e-6, 1e-6))
    made = with_repairs(original, both, Silent())
    monkeypatch.setattr(needed, "begin_beside", pytest.fail)
    chosen, kept = needed_repairs(original, made, plan(frozenset()), Silent())
    assert (chosen.planner, chosen.remarks, kept) == (made, (), frozenset())


@pytest.mark.parametrize("i", [0, 1])
def test_a_repair_of_nodes_that_the_plan_keeps_anyway_is_undone(monkeypatch, i):
    monkeypatch.setattr(making, "RULES", (Sluice(),))
    original = planner(sluiced(WIDE, WIDE, 1.0, 1.0))
    made = with_repairs(original, [repair(0), repair(1)], Silent())
    undoing = needed._Undoing(original, made, frozenset(repair(i).nodes), Silent())
    undoing.run()
    assert [r.nodes for r in undoing.planner.case.repairs] == [repair(1 - i).nodes]
    assert undoing.kept == frozenset(repair(i).nodes)


@pytest.mark.parametrize("beside", [0, 3])
def test_a_repair_that_costs_more_than_keeping_is_undone(found, monkeypatch, beside):
    """Where FP32 costs no more either, as with one sluice alone, nothing is gained by keeping."""
    monkeypatch.setattr(choice, "cost_within", lambda *_: None)
    others = [1.0] * beside
    ill = sluiced(*others, WIDE, *others)
    fixed, bare = found(Sluice(spoil=dear), ill=ill), found(ill=ill)
    assert fixed.verdict.passed
    if not beside:
        assert told(fixed) == []
        assert (len(fixed.plan.repairs), len(fixed.plan.keep)) == (1, 0)
        return
    assert told(fixed) == ["repair-outdone"]
    assert fixed.plan.repairs == ()
    assert fixed.plan.keep == bare.plan.keep
    assert fixed.plan.minimal
    costs = fixed.plan.remarks[0].numbers
    assert costs["before"] == bare.planner.price(bare.found.kept) < costs["after"]
    assert fixed.planner.budget.cut == []


@pytest.mark.parametrize("allow", [False, True])
def test_a_repair_is_weighed_against_keeping_in_bf16(found, monkeypatch, allow):
    """It costs more than keeping in BF16, and less than keeping in FP32."""
    monkeypatch.setattr(choice, "cost_within", lambda *_: None)
    options = {"ill": sluiced(1.0, 1.0, 1.0, WIDE, 1.0, 1.0, 1.0), "rel_max": 0.05}
    fixed = found(Sluice(spoil=partial(dear, times=4)), allow_bf16=allow, **options)
    assert fixed.verdict.passed
    assert len(fixed.plan.repairs) == (0 if allow else 1)
    assert [k.precision for k in fixed.plan.keep] == ["bf16"] * (3 if allow else 0)
    if allow:
        assert told(fixed) == ["repair-outdone"]
        costs = fixed.plan.remarks[0].numbers
        assert costs["before"] == fixed.planner.cost(fixed.found.kept) < costs["after"]


def test_a_search_without_repairs_that_time_ends_is_told_as_such(found, monkeypatch):
    monkeypatch.setattr(choice, "cost_within", lambda *_: None)
    monkeypatch.setattr(needed, "PART", 1e-9)
    ill = sluiced(1.0, 1.0, 1.0, WIDE, 1.0, 1.0, 1.0)
    fixed = found(Sluice(spoil=dear), ill=ill)
    assert fixed.planner.budget.cut == ["repair"]
    assert fixed.plan.minimal
    assert fixed.verdict.passed


def plan(kept: frozenset[NodeName], *, passed: bool = True) -> Found:
    return Found(kept, passed, False, {}, frozenset(), {}, False, ())


def test_a_plan_without_repairs_that_costs_no_more_is_taken(monkeypatch):
    monkeypatch.setattr(making, "RULES", (Sluice(),))
    original = planner(sluiced())
    everything = original.roles.computing
    original.trials.evaluate(everything)
    made = with_repairs(original, [repair()], Silent())
    chosen, kept = needed_repairs(original, made, plan(everything), Silent())
    assert (chosen.planner, kept) == (original, everything)
    (told,) = chosen.remarks
    assert told.kind == "repair-outdone"
    assert told.numbers["before"] <= told.numbers["after"]
    chosen, kept = needed_repairs(original, made, plan(frozenset(), passed=False), Silent())
    assert (chosen.planner, chosen.remarks[0].numbers) == (original, {})
    chosen, kept = needed_repairs(original, made, plan(frozenset()), Silent())
    assert (chosen.planner, kept) == (made, frozenset())


def exponents(fixed: Fixed) -> dict[str, int]:
    return {name: e for repair in fixed.plan.repairs for name, e in repair.exponents.items()}


def test_a_plan_without_repairs_counts_with_what_keeps_it_finite_inside():
    original = planner(models.small_token())
    assert original.trials.evaluate(frozenset()).passed
    assert needed._best(original) == models.small_token().kept


def test_what_a_joined_sample_needs_is_repaired_not_kept(found):
    alone: list[Rule] = [rule for rule in making.RULES if rule.name in ALONE]
    ill = growing(7)
    fixed, bare = found(*alone, ill=ill), found(ill=ill)
    assert fixed.search.joined == bare.search.joined == ("inputs[7]",)
    assert fixed.verdict.passed
    assert fixed.verdict.unseen
    assert (len(fixed.plan.keep), len(bare.plan.keep)) == (0, 3)
    assert fixed.search.calibration == fixed.planner.case.calibration.ids
    assert fixed.curve.unrepaired is not None
    # As if the sample had been there from the start.
    assert exponents(fixed) == exponents(found(*alone, ill=growing(1, 7)))


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
def test_without_time_or_rules_what_was_chosen_stays(found, no_repair):
    rule = Ending()
    fixed = found(rule, ill=growing(7), no_repair=no_repair)
    assert len(rule.times) == (0 if no_repair else 2)
    assert fixed.verdict.passed
    assert not fixed.plan.repairs
    assert len(fixed.plan.keep) == 3
    assert fixed.search.joined == ("inputs[7]",)
