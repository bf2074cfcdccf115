"""Which engine is delivered, in a world where times and errors are given."""

from dataclasses import replace
from itertools import combinations
from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfwise.fixing.engines.candidates import Candidate
from halfwise.fixing.engines.delivery import Offer, better_known, choose, faster, quicker, rungs
from halfwise.fixing.engines.measure import ROUNDS
from halfwise.records import EngineResult, EngineRung, NodeName, Prefer
from tests.unit.reporting.engine_runs import build, latency, result
from tests.unit.reporting.runs import verdict

NOTHING: frozenset[NodeName] = frozenset()
PREFERRED: tuple[Prefer, ...] = ("speed", "memory", "exact")
KEPT = frozenset((NodeName("a"),))


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


def test_one_is_faster_where_all_of_its_rounds_are():
    a, b, c = (offer("fp16", *m).row.latency for m in ((1, 2, 3), (4, 5, 6), (3, 4, 5)))
    assert faster(a, b)
    assert not faster(b, a)
    assert not faster(a, c)
    alone = latency(0.1)
    assert not faster(alone, b)
    assert not faster(None, b)


def test_equal_engines_seldom_seem_to_differ():
    # All orders of the rounds of two equal engines are as likely.
    ranks = range(2 * ROUNDS)
    orders = [(a, set(ranks) - set(a)) for a in combinations(ranks, ROUNDS)]
    seeming = sum(max(a) < min(b) for a, b in orders)
    assert (seeming, len(orders)) == (1, comb(2 * ROUNDS, ROUNDS))
    assert len(orders) == 252


def test_the_fastest_that_passes_is_chosen_whatever_its_rung():
    offers = [
        offer("fp32", 8, 8.1, 8.2),
        offer("tf32", 5.7, 5.8, 5.9),
        offer("fp16", 1, 1, 1, passed=False),
        offer("fp16", 6.1, 6.2, 6.3),
    ]
    assert choose(offers, "exact") == offers[1]
    assert choose(offers[:1], "speed") == offers[0]
    assert choose([offers[2]], "speed") is None
    assert choose([], "speed") is None


@pytest.mark.parametrize(("prefer", "chosen"), [("speed", 1), ("memory", 2), ("exact", 0)])
def test_what_is_preferred_decides_where_times_overlap(prefer, chosen):
    offers = [
        offer("fp32", 1.0, 1.1, 1.2, excess=0.1, memory=9),
        offer("tf32", 0.9, 1.0, 1.1, excess=0.2, memory=8),
        offer("fp16", 1.05, 1.15, 1.25, excess=0.9, memory=3),
        offer("fp16", 2.0, 2.1, 2.2, excess=0.0, memory=1),
    ]
    assert choose(offers, prefer) == offers[chosen]


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
            *(st.floats(0.1, 10) for _ in range(3)),
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


def test_what_was_not_timed_or_fetched_comes_last():
    untimed = offer("fp32", 1, excess=0.1)
    untimed = replace(untimed, row=untimed.row.model_copy(update={"latency": None}))
    alone = offer("tf32", 5)
    assert alone.row.latency is not None
    found = alone.row.latency.model_copy(update={"medians": ()})
    alone = replace(alone, row=alone.row.model_copy(update={"latency": found}))
    for prefer in PREFERRED:
        assert choose([untimed, alone], prefer) == alone
        assert choose([untimed, replace(alone, unfetched=True)], prefer) == untimed
    ends = [t.end for t in rungs([untimed, replace(alone, unfetched=True)], untimed, [])]
    assert ends == ["delivered", "unfetched"]


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


def test_every_rung_is_told_with_what_became_of_it():
    none = build(2, "").model_copy(update={"engine": None})
    plain = Candidate(NOTHING, "plain", build(3, ""), 14.0, latency(0.6))
    lost = Candidate(KEPT, "mixed", none)
    fp32, tf32 = offer("fp32", 8, 8, 8, excess=0.01), offer("tf32", 5, 5, 5, excess=0.75)
    low = replace(offer("fp16", 6, 6, 6, passed=False, excess=14.0), candidate=plain)
    told = rungs([fp32, tf32, low], tf32, [[plain], [lost]])
    assert [(t.rung, t.end) for t in told] == [
        ("fp32", "slower"),
        ("tf32", "delivered"),
        ("fp16", "tolerance"),
    ]
    found = told[-1]
    assert (found.plans, found.builds, found.built, found.ran) == (2, 2, 1, 1)
    assert (found.excess, found.kept, found.median_ms) == (14.0, 0, 6)
    of_metric = rungs([fp32, tf32, low], tf32, [[plain], [lost]], relative=False)
    assert {t.excess for t in of_metric} == {None}


@pytest.mark.parametrize(
    ("candidate", "end"),
    [
        (Candidate(KEPT, "", build(1, "").model_copy(update={"engine": None})), "unbuildable"),
        (Candidate(KEPT, "", build(1, ""), failure="it crashed"), "not-run"),
        (Candidate(KEPT, "", build(1, ""), 3.0), "tolerance"),
        (Candidate(KEPT, "", build(1, ""), 0.5), "unsteady"),
    ],
)
def test_why_nothing_low_was_delivered(candidate, end):
    row = result("mixed", 1, 1.0, verdict=verdict(level="engine", passed=False))
    shown = Offer("fp16", candidate, 1.0, row, allowed=False)
    builds = [candidate, replace(candidate, excess=3.0)] if candidate.passed else [candidate]
    assert rungs([shown], None, [builds])[0].end == end


def test_what_failed_on_held_out_samples_is_told():
    low = offer("fp16", 1, passed=False)
    assert rungs([low], None, [[low.candidate]])[0].end == "held-out"
