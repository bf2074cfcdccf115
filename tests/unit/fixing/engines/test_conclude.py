from dataclasses import replace

import pytest

from halfwise.fixing.engines.attempts import Candidate, Chosen
from halfwise.fixing.engines.conclude import Ended, causes, rungs
from halfwise.fixing.engines.proposals import Departure
from halfwise.fixing.engines.race import ROUNDS
from halfwise.fixing.engines.table import Offer
from halfwise.records import (
    Cause,
    EngineRound,
    NodeName,
    NodePrecision,
    Precision,
    TensorName,
)
from tests.unit.fixing.engines.test_search import World, always, names
from tests.unit.fixing.engines.test_table import NOTHING, offer
from tests.unit.reporting.engine_runs import build, latency, proof, result
from tests.unit.reporting.runs import verdict


def ended(delivered: Offer | None, *offers: Offer) -> Ended:
    search = World(always(names(0))).search()
    plain = offers[-1].candidate
    chosen = Chosen(None, plain, (), False, frozenset(), ())
    return Ended(search, chosen, offers, delivered, {})


def test_the_verdict_is_that_of_what_is_delivered():
    fp32, low = offer("fp32", 1), offer("fp16", 2, passed=False)
    found = ended(fp32, fp32, low)
    assert found.verdict(verdict(), (), 3) == fp32.verdict
    assert (found.last, found.keep, found.as_searched) == (fp32, None, False)


def test_a_plan_of_the_low_format_tells_what_it_keeps():
    low = offer("fp16", 2)
    assert ended(low, low).keep == low.candidate.keep
    assert low.candidate.keep != KEPT


def test_where_nothing_passed_what_came_closest_is_told_with_its_cause():
    low = offer("fp16", 2, passed=False, excess=1.4)
    cause = Cause(kind="unknown", builds=(2,), excess=1.4)
    fp32 = offer("fp32", 1, passed=False, excess=1.2)
    found = ended(None, fp32, low).verdict(verdict(), (cause,), 3)
    assert not found.passed
    assert found.level == "engine"
    assert "no engine of 3 builds" in found.reasons[0]
    assert "is unknown" in found.reasons[1]
    known = replace(fp32, limit=2.0)
    assert "is unknown" in ended(None, known, low).verdict(verdict(), (cause,), 3).reasons[0]
    silent = offer("fp16", 2, excess=None)
    emulated = verdict()
    found = ended(None, silent).verdict(emulated, (), 1)
    assert (found.passed, found.level) == (False, emulated.level)


def test_an_fp32_engine_that_is_lost_is_told():
    fp32 = offer("fp32", 1)
    row = fp32.row.model_copy(update={"verdict": None, "failure": "The connection is lost."})
    found = ended(None, replace(fp32, row=row), offer("fp16", 2, excess=None))
    reasons = found.verdict(verdict(), (), 1).reasons
    assert reasons[0].endswith("does not run to the end: The connection is lost.")
    ends = rungs(found.offers, None, [[found.offers[-1].candidate]])
    assert [told.end for told in ends] == ["not-run", "not-run"]


def test_what_does_not_run_on_held_out_samples_is_told():
    low = offer("fp16", 2)
    row = result("FP16", 1, 1.0).model_copy(update={"verdict": None, "failure": "it crashed"})
    gone = Offer("fp16", low.candidate, 1.0, row)
    reasons = ended(None, gone).verdict(verdict(), (), 1).reasons
    assert any("does not run on the held-out samples: it crashed" in r for r in reasons)


A, B = NodeName("a"), NodeName("b")
KEPT = frozenset((A,))


def tried(
    number: int, excess: float | None, *keep: NodeName, shown: Precision = "fp32"
) -> Candidate:
    """Return a build whose inspector shows what is kept as `shown`."""
    nodes = tuple(NodePrecision(node=n, precision=shown, asked="fp32") for n in keep)
    return Candidate(frozenset(keep), "", build(number, ""), excess, proof=proof(nodes=nodes))


def kinds(*candidates: Candidate, predicted: dict[int, float], **more):
    """Return the kinds of causes; the first candidate keeps nothing."""
    rounds = [
        EngineRound(step="", build=c.build.number, keep=tuple(c.keep), predicted=p, passed=c.passed)
        for c in candidates
        if (p := predicted.get(c.build.number)) is not None
    ]
    departures = more.pop("departures", {})
    passed = more.pop("passed", False)
    found = causes(candidates, candidates[0], rounds, departures, passed=passed, **more)
    return {cause.kind: cause for cause in found}


def test_a_kernel_is_blamed_where_the_engine_computes_what_was_asked():
    plain, kept = tried(1, 90.0), tried(2, 30.0, A)
    where = {2: Departure((B,), TensorName("t"), 0.5, 1e-4, 2)}
    found = kinds(plain, kept, predicted={1: 90.0, 2: 0.5}, departures=where)
    assert found.keys() == {"kernel"}
    assert (found["kernel"].builds, found["kernel"].nodes) == ((2,), (B,))
    assert (found["kernel"].excess, found["kernel"].other) == (30.0, 0.5)


def test_no_kernel_is_blamed_where_the_inspector_hides_what_is_kept():
    for shown in ("unknown", "mixed", "tf32"):
        kept = tried(2, 30.0, A, shown=shown)
        assert kinds(tried(1, 90.0), kept, predicted={1: 90.0, 2: 0.5}).keys() == {"unknown"}
    blind = Candidate(frozenset((A,)), "", build(2, ""), 30.0)
    assert kinds(tried(1, 90.0), blind, predicted={1: 90.0, 2: 0.5}).keys() == {"unknown"}


def test_no_kernel_is_blamed_for_rounding_in_other_places():
    # The emulation has it within the limit, and the engine is off by less than four times that.
    assert kinds(tried(1, 1.43), predicted={1: 0.6}).keys() == {"unknown"}
    assert kinds(tried(1, 1.43), predicted={1: 0.2}).keys() == {"kernel"}


def test_no_kernel_is_blamed_where_the_emulation_fails_too():
    found = kinds(tried(1, 90.0), tried(2, 30.0, A), predicted={1: 90.0, 2: 2.0})
    assert found.keys() == {"unknown"}


def test_engines_within_the_tolerance_are_not_called_off():
    # What passed the search may fail on held-out samples: no cause is known of that.
    assert kinds(tried(1, 0.2), tried(2, 0.1, A), predicted={1: 0.2, 2: 0.1}) == {}
    (found,) = kinds(tried(1, 7.0), tried(2, 0.1, A), predicted={1: 8.0, 2: 0.1}).values()
    assert (found.kind, found.builds, found.excess) == ("unknown", (1,), 7.0)


def test_what_a_metric_falls_is_no_share_of_what_is_allowed():
    # 1 plus what it falls beyond its allowance: from 0.9 too much to 0.2 is an effect.
    plain, kept = tried(1, 1.9), tried(2, 1.2, A)
    found = kinds(plain, kept, predicted={1: 1.9, 2: -3.0}, relative=False)
    assert found.keys() == {"unknown"}
    assert found["unknown"].excess is None
    ignored = tried(2, 1.9, A, shown="fp16")
    assert kinds(plain, ignored, predicted={1: 1.9, 2: 0.9}, relative=False).keys() == {"ignored"}


def test_constraints_that_are_not_honoured_are_told():
    plain, kept = tried(1, 90.0), tried(2, 89.0, A, shown="fp16")
    found = kinds(plain, kept, predicted={1: 90.0, 2: 0.5})
    assert found["ignored"].nodes == (A,)
    assert "kernel" not in found
    assert (found["no-effect"].excess, found["no-effect"].other) == (89.0, 90.0)


def test_no_effect_is_told_only_where_one_was_predicted():
    plain, kept = tried(1, 90.0), tried(2, 89.0, A, shown="unknown")
    assert "no-effect" not in kinds(plain, kept, predicted={1: 90.0, 2: 60.0})
    assert kept.changes_nothing(plain)
    assert not plain.changes_nothing(plain)
    assert not tried(3, 10.0, A).changes_nothing(plain)
    assert not tried(3, None, A).changes_nothing(plain)


def test_engines_that_are_not_there_blame_nobody():
    none = [
        Candidate(NOTHING, "", build(n, "").model_copy(update={"engine": None})) for n in (1, 2)
    ]
    found = kinds(*none, predicted={})
    assert found.keys() == {"no-engine"}
    assert found["no-engine"].builds == (1, 2)
    assert kinds(tried(1, None), none[1], predicted={}).keys() == {"not-run"}


def test_engines_that_were_lost_show_nothing():
    unbuilt = build(1, "").model_copy(update={"engine": None, "status": "lost"})
    lost = [Candidate(NOTHING, "", unbuilt), Candidate(NOTHING, "", build(2, ""), lost=True)]
    assert kinds(*lost, predicted={})["lost"].builds == (1, 2)
    found = kinds(*lost, tried(3, None), predicted={})
    assert {kind: cause.builds for kind, cause in found.items()} == {"not-run": (3,)}


def test_where_a_plan_passed_only_what_was_seen_on_the_way_is_told():
    plain, kept = tried(1, 90.0), tried(2, 0.4, A)
    assert kinds(plain, kept, predicted={1: 90.0, 2: 0.5}, passed=True) == {}
    first = tried(3, 30.0, A)
    predicted = {1: 90.0, 2: 0.5, 3: 0.5}
    assert kinds(plain, kept, first, predicted=predicted, passed=True).keys() == {"kernel"}


def test_every_rung_is_told_with_what_became_of_it():
    none = build(2, "").model_copy(update={"engine": None})
    plain = Candidate(NOTHING, "plain", build(3, ""), 14.0, latency(0.6))
    lost = Candidate(KEPT, "mixed", none)
    fp32, tf32 = (
        offer("fp32", *[8] * ROUNDS, excess=0.01),
        offer("tf32", *[5] * ROUNDS, excess=0.75),
    )
    low = replace(offer("fp16", *[6] * ROUNDS, passed=False, excess=14.0), candidate=plain)
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
