from dataclasses import replace

import pytest

from halfwise.emulation.typed import TF32_MARK, TF32_OPS
from halfwise.errors import CaseError, UsageError
from halfwise.fixing.outcome import candidate_worth
from halfwise.fixing.plan.found import FP32_ALONE, Types
from halfwise.fixing.plan.rules import Start
from halfwise.judging.inside import emulate
from halfwise.records import NodeName, Remark
from halfwise.reporting.remarks import remark
from tests import models
from tests.models import accumulation
from tests.unit.casing import names
from tests.unit.fixing.repair.sluices import WIDE, sluiced
from tests.unit.fixing.running import found, growing, planner, types_in


def test_the_model_is_that_of_the_assignment():
    made = planner(models.layer_norm())
    found = made.find(frozenset())
    assert found.kept == models.layer_norm().kept
    rewritten, placed = made.rewrite(found.kept)
    dtypes = {n.name: n.outputs[0].dtype.name for n in rewritten.model.graph}
    names = {n.name for n in made.case.network.nodes()}
    assert {n for n in names if dtypes[n] == "FLOAT"} == placed == found.kept


def test_samples_that_join_change_the_emulation_where_ranges_grow():
    made = planner(models.small())
    runner = made.trials.runner
    samples = made.case.heldout
    evidence = made.evidence
    made.join(samples, evidence.references[: len(samples)], evidence)
    assert made.trials.runner is runner
    name = evidence.observations.tensors[0].tensor
    made.join(
        samples,
        evidence.references[: len(samples)],
        type(evidence)(evidence.observations, evidence.references, evidence.guards, {name: 1.0}),
    )
    assert made.trials.runner is not runner


def test_rules_are_applied_before_anything_runs():
    with pytest.raises(UsageError, match="matches no node"):
        planner(models.small(), keep=("nothing",))


def test_a_starting_plan_is_tried_and_told():
    made = planner(models.layer_norm(), lower=("gamma",))
    kept = names("gamma", *models.layer_norm().kept)
    found = Remark(kind="start", names={"date": "1 May"})
    made.start_from(Start(kept, found))
    told = "the plan comes from the run of 1 May; the starting plan keeps 4 nodes and passes"
    assert remark(made.start.note) == made.watcher.notes[-1] == told
    assert made.find(frozenset()).kept == models.layer_norm().kept
    made = planner(models.layer_norm())
    made.start_from(Start(frozenset(), found))
    assert remark(made.start.note).endswith("keeps 0 nodes and fails")


def test_trials_with_fusion_have_no_headroom_and_the_same_samples():
    made = planner(models.near_the_edge())
    fused = made.engine_trials()
    assert made.evidence.limits
    assert fused.excess(names()) < 1 < made.trials.excess(names())
    assert fused.samples is made.trials.samples
    assert fused.evaluations == 1


def test_products_alone_may_be_summed_in_the_low_format():
    product, total = planner(accumulation.long_product()), planner(accumulation.long_sum())
    assert product.engine_trials().excess(names()) < 1
    assert product.engine_trials(accumulate="products").excess(names()) > 1
    assert product.engine_trials(accumulate="products").excess(names("matmul")) < 1
    same = total.engine_trials().excess(names())
    assert total.engine_trials(accumulate="products").excess(names()) == same < 1
    assert total.engine_trials(accumulate="fp16").excess(names()) > 1


def test_a_node_that_needs_range_gets_bf16_and_costs_less():
    without = found(models.huge_weights(), no_repair=True)
    fixed = found(models.huge_weights(), no_repair=True, allow_bf16=True)
    assert [k.precision for k in without.plan.keep] == ["fp32"]
    assert [k.precision for k in fixed.plan.keep] == ["bf16"]
    assert fixed.verdict.passed
    assert "BFLOAT16" in types_in(fixed).values()
    kept, prices = fixed.found.kept, fixed.planner.prices
    assert prices is not None
    assert prices.of(kept, Types(kept)) < prices.of(kept)


def test_a_node_that_needs_bits_stays_in_fp32():
    fixed = found(models.cancellation(), no_repair=True, allow_bf16=True)
    assert {k.precision for k in fixed.plan.keep} == {"fp32"}
    assert not fixed.planner.types_of(fixed.found.kept).bf16
    assert fixed.verdict.passed


TWO = sluiced(WIDE, 1.0, 1.0, 1.0, 1.0, WIDE, 1.0)
"""Two sluices overflow; everything else is the same."""


@pytest.mark.parametrize(
    ("rel_max", "nodes"), [(0.05, "012"), (0.007, "0"), (0.005, "")], ids=["all", "some", "none"]
)
def test_what_is_told_of_a_plan_is_of_the_model_with_its_bf16(rel_max, nodes):
    fixed = found(TWO, no_repair=True, allow_bf16=True, rel_max=rel_max)
    kept, planner = fixed.found.kept, fixed.planner
    bf16 = {name for name in kept if name[-1] in nodes or len(nodes) == 3}
    assert len(kept) == 6
    assert planner.types_of(kept).bf16 == bf16
    assert fixed.verdict.passed
    assert planner.prices is not None
    assert fixed.curve.plan is not None
    point = fixed.curve.points[fixed.curve.plan]
    assert point.count == 6
    assert fixed.curve.bf16(point) == bf16
    assert point.cost == planner.prices.of(kept, Types(frozenset(bf16)))
    written = planner.rewrite(kept)[0].model
    trials = planner.trials
    assert point.error == trials.excess_of(emulate(written, trials.samples).results) * trials.factor
    heldout = trials.of(fixed.heldout.left, fixed.heldout.left_references)
    seen = emulate(written, fixed.heldout.left, inspected=0).results
    assert point.heldout == heldout.excess_of(seen) * trials.factor
    assert not any(p.bf16 for p in fixed.curve.points if p.is_bound)


def test_a_plan_that_was_not_tried_may_cost_what_it_does_with_bf16():
    made = planner(TWO, allow_bf16=True, rel_max=0.007)
    one = frozenset(map(NodeName, ("up_0", "wide_0", "down_0")))
    prices = made.prices
    assert prices is not None
    assert made.price(one) == prices.of(one, Types(one)) < made.cost(one) == prices.of(one)
    everything = made.roles.computing
    assert made.price(everything) == prices.of(everything)
    two = one | {"up_5", "wide_5", "down_5"}
    assert made.trials.evaluate(two).passed
    bf16 = made.types_of(two).bf16
    assert frozenset() < bf16 < two
    assert made.price(two) == made.cost(two) < prices.of(two)
    # What needs its bits there is FP32 in all plans that come.
    assert made.narrowing.foreseen(two - {"up_0"}).bf16 == bf16 - {"up_0"}


@pytest.mark.parametrize("limit", [{"time_budget": 0}, {"budget": 4}])
def test_without_time_nothing_has_bf16_and_the_plan_passes(limit):
    fixed = found(TWO, no_repair=True, allow_bf16=True, rel_max=0.05, **limit)
    assert not fixed.planner.types_of(fixed.found.kept).bf16
    assert fixed.verdict.passed


def test_samples_that_join_are_tried_with_bf16_anew():
    fixed = found(growing(7), no_repair=True, allow_bf16=True, rel_max=0.05)
    kept = fixed.found.kept
    assert fixed.search.joined == ("inputs[7]",)
    assert fixed.verdict.passed
    planner, written = fixed.planner, fixed.rewritten.model
    results = emulate(written, planner.trials.samples).results
    assert planner.trials.excess_of(results) <= 1
    assert planner.trials.exact(kept) == planner.trials.excess_of(results)


def test_an_opset_without_bf16_is_told_before_the_search():
    ill = models.conv_chain()
    ill.proto.opset_import[0].version = 12
    with pytest.raises(CaseError, match="BF16 needs opset 13"):
        found(ill, allow_bf16=True)


def products(fixed):
    return {k.op: k.precision for k in fixed.plan.keep if k.op in TF32_OPS}


def test_products_that_need_range_get_tf32_and_cost_less():
    fixed = found(models.busy_product(), no_repair=True, allow_tf32=True)
    kept, planner = fixed.found.kept, fixed.planner
    assert set(products(fixed).values()) == {"tf32"}
    assert planner.types_of(kept) == Types(tf32=True)
    assert fixed.verdict.passed
    assert planner.prices is not None
    assert planner.cost(kept) == planner.prices.of(kept, Types(tf32=True)) < planner.prices.of(kept)
    mixed = replace(planner.case.network, model=fixed.rewritten.model)
    worth = candidate_worth(planner.case, planner.settings, mixed)
    assert worth is not None
    assert worth.cost == pytest.approx(planner.cost(kept))
    # What is told of the plan is of the written model, whose nodes say that they are TF32.
    written, trials = planner.rewrite(kept)[0].model, planner.trials
    error = trials.excess_of(emulate(written, trials.samples).results) * trials.factor
    assert fixed.curve.plan is not None
    point = fixed.curve.points[fixed.curve.plan]
    assert (point.tf32, point.error) == (True, error)
    for node in written.graph:
        node.metadata_props.pop(TF32_MARK, None)
    assert trials.excess_of(emulate(written, trials.samples).results) * trials.factor != error


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
    assert fixed.planner.types_of(fixed.found.kept) == FP32_ALONE
    assert fixed.verdict.passed


def test_bf16_and_tf32_are_weighed_in_one_search():
    fixed = found(TWO, no_repair=True, allow_bf16=True, allow_tf32=True, rel_max=0.007)
    types = fixed.planner.types_of(fixed.found.kept)
    assert types.bf16
    assert types.tf32 == any(k.op in TF32_OPS and k.precision == "tf32" for k in fixed.plan.keep)
    assert fixed.verdict.passed
