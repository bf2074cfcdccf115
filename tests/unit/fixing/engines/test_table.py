from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfwise.fixing.engines.attempts import USUAL, WITH_TF32, Candidate
from halfwise.fixing.engines.conclude import rungs
from halfwise.fixing.engines.measure import Measure
from halfwise.fixing.engines.proposals import quicker
from halfwise.fixing.engines.race import ROUNDS
from halfwise.fixing.engines.table import (
    MIXED,
    Offer,
    Table,
    better_known,
    choose,
    faster,
    rows_of,
)
from halfwise.fixing.engines.workbench import FP32, TF32
from halfwise.records import EngineResult, EngineRung, Prefer, TimeRatio
from halfwise.tensorrt.failures import EngineFailed
from tests import models
from tests.fake_tensorrt.faults import Fault
from tests.models.overflow import feed_forward
from tests.unit.casing import names
from tests.unit.reporting.engine_runs import build, latency, result
from tests.unit.reporting.runs import verdict

KEPT = names(*models.layer_norm().kept)
NOTHING = names()


def table(ready):
    fixed = ready.fixed
    heldout = fixed.heldout.for_watcher(ready.listener)
    return Table(ready.run, fixed.planner, heldout)


def rows(ready, *keeps):
    """Return rows by name."""
    return {o.row.name: o.row for o in offered(ready, *keeps)}


def offered(ready, *keeps, terms=USUAL):
    """Return offers of plans that were built on `terms`, and of what is built without a plan."""
    attempts, builds = ready.attempts, ready.run.builds
    fp32 = builds.build(ready.run.fp32, FP32)
    plain = attempts.attempt(NOTHING, "plain")
    low = [plain, *(attempts.attempt(keep, "mixed", terms) for keep in keeps)]
    tf32 = builds.build(ready.run.fp32, TF32, tf32=True)
    full = [attempts.measured(Candidate(NOTHING, b.purpose, b), b.purpose) for b in (fp32, tf32)]
    made = table(ready)
    offers = made.further((made.exact(full[0], verdict()), made.with_tf32(full[1])), low, low)
    return made.raced(offers)


def test_every_engine_is_judged_timed_and_inspected_alike(stage):
    ready = stage(models.layer_norm())
    found = rows(ready, KEPT)
    assert list(found) == [FP32, TF32, "FP16", MIXED]
    assert [row.verdict.passed for row in found.values()] == [True, True, False, True]
    assert {row.verdict.samples for row in found.values()} == {ready.fixed.heldout.samples.ids}
    assert {tuple(row.latency.shapes.items()) for row in found.values()} == {(("x", (1, 4, 32)),)}
    assert all(row.proof for row in found.values())
    assert found[MIXED].kept == 4
    assert any("With 4 nodes constrained" in note for note in ready.notes)


def test_rows_with_as_many_kept_nodes_are_told_apart_and_timed_apart(stage):
    ready = stage(models.layer_norm(), pace={"fp32": 3.0, "low": 1.0, "border": 0.5})
    found = rows(ready, *(KEPT | names(n) for n in ("gamma", "divide", "mean")))
    assert len(found) == 6
    mixed = [row for row in found.values() if row.kept]
    times = {row.build.number: row.latency.median_ms for row in mixed}
    assert len(set(times.values())) > 1
    for row in mixed:
        own = ready.run.measure.latency(row.build.engine).median_ms
        assert row.latency.medians == (own,) * ROUNDS


def test_where_nothing_is_kept_there_is_no_further_row(stage):
    assert list(rows(stage(models.small()))) == [FP32, TF32, "FP16"]


def test_where_no_engine_runs_plain_low_precision_is_told(stage):
    ready = stage(models.layer_norm(), faults=[Fault("run", "abort", when={"low": "fp16"})])
    found = rows(ready)
    assert list(found) == [FP32, TF32, "FP16"]
    assert "SIGABRT" in found["FP16"].failure
    assert found["FP16"].verdict is None


def test_a_connection_lost_once_leaves_every_row(stage, monkeypatch):
    lost = [True]

    def at_shapes(*given):
        if lost:
            lost.clear()
            raise EngineFailed("The connection is lost.", status="lost")
        return Measure.at_shapes(*given)

    ready = stage(models.layer_norm())
    monkeypatch.setattr(ready.run.measure, "at_shapes", partial(at_shapes, ready.run.measure))
    found = rows(ready, KEPT)
    assert not lost
    assert [row.failure for row in found.values()] == [""] * 4
    assert found[MIXED].verdict.passed


def crashing(*_, **__):
    raise EngineFailed("It ended with SIGSEGV.", status="crashed", signal="SIGSEGV")


def test_engines_that_cannot_be_inspected_are_judged_and_timed(stage, monkeypatch):
    ready = stage(models.layer_norm())
    monkeypatch.setattr(ready.run.measure, "proof", crashing)
    found = rows(ready, KEPT)
    assert all(row.verdict and row.latency and not row.proof for row in found.values())
    assert not any(row.failure or row.untimed for row in found.values())
    assert sum("computes in is not known: It ended with" in note for note in ready.notes) == 4


def test_what_crashes_where_it_is_judged_was_timed(stage, monkeypatch):
    ready = stage(models.layer_norm())
    monkeypatch.setattr(ready.run.measure, "judge", crashing)
    row = rows(ready)[FP32]
    assert (row.failure, row.untimed) == ("It ended with SIGSEGV.", "")


def test_fp32_that_cannot_be_timed_is_judged_and_inspected(stage, monkeypatch):
    ready = stage(models.layer_norm())
    monkeypatch.setattr(ready.run.measure, "latency", crashing)
    row = rows(ready)[FP32]
    assert row.failure == "It ended with SIGSEGV."  # as any other, without leave
    fp32 = Candidate(NOTHING, FP32, row.build)
    measured = ready.attempts.measured(fp32, FP32, untimed=True)
    row = table(ready).exact(measured, verdict()).row
    assert (row.untimed, row.failure) == ("It ended with SIGSEGV.", "")
    assert row.verdict.passed
    assert row.proof


def test_an_engine_that_is_fp32_in_truth_is_told(stage):
    # Every free node FP32, whatever was allowed; and FP32 engines that are not exact.
    ready = stage(models.layer_norm(), vary=(1.0, 1), broken={"gamma": 1.000003})
    found = rows(ready, KEPT)
    assert found[MIXED].shows == found["FP16"].shows == "fp32"
    assert found[FP32].shows is found[TF32].shows is None
    assert any("nothing in FP16" in line for line in found[MIXED].proof.findings)


@pytest.mark.parametrize(("exact", "shows"), [(False, "tf32"), (True, "fp32")])
def test_a_plan_that_is_tf32_in_truth_is_told_and_not_delivered(stage, exact, shows):
    """Nothing free is FP16, and TF32 is allowed: it shows where there are products, or nowhere."""
    ill = models.layer_norm() if exact else feed_forward()
    pace = {"fp32": 2.0, "tf32": 1.0, "low": 1.0}
    broken = {"gamma": 1.000003} if exact else None
    ready = stage(ill, vary=(1.0, 1), broken=broken, pace=pace)
    offers = offered(ready, names(*ill.kept), terms=WITH_TF32)
    found = {o.row.name: o for o in offers}
    assert found[MIXED].row.shows == shows
    assert found[MIXED].passed
    best = choose(offers, "speed")
    assert best in (found[FP32], found[TF32])
    low = [[o.candidate] for o in offers if o.rung == "fp16"]
    assert rungs(offers, best, low)[-1].end == "no-part"


def test_in_strong_typing_every_node_was_asked_for(stage):
    found = rows(stage(models.layer_norm(), version="10.0.1"), KEPT)
    asked = {node.asked for node in found[MIXED].proof.nodes}
    assert {"fp32", "fp16"} <= asked
    assert found[MIXED].proof.findings == ()


PREFERRED: tuple[Prefer, ...] = ("speed", "memory", "exact")


def offer(
    rung: EngineRung,
    *medians: float,
    passed: bool = True,
    excess: float | None = 0.5,
    memory: int = 1,
    limit: float = 1.0,
) -> Offer:
    """Return an engine with the medians of its rounds."""
    time = latency(sorted(medians)[len(medians) // 2])
    time = time.model_copy(update={"medians": medians, "device_bytes": memory})
    told = verdict(level="engine", passed=passed)
    row: EngineResult = result(rung, 1, 1.0, latency=time, verdict=told)
    candidate = Candidate(NOTHING, rung, build(1, rung), excess, time)
    return Offer(rung, candidate, limit, row)


def test_one_is_faster_where_it_is_in_all_of_seven_rounds():
    drift = (1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6)
    last = (*drift[:-1], 0.9)
    a, b, c = (offer("fp16", *m).row.latency for m in (drift, [1.01 * t for t in drift], last))
    assert faster(a, b)
    assert not faster(b, a)
    assert not faster(a, c)
    alone = latency(0.1)
    assert not faster(alone, b)
    assert not faster(None, b)


def test_rows_tell_how_the_delivered_engine_compares():
    offers = [offer("fp32", *[2.0] * ROUNDS), offer("fp16", *[1.0] * ROUNDS), offer("tf32", 5)]
    fp32, fp16, tf32 = rows_of(offers, offers[1])
    assert fp32.ratio == TimeRatio(low=0.5, high=0.5, rounds=ROUNDS)
    assert fp16.ratio is tf32.ratio is None
    assert [row.ratio for row in rows_of(offers, None)] == [None] * 3


def test_the_fastest_that_passes_is_chosen_whatever_its_rung():
    offers = [
        offer("fp32", *[8.1] * ROUNDS),
        offer("tf32", *[5.8] * ROUNDS),
        offer("fp16", *[1] * ROUNDS, passed=False),
        offer("fp16", *[6.2] * ROUNDS),
    ]
    assert choose(offers, "exact") == offers[1]
    assert choose(offers[:1], "speed") == offers[0]
    assert choose([offers[2]], "speed") is None
    assert choose([], "speed") is None


@pytest.mark.parametrize(("prefer", "chosen"), [("speed", 1), ("memory", 2), ("exact", 0)])
def test_what_is_preferred_decides_where_times_overlap(prefer, chosen):
    offers = [
        offer("fp32", 1.0, *[1.1] * 4, 1.2, 0.9, excess=0.1, memory=9),
        offer("tf32", 1.1, *[1.0] * 4, 0.9, 1.0, excess=0.2, memory=8),
        offer("fp16", 1.05, *[1.15] * 4, 0.85, 1.2, excess=0.9, memory=3),
        offer("fp16", *[2.0] * ROUNDS, excess=0.0, memory=1),
    ]
    assert choose(offers, prefer) == offers[chosen]


def as_tf32(shown: Offer) -> Offer:
    """Return an engine of the low format that gives the outputs of the TF32 engine."""
    return replace(shown, row=shown.row.model_copy(update={"shows": "tf32"}))


@pytest.mark.parametrize("prefer", PREFERRED)
def test_what_gives_the_outputs_of_tf32_is_delivered_only_if_it_is_faster(prefer):
    fp32, tf32 = offer("fp32", *[2.0] * ROUNDS), offer("tf32", *[1.0] * ROUNDS, memory=9)
    noisy = 0.99, 0.98, 1.01, 0.97, 0.99, 0.98, 1.01
    same = as_tf32(offer("fp16", *noisy, excess=0.1, memory=1))
    assert choose([fp32, tf32, same], prefer) == tf32
    ends = [t.end for t in rungs([fp32, tf32, same], tf32, [[same.candidate]])]
    assert ends == ["slower", "delivered", "no-part"]
    other = offer("fp16", *noisy, excess=0.1, memory=1)
    ends = [t.end for t in rungs([fp32, tf32, same, other], tf32, [[same.candidate]])]
    assert ends[-1] == "not-preferred"
    quick = as_tf32(offer("fp16", *[0.9] * ROUNDS))
    assert choose([fp32, tf32, quick], prefer) == quick
    ends = [t.end for t in rungs([fp32, tf32, quick], quick, [[quick.candidate]])]
    assert ends == ["slower", "slower", "no-part"]


@pytest.mark.parametrize("prefer", ["speed", "memory", "exact"])
def test_what_fails_while_others_take_turns_is_not_chosen(prefer):
    steady = offer("fp32", 2, 2, 2, excess=0.5, memory=5)
    gone = offer("fp16", 1, excess=0.1, memory=1)
    assert gone.row.latency is not None
    latency_ = gone.row.latency.model_copy(update={"medians": ()})
    gone = replace(gone, row=gone.row.model_copy(update={"latency": latency_}))
    assert choose([steady, gone], prefer) == steady
    assert choose([gone], prefer) == gone


def test_without_held_out_samples_what_is_within_the_tolerance_may_be_delivered():
    low = offer("fp16", 1)
    seen = verdict(level="engine", passed=False).model_copy(update={"unseen": False})
    row = low.row.model_copy(update={"verdict": seen})
    assert seen.within == all(o.passed for o in seen.outputs.values())
    outputs = {n: o.model_copy(update={"passed": True}) for n, o in seen.outputs.items()}
    good = seen.model_copy(update={"outputs": outputs})
    assert replace(low, row=row.model_copy(update={"verdict": good})).passed
    off = {n: o.model_copy(update={"passed": False}) for n, o in seen.outputs.items()}
    bad = seen.model_copy(update={"outputs": off})
    assert not replace(low, row=row.model_copy(update={"verdict": bad})).passed


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
    st.sampled_from(("speed", "memory", "exact")),
)
def test_what_is_chosen_passed_and_nothing_that_passed_is_faster(offers, prefer):
    chosen = choose(offers, prefer)
    passed = [o for o in offers if o.passed]
    assert (chosen is None) == (not passed)
    if chosen is not None:
        assert chosen.passed
        quickest = min(passed, key=lambda o: o.milliseconds)
        assert not faster(quickest.row.latency, chosen.row.latency)


def test_what_was_not_timed_comes_last():
    untimed = offer("fp32", 1, excess=0.1)
    untimed = replace(untimed, row=untimed.row.model_copy(update={"latency": None}))
    alone = offer("tf32", 5)
    assert alone.row.latency is not None
    found = alone.row.latency.model_copy(update={"medians": ()})
    alone = replace(alone, row=alone.row.model_copy(update={"latency": found}))
    for prefer in PREFERRED:
        assert choose([untimed, alone], prefer) == alone


def test_what_was_judged_before_the_worker_was_lost_may_be_delivered():
    gone = offer("fp32", 1, excess=None)
    assert not gone.known
    assert replace(gone, checked=True).passed
    assert not replace(offer("fp32", 1, excess=1.2), checked=True).passed
    row = gone.row.model_copy(update={"verdict": None, "lost": True})
    lost = replace(gone, row=row, candidate=replace(gone.candidate, lost=True))
    assert [t.end for t in rungs([lost], None, [])] == ["lost"]


def test_what_was_judged_stands_where_the_worker_is_lost_later():
    judged = offer("fp32", 1)
    failed = replace(judged, row=judged.row.model_copy(update={"verdict": None}))
    kept = replace(judged, checked=True)
    assert better_known(judged, kept) is better_known(judged, failed) is judged
    for before in (kept, failed):
        assert better_known(before, judged) is judged
    assert better_known(failed, kept) is kept
    assert better_known(kept, failed) is failed
    later = replace(judged, limit=2.0)
    assert better_known(judged, later) is later


def test_what_the_search_knows_to_be_off_is_not_delivered():
    known = offer("tf32", 1, excess=1.2, limit=2.0)
    assert known.passed
    assert not replace(known, limit=1.0).passed
    assert not replace(known, allowed=False).passed
    assert not offer("fp16", 1, excess=None).passed


def test_engines_are_quicker_where_both_were_timed():
    a, b = (Candidate(NOTHING, "", build(1, ""), 0.1, latency(t)) for t in (1.0, 2.0))
    assert quicker(a, b)
    assert not quicker(b, a)
    assert not quicker(replace(a, latency=None), b)


def test_what_ran_fewer_rounds_is_held_against_the_same_rounds():
    # The clock slowed down after the last round of the other one.
    fastest = offer("fp16", *[1.0] * ROUNDS, *[1.3] * ROUNDS)
    left = offer("tf32", *[1.1] * ROUNDS)
    assert left.milliseconds < fastest.milliseconds
    assert choose([left, fastest], "speed") == fastest
