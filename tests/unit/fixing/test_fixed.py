"""What a run found is of one plan."""

from dataclasses import replace

import onnx_ir as ir
import pytest

from halfwise.fixing.fixed import plan_of, rungs_of, with_beside
from halfwise.fixing.space import LowSpace
from halfwise.records import Failure
from halfwise.reporting.remarks import explained, reason_of
from tests import models, tasks
from tests.unit.casing import names
from tests.unit.fixing.int8.products import outlier
from tests.unit.fixing.running import found, kept
from tests.unit.reporting.engine_runs import engines

pytestmark = pytest.mark.usefixtures("unrepaired")

NONE = names()


def test_all_that_a_run_found_is_of_one_plan():
    fixed = found(models.root_mean_square())
    nodes = [
        node for node in fixed.space.variant.case.network.nodes() if node.name in fixed.result.kept
    ]
    assert kept(fixed) == fixed.result.kept == {node.name for node in nodes}
    assert fixed.curve.plan is not None
    assert fixed.curve.kept(fixed.curve.points[fixed.curve.plan]) == fixed.result.kept
    assert fixed.verdict.samples == fixed.heldout.samples.ids
    assert fixed.observations is fixed.space.evidence.observations
    assert fixed.evaluations == fixed.space.bench.evaluations
    assert fixed.original is fixed.space
    assert fixed.assigned == fixed.space.fresh(fixed.result.kept)
    assert fixed.seen == fixed.observations


def test_the_record_tells_what_keeps_a_node():
    plan = found(models.layer_norm(), keep=[".*"]).plan
    why = {k.node: k.because for k in plan.keep}
    assert why
    assert all(b is not None and b.rule == "--keep .*" for b in why.values())
    assert {k.kept_by for k in plan.keep} == {"rule"}
    assert plan.repairs == ()


def test_a_node_kept_only_because_less_costs_more_has_no_cause():
    """A guard may name it, but a plan that lowers it passes."""
    fixed = found(models.layer_norm())
    name = min(fixed.result.kept)
    cheaper = replace(fixed.result, spare=frozenset((name,)))
    assert isinstance(fixed.space, LowSpace)
    keep = {k.node: k for k in plan_of(fixed.space, fixed.assigned, cheaper, NONE, 0, ()).keep}
    assert keep[name].spare
    assert (keep[name].guard, keep[name].unknown) == (None, False)
    assert all(k.guard and not k.spare for k in keep.values() if k.node != name)
    assert reason_of(keep[name], None) == "spare"
    told = explained((keep[name],), fixed.guards, 2.0, None)[0].reason
    assert told.startswith("Not needed: a plan that lowers it passes too, but costs more")


def test_what_onnx_runtime_refused_is_on_record():
    search = found(models.detector()).search
    assert "square" not in search.refused
    assert search.refused
    assert found(models.layer_norm()).search.refused == ""


@pytest.fixture(scope="module")
def fixed():
    return tasks.fixed(tasks.classifier(), rel_max=1e-4)


def climbed(*arguments):
    return [rung.model_dump() for rung in rungs_of(*arguments)]


def test_errors_scores_and_costs_are_those_of_each_type(fixed):
    fp32, tf32, low = climbed(fixed, fixed.verdict, "labels")
    space, kept = fixed.space, fixed.result.kept
    prices = space.variant.prices
    assert (fp32["passed"], fp32["by"], fp32["cost"]) == (True, "labels", prices.fp32)
    assert (tf32["passed"], tf32["candidates"]) == (False, 1)
    assert tf32["error"] > 1
    assert tf32["heldout"] > 1
    assert tf32["failures"]
    all_tf32 = prices.model.cost(frozenset(space.variant.roles), tf32=True)
    assert tf32["cost"] == all_tf32 / prices.least
    assert (low["rung"], low["kept"], low["passed"]) == ("fp16", len(kept), fixed.verdict.passed)
    assert low["cost"] == space.cost(kept)
    assert low["error"] == pytest.approx(space.excess(kept) * space.bench.tolerance.factor)
    assert low["low_share"] == prices.model.macs(space.choices - kept)
    assert {score["metric"] for score in low["scores"]} == {
        score["metric"] for score in fp32["scores"]
    }
    assert low["bytes"] <= fp32["bytes"]


def test_without_engines_the_cheapest_that_is_not_wrong_is_chosen(fixed):
    failed = fixed.verdict.model_copy(update={"passed": False})
    chosen = {r["rung"]: r["chosen"] for r in climbed(fixed, failed, None)}
    assert chosen == {"fp32": True, "tf32": False, "fp16": False}


@pytest.mark.parametrize(("decibels", "delivered"), [(25, "int8"), (58, "fp16")])
def test_int8_is_delivered_where_it_passes_and_costs_less(decibels, delivered, tmp_path):
    found = tasks.fixed(outlier(), to="int8", snr_db=decibels, allow_random=True)
    whole = climbed(found, found.verdict, None)
    rungs = {rung["rung"]: rung for rung in whole}
    assert list(rungs) == ["fp32", "tf32", "fp16", "int8"]
    (int8,) = (one for one in found.rungs if one.plan.has_int8)
    own = rungs["int8"]
    assert (own["left_out"], own["candidates"]) == (len(int8.plan.left_out), 4)
    assert own["low_share"] == 1 - own["left_out"] / 4
    assert own["cost"] == int8.space.cost(int8.result.kept)
    for one, rung in zip(found.rungs, ("fp16", "int8"), strict=True):
        ir.save(one.rewritten.model, tmp_path / f"{rung}.onnx")
        size = (tmp_path / f"{rung}.onnx").stat().st_size
        assert rungs[rung]["bytes"] == pytest.approx(size, rel=0.01)
    assert (found.plan.int8 != ()) == (delivered == "int8")
    assert own["passed"] == (True if delivered == "int8" else None)
    assert (own["cost"] < rungs["fp16"]["cost"]) == (delivered == "int8")
    assert [rung for rung in rungs if rungs[rung]["chosen"]] == [delivered]
    curve = with_beside(found, found.result.kept)
    assert curve.beside is not None
    assert {curve.rung, curve.beside.rung} == {"fp16", "int8"}
    assert curve.rung == delivered


def test_what_the_data_do_not_test_is_not_judged(fixed):
    random = fixed.verdict.model_copy(
        update={"passed": False, "failures": (Failure(kind="not-real"),)}
    )
    fp32, tf32, low = climbed(fixed, random, None)
    assert [fp32["passed"], tf32["passed"], low["passed"]] == [None, False, None]
    assert not low["chosen"]


def test_with_engines_each_rung_is_that_of_its_fastest_that_passed(fixed):
    rounds = {1: (4.0, 4.2) * 6, 5: (2.0, 2.1) * 6, 3: (1.0, 1.05) * 6}

    def taking_turns(row):
        medians = rounds.get(row.build.number, ())
        rung = {1: "fp32", 5: "tf32"}.get(row.build.number, "fp16")
        timed = row.latency.model_copy(update={"medians": medians})
        return row.model_copy(update={"rung": rung, "latency": timed, "excess": 0.5})

    found = engines()
    rows = tuple(map(taking_turns, found.results))
    found = found.model_copy(update={"results": rows, "rung": "fp16"})
    fp32, tf32, low = climbed(fixed, fixed.verdict, None, found)
    assert [r["chosen"] for r in (fp32, tf32, low)] == [False, False, True]
    assert fp32["beside"] is None
    assert tf32["beside"]["low"] == tf32["beside"]["high"] == 0.5
    # The engine with nothing kept is faster, and failed.
    assert (low["latency"]["median_ms"], low["kept"], low["passed"]) == (1.05, 13, True)
    assert low["beside"]["high"] == pytest.approx(0.5)
    assert low["bytes"] == 10 * 2**20
    own = rows[-1]
    # Excesses are over what the search may use.
    assert low["error"] == own.excess * fixed.space.bench.tolerance.factor
