from time import monotonic
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfwise.fixing.engines.device import TF32_ENGINE
from halfwise.fixing.engines.measure import ROUNDS
from halfwise.fixing.engines.plan import EnginePlan, Outcome
from halfwise.fixing.engines.search import choose
from halfwise.fixing.plan.plan import Plan
from halfwise.progress import offered
from halfwise.records import FP32_ENGINE, EngineRung, replace
from halfwise.tensorrt.failures import EngineFailed
from tests import models
from tests.fake_tensorrt.faults import Fault
from tests.unit.casing import names
from tests.unit.reporting.engine_runs import latency, result
from tests.unit.reporting.runs import verdict

VARIANT: Any = None
KEPT = names(*models.layer_norm().kept)
NOTHING = names()


def table(ready, *keeps, **terms):
    """Return the table of plans, after plain low precision."""
    ready.device.reference()
    bench = ready.bench()
    plain = ready.plan(NOTHING)
    bench.evaluate(plain, "plain")
    for keep in keeps:
        bench.evaluate(ready.plan(keep, **terms), "mixed")
    return bench.table(NOTHING, plain)


def rows(ready, *keeps, **terms):
    """Return rows by name."""
    return {o.rows[""].name: o.rows[""] for o in table(ready, *keeps, **terms)}


def test_every_engine_is_judged_timed_and_inspected_alike(stage):
    ready = stage(models.layer_norm())
    table_rows = rows(ready, KEPT)
    assert list(table_rows) == [FP32_ENGINE, TF32_ENGINE, "FP16", "mixed"]
    assert [row.verdict.passed for row in table_rows.values()] == [True, True, False, True]
    assert {row.verdict.samples for row in table_rows.values()} == {ready.fixed.heldout.samples.ids}
    assert {tuple(row.latency.shapes.items()) for row in table_rows.values()} == {
        (("x", (1, 4, 32)),)
    }
    assert all(row.proof for row in table_rows.values())
    assert table_rows["mixed"].kept == 4


def test_after_ctrl_c_no_worker_is_started_for_fp32_engines_that_are_known(stage, monkeypatch):
    ready = stage(models.layer_norm())
    with offered() as over:
        ready.device.reference()
        bench, heldout = ready.bench(), ready.fixed.heldout
        bench.space.join(heldout.samples, heldout.references)
        over.at = monotonic()
        ready.worker.close(patience=0.0)
        monkeypatch.setattr(ready.worker, "connect", lambda *_: pytest.fail("started again"))
        table = bench.table(NOTHING, ready.plan(NOTHING))
        assert [one.deliverable for one in table] == [True, True]
        ready.device.builds.forget(None)
        assert ready.worker.process_id is None


def test_rows_with_as_many_kept_nodes_are_told_apart_and_timed_apart(stage):
    ready = stage(models.layer_norm(), pace={"fp32": 3.0, "low": 1.0, "border": 0.5})
    table_rows = rows(ready, *(KEPT | names(n) for n in ("gamma", "divide", "mean")))
    assert len(table_rows) == 6
    mixed = [row for row in table_rows.values() if row.kept]
    times = {row.build.number: row.latency.median_ms for row in mixed}
    assert len(set(times.values())) > 1
    for row in mixed:
        median = ready.device.measure.latency(row.build.engine).median_ms
        assert row.latency.medians == (median,) * ROUNDS


def test_where_no_engine_runs_plain_low_precision_is_told(stage):
    ready = stage(models.layer_norm(), faults=[Fault("run", "abort", when={"low": "fp16"})])
    table_rows = rows(ready)
    assert list(table_rows) == [FP32_ENGINE, TF32_ENGINE, "FP16"]
    assert "SIGABRT" in table_rows["FP16"].failure
    assert table_rows["FP16"].verdict is None


def test_a_connection_lost_once_leaves_every_row(stage):
    ready = stage(models.layer_norm(), faults=[Fault("run", "disconnect", on=(2,))])
    assert [row.failure for row in rows(ready, KEPT).values()] == [""] * 4


def crashing(*_, **__):
    raise EngineFailed("It ended with SIGSEGV.", status="crashed", signal="SIGSEGV")


def test_engines_that_cannot_be_inspected_are_judged_and_timed(stage, monkeypatch):
    ready = stage(models.layer_norm())
    monkeypatch.setattr(ready.device.measure, "proof", crashing)
    table_rows = rows(ready, KEPT)
    assert all(row.verdict and row.latency and not row.proof for row in table_rows.values())
    assert not any(row.failure or row.untimed for row in table_rows.values())
    notes = [note for note in ready.device.notes if "computes in is not known" in note]
    assert len(notes) == 4


def test_what_cannot_be_timed_is_judged_and_inspected(stage, monkeypatch):
    ready = stage(models.layer_norm())
    monkeypatch.setattr(ready.device.measure, "latency", crashing)
    table_rows = rows(ready)
    for name in (FP32_ENGINE, TF32_ENGINE):
        row = table_rows[name]
        assert (row.untimed, row.failure) == ("It ended with SIGSEGV.", "")
        assert row.verdict.passed
        assert row.proof


def test_an_engine_that_is_fp32_in_truth_is_told(stage):
    # Every free node FP32, whatever was allowed; and FP32 engines that are not exact.
    ready = stage(models.layer_norm(), vary=(1.0, 1), broken={"gamma": 1.000003})
    table_rows = rows(ready, KEPT)
    assert any("nothing in FP16" in line for line in table_rows["mixed"].proof.findings)


def test_in_strong_typing_every_node_was_asked_for(stage):
    table_rows = rows(stage(models.layer_norm(), version="10.0.1"), KEPT)
    requested = {node.asked for node in table_rows["mixed"].proof.nodes}
    assert {"fp32", "fp16"} <= requested
    assert table_rows["mixed"].proof.findings == ()


def offer(
    rung: EngineRung,
    *medians: float,
    passed: bool = True,
    excess: float | None = 0.5,
    limit: float = 1.0,
    on: tuple[str, ...] = ("",),
) -> Outcome:
    """Return an engine with the medians of its rounds, alike on each device."""
    time = latency(sorted(medians)[len(medians) // 2])
    time = replace(time, medians=medians)
    judged = verdict(level="engine", passed=passed)
    row = result(rung, 1, 1.0, latency=time, verdict=judged, rung=rung, excess=excess)
    plan = EnginePlan(Plan(VARIANT, NOTHING), rung, tf32=rung == "tf32")
    return Outcome(plan, dict.fromkeys(on, row), limit)


def changed(one: Outcome, **update: Any) -> Outcome:
    """Return an offer with other rows."""
    rows_ = {name: replace(row, **update) for name, row in one.rows.items()}
    return replace(one, rows=rows_)


def test_the_fastest_that_passes_is_chosen_whatever_its_rung():
    offers = [
        offer("fp32", *[8.1] * ROUNDS),
        offer("tf32", *[5.8] * ROUNDS),
        offer("fp16", *[1] * ROUNDS, passed=False),
        offer("fp16", *[6.2] * ROUNDS),
    ]
    assert choose(offers) == offers[1]
    assert choose(offers[:1]) == offers[0]
    assert choose([offers[2]]) is None
    assert choose([]) is None


def test_what_fails_while_others_take_turns_is_not_chosen(stage, monkeypatch):
    ready = stage(models.layer_norm())
    ready.device.reference()
    gone = ready.device.full["fp32"].build.engine
    lap = ready.device.measure.lap
    monkeypatch.setattr(
        ready.device.measure, "lap", lambda engine: None if engine == gone else lap(engine)
    )
    fp32, tf32 = ready.bench().table(NOTHING, ready.plan(NOTHING))
    assert (fp32.rows[""].latency, fp32.milliseconds) == (None, float("inf"))
    assert "took turns" in fp32.rows[""].untimed
    assert choose([fp32, tf32]) == tf32
    assert choose([fp32]) == fp32


def test_without_held_out_samples_what_is_within_the_tolerance_may_be_delivered():
    low = offer("fp16", 1)
    unheld = replace(verdict(level="engine", passed=False), unseen=False)
    for passed in (True, False):
        outputs = {n: replace(o, passed=passed) for n, o in unheld.outputs.items()}
        judged = replace(unheld, outputs=outputs)
        assert changed(low, verdict=judged).deliverable == passed


def test_what_the_search_knows_to_be_off_is_not_delivered():
    off = offer("tf32", 1, excess=1.2, limit=2.0)
    assert off.deliverable
    assert not replace(off, limit=1.0).deliverable
    assert not replace(off, allowed=False).deliverable
    assert not offer("fp16", 1, excess=None).deliverable


def test_of_several_devices_all_have_to_pass_and_the_mean_of_times_decides():
    both = offer("fp16", 4.0, on=("orin", "a100"))
    assert both.deliverable
    time = both.rows["orin"].latency
    assert time is not None
    fast = replace(both.rows["a100"], latency=replace(time, median_ms=1.0, medians=(1.0,)))
    mixed = replace(both, rows={**both.rows, "a100": fast})
    assert mixed.milliseconds == 2.0
    assert mixed.on("a100").milliseconds == 1.0
    off = replace(fast, verdict=verdict(level="engine", passed=False))
    failing = replace(both, rows={**both.rows, "a100": off})
    assert (failing.deliverable, failing.on("orin").deliverable) == (False, True)
    assert choose([failing]) is None


@given(
    st.lists(
        st.builds(
            offer,
            st.sampled_from(("fp32", "tf32", "fp16")),
            *(st.floats(0.1, 10) for _ in range(ROUNDS)),
            passed=st.booleans(),
            excess=st.none() | st.floats(0, 2),
        ),
        max_size=5,
    ),
)
def test_what_is_chosen_passed_and_nothing_that_passed_is_faster(offers):
    chosen = choose(offers)
    passed = [o for o in offers if o.deliverable]
    assert (chosen is None) == (not passed)
    if chosen is not None:
        assert chosen in passed
        assert chosen.milliseconds == min(o.milliseconds for o in passed)
