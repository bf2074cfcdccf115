"""Searches in the plans of small models, and the types of what they keep."""

from types import SimpleNamespace
from typing import Any

import pytest

from halfwise.case import Chosen
from halfwise.emulation.typed import TF32_MARK, TF32_OPS
from halfwise.errors import CaseError
from halfwise.fixing.fixed import Fixed
from halfwise.fixing.outcome import candidate_worth
from halfwise.fixing.plan.plan import Nodes, Plan
from halfwise.fixing.plan.rules import Start
from halfwise.fixing.repair import making
from halfwise.fixing.space import Best
from halfwise.judging.inside import emulate
from halfwise.progress import offered
from halfwise.records import Remark, replace
from halfwise.reporting.remarks import remark
from tests import models
from tests.unit.casing import names
from tests.unit.fixing.repair.sluices import WIDE, Sluice, sluiced
from tests.unit.fixing.repair.test_making import repair
from tests.unit.fixing.running import Listener, found, growing, space_of, types_in

NONE = names()


def test_the_plan_found_is_what_the_model_needs():
    space = space_of(models.layer_norm())
    found = space.find()
    assert (found.passed, found.kept) == (True, models.layer_norm().kept)
    assert space.typed(found.kept) == Plan(space.variant, found.kept)
    assert space.tried()[found.kept].passed
    assert not any(space.tried()[found.kept - {node}].passed for node in found.kept)


def test_a_starting_plan_is_tried_and_told():
    space = space_of(models.layer_norm(), lower=("gamma",))
    kept = names("gamma", *models.layer_norm().kept)
    date = Remark(kind="start", names={"date": "1 May"})
    started = space.starting(Start(kept, date))
    told = "the plan comes from the run of 1 May; the starting plan keeps 4 nodes and passes"
    assert isinstance(space.watcher, Listener)
    assert space.watcher.notes[-1] == told
    found = started.find()
    assert found.kept == models.layer_norm().kept
    assert remark(found.steps[0]) == told
    started = space_of(models.layer_norm()).starting(Start(NONE, date))
    assert started.start.note is not None
    assert remark(started.start.note).endswith("keeps 0 nodes and fails")


def test_a_chosen_plan_takes_the_place_of_a_search():
    kept, bf16 = names("square", "variance"), names("square")
    space = space_of(models.layer_norm())
    chosen = Chosen(kept, "choose --worth 2", bf16)
    settings = replace(space.variant.settings, chosen=chosen)
    observed = replace(space.variant, settings=settings)
    space.observed.look(observed, space.bench.samples)
    space = replace(space, variant=observed)
    found = space.find()
    assert (found.kept, found.passed, found.minimal) == (kept, False, False)
    assert space.typed(kept) == Plan(space.variant, kept, bf16)
    assert space.bench.evaluations == 1


def test_held_nodes_are_in_every_plan_and_what_was_tried_is_known():
    space = space_of(models.layer_norm(), lower=["root"])
    held = space.holding(space.evidence.guards)
    assert held.held_nodes
    assert held.held_nodes.isdisjoint(names("root"))
    assert held.find().kept >= held.held_nodes
    assert held.bench is space.bench
    assert space.held == ()


def test_plans_of_a_network_with_repairs_share_the_bench_and_samples_that_join(monkeypatch):
    monkeypatch.setattr(making, "RULES", (Sluice(),))
    ill = sluiced(WIDE, WIDE)
    space = space_of(ill)
    repaired = space.repaired([repair(0), repair(1)])
    assert repaired.original is space
    assert repaired.bench is space.bench
    assert not space.evaluate(NONE).passed
    assert repaired.evaluate(NONE).passed
    assert (len(space.tried()), len(repaired.tried())) == (1, 1)
    more = space.variant.case.heldout
    everything = space.plan(space.choices)
    repaired.join(more, [space.bench.judge.run(sample, everything) for sample in more])
    assert repaired.evidence.observations.samples == space.bench.samples.ids
    assert space.bench.exact(repaired.plan(NONE)) is None
    assert repaired.evaluate(NONE).passed
    space.observed.catch_up(space.variant, space.bench.samples)
    assert space.find().kept == names(*(f"{n}_{i}" for n in ("up", "wide", "down") for i in (0, 1)))


def cost_of(fixed: Fixed, bf16: Nodes = NONE, *, tf32: bool = False) -> float:
    """Return the cost of the plan found, with other types of what it keeps."""
    variant = fixed.space.variant
    cost = variant.cost(Plan(variant, fixed.result.kept, bf16, tf32))
    assert cost is not None
    return cost


def test_a_node_that_needs_range_gets_bf16_and_costs_less():
    without = found(models.huge_weights(), no_repair=True)
    fixed = found(models.huge_weights(), no_repair=True, allow_bf16=True)
    assert [k.precision for k in without.plan.keep] == ["fp32"]
    assert [k.precision for k in fixed.plan.keep] == ["bf16"]
    assert fixed.verdict.passed
    assert "BFLOAT16" in types_in(fixed).values()
    assert cost_of(fixed, bf16=fixed.result.kept) < cost_of(fixed)


def test_a_node_that_needs_bits_stays_in_fp32():
    fixed = found(models.cancellation(), no_repair=True, allow_bf16=True)
    assert {k.precision for k in fixed.plan.keep} == {"fp32"}
    assert not fixed.assigned.bf16
    assert fixed.verdict.passed


TWO = sluiced(WIDE, 1.0, 1.0, 1.0, 1.0, WIDE, 1.0)
"""Two sluices overflow; everything else is the same."""


@pytest.mark.parametrize(("rel_max", "taken"), [(0.05, True), (0.005, False)])
def test_what_is_told_of_a_plan_is_of_the_model_with_its_bf16(rel_max, taken):
    fixed = found(TWO, no_repair=True, allow_bf16=True, rel_max=rel_max)
    kept, bench = fixed.result.kept, fixed.space.bench
    bf16 = kept if taken else NONE
    assert len(kept) == 6
    assert fixed.assigned.bf16 == bf16
    assert fixed.verdict.passed
    assert fixed.curve.plan is not None
    point = fixed.curve.points[fixed.curve.plan]
    assert point.count == 6
    assert fixed.curve.named(point.bf16) == bf16
    assert point.cost == cost_of(fixed, bf16=frozenset(bf16))
    written = fixed.space.variant.write(fixed.assigned)[0].model
    factor = bench.tolerance.factor
    assert point.error == bench.excess_of(emulate(written, bench.samples)[0]) * factor


def test_types_are_chosen_for_a_plan_at_the_end():
    space = space_of(TWO, allow_bf16=True, rel_max=0.05)
    two = names(*(f"{name}_{i}" for name in ("up", "wide", "down") for i in (0, 5)))
    assert space.evaluate(two).passed
    settled = space.typed(two)
    assert settled.bf16 == two
    assert (space.variant.cost(settled) or 9) < (space.cost(two) or 0)
    assert space.bench.excess(settled) <= 1
    # With every node kept that is the original.
    assert space.typed(space.choices) == space.plan(space.choices)


@pytest.mark.parametrize("limit", [{"time_budget": 0}, {"budget": 4}])
def test_without_time_nothing_has_bf16_and_the_plan_passes(limit):
    fixed = found(TWO, no_repair=True, allow_bf16=True, rel_max=0.05, **limit)
    assert not fixed.assigned.bf16
    assert fixed.verdict.passed


def test_samples_that_join_are_tried_with_bf16_anew():
    fixed = found(growing(7), no_repair=True, allow_bf16=True, rel_max=0.05)
    bench = fixed.space.bench
    assert fixed.search.joined == ("inputs[7]",)
    assert fixed.verdict.passed
    results = emulate(fixed.rewritten.model, bench.samples)[0]
    assert bench.exact(fixed.assigned) == bench.excess_of(results) <= 1


def test_an_opset_without_bf16_is_told_before_the_search():
    ill = models.conv_chain()
    ill.proto.opset_import[0].version = 12
    with pytest.raises(CaseError, match="BF16 needs opset 13"):
        found(ill, allow_bf16=True)


def products(fixed: Fixed) -> dict[str, str]:
    return {k.op: k.precision for k in fixed.plan.keep if k.op in TF32_OPS}


def test_products_that_need_range_get_tf32_and_cost_less():
    fixed = found(models.busy_product(), no_repair=True, allow_tf32=True)
    space, bench, plan = fixed.space, fixed.space.bench, fixed.assigned
    assert set(products(fixed).values()) == {"tf32"}
    assert (plan.tf32, plan.bf16) == (True, NONE)
    assert fixed.verdict.passed
    assert cost_of(fixed, tf32=True) < cost_of(fixed)
    case = space.variant.case
    mixed = replace(case.network, model=fixed.rewritten.model)
    worth = candidate_worth(case, space.variant.settings, mixed)
    assert worth is not None
    assert worth.cost == pytest.approx(space.variant.cost(plan))
    # What is told of the plan is of the written model, whose nodes say that they are TF32.
    written, factor = space.variant.write(plan)[0].model, bench.tolerance.factor
    error = bench.excess_of(emulate(written, bench.samples)[0]) * factor
    assert fixed.curve.plan is not None
    point = fixed.curve.points[fixed.curve.plan]
    assert (point.tf32, point.error) == (True, error)
    for node in written.graph:
        node.metadata_props.pop(TF32_MARK, None)
    assert bench.excess_of(emulate(written, bench.samples)[0]) * factor != error


def test_a_model_that_was_marked_before_is_marked_anew():
    ill = models.busy_product()
    for node in ill.proto.graph.node:
        node.metadata_props.add(key=TF32_MARK, value="1")
    ends = []
    for allowed in (False, True):
        fixed = found(ill, no_repair=True, allow_tf32=allowed)
        marked = {n.name for n in fixed.rewritten.model.graph if TF32_MARK in n.metadata_props}
        assert marked == {k.node for k in fixed.plan.keep if k.precision == "tf32"}
        ends.append((bool(marked), fixed.verdict.outputs))
    plain = found(models.busy_product(), no_repair=True)
    assert ends[0] == (False, plain.verdict.outputs)
    assert ends[1][0]


def test_products_that_need_more_bits_than_tf32_has_stay_in_fp32():
    fixed = found(models.busy_product(), no_repair=True, allow_tf32=True, rel_max=1e-5)
    assert set(products(fixed).values()) == {"fp32"}
    assert not fixed.assigned.is_typed
    assert fixed.verdict.passed


def test_bf16_and_tf32_are_weighed_in_one_search():
    fixed = found(TWO, no_repair=True, allow_bf16=True, allow_tf32=True, rel_max=0.05)
    tf32 = any(k.op in TF32_OPS and k.precision == "tf32" for k in fixed.plan.keep)
    assert fixed.assigned.bf16
    assert fixed.assigned.tf32 == tf32
    assert fixed.verdict.passed


# --- what is told on the way -------------------------------------------------------------------


def priced(price) -> Any:
    """Return plans that keep some of a hundred nodes."""
    choices = names(*map(str, range(100)))
    return SimpleNamespace(choices=choices, cost=price, form="", watcher=Listener())


def best_told(*counts, price=lambda kept: 1 + len(kept) / 8):
    best, space = Best(), priced(price)
    for count in counts:
        best.passed(space, names(*map(str, range(count))), 0.5)
    return space.watcher.notes


def test_a_plan_is_told_with_what_it_costs_and_its_error():
    assert best_told(12) == [
        "best plan so far: 12 of 100 nodes in FP32, 2.5 × the cost of everything low, "
        "error 0.5 × what is allowed"
    ]


@pytest.mark.parametrize("price", [lambda kept: 1 + len(kept) / 8, lambda _: None])
def test_few_lines_tell_a_long_search(price):
    lines = best_told(*range(99, 0, -1), price=price)
    assert [int(line.split()[4]) for line in lines] == [99, 49, 24, 12, 6, 3, 1]


def test_what_gains_nothing_keeps_nothing_or_is_no_better_is_not_told():
    assert best_told(100, 0) == []
    assert best_told(40, 60) == best_told(40)
    assert best_told(60, price=lambda kept: 2.0 if len(kept) == 100 else 2.1) == []
    assert len(best_told(60, price=lambda kept: 2.0 if len(kept) == 100 else 1.9)) == 1


def test_there_is_something_to_keep_once_a_plan_passes():
    with offered() as made:
        space = space_of(models.layer_norm())
        assert not space.evaluate(NONE).passed
        assert space.evaluate(space.choices).passed
        assert not made.ready
        assert isinstance(space.watcher, Listener)
        assert space.watcher.notes == []
        assert space.evaluate(names(*models.layer_norm().kept)).passed
        assert made.ready


def test_what_passes_on_few_samples_is_nothing_to_keep_yet():
    ill = models.layer_norm()
    harmless = {name: array.repeat(8, axis=0) / 1e3 for name, array in ill.inputs.items()}
    with offered() as made:
        space = space_of(replace(ill, inputs=harmless))
        kept = names(*ill.kept)
        assert space.probe(kept).passed
        assert len(space.bench.samples) > space.bench.runs
        assert not made.ready
        assert isinstance(space.watcher, Listener)
        assert space.watcher.notes == []
        assert space.evaluate(kept).passed
        assert made.ready
