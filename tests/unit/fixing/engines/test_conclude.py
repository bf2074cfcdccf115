from dataclasses import replace

import pytest

from halfwise.fixing.engines.attempts import Candidate, Chosen
from halfwise.fixing.engines.conclude import Ended, rungs
from halfwise.fixing.engines.race import ROUNDS
from halfwise.fixing.engines.table import Offer
from halfwise.records import (
    Cause,
    NodeName,
)
from halfwise.reporting.remarks import reasons
from tests.unit.fixing.engines.test_search import World, always, names
from tests.unit.fixing.engines.test_table import NOTHING, offer
from tests.unit.reporting.engine_runs import build, latency, result
from tests.unit.reporting.runs import verdict


def ended(delivered: Offer | None, *offers: Offer) -> Ended:
    search = World(always(names(0))).search()
    plain = offers[-1].candidate
    chosen = Chosen(None, plain, (), False, frozenset(), ())
    return Ended(search, chosen, offers, delivered)


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
    assert "no engine of 3 builds" in reasons(found.failures)[0]
    assert "is unknown" in reasons(found.failures)[1]
    known = replace(fp32, limit=2.0)
    assert (
        "is unknown" in reasons(ended(None, known, low).verdict(verdict(), (cause,), 3).failures)[0]
    )
    silent = offer("fp16", 2, excess=None)
    emulated = verdict()
    found = ended(None, silent).verdict(emulated, (), 1)
    assert (found.passed, found.level) == (False, emulated.level)


def test_an_fp32_engine_that_is_lost_is_told():
    fp32 = offer("fp32", 1)
    row = fp32.row.model_copy(update={"verdict": None, "failure": "The connection is lost."})
    found = ended(None, replace(fp32, row=row), offer("fp16", 2, excess=None))
    why = reasons(found.verdict(verdict(), (), 1).failures)
    assert why[0].endswith("does not run to the end: The connection is lost.")
    ends = rungs(found.offers, None, [[found.offers[-1].candidate]])
    assert [told.end for told in ends] == ["not-run", "not-run"]


def test_what_does_not_run_on_held_out_samples_is_told():
    low = offer("fp16", 2)
    row = result("FP16", 1, 1.0).model_copy(update={"verdict": None, "failure": "it crashed"})
    gone = Offer("fp16", low.candidate, 1.0, row)
    why = reasons(ended(None, gone).verdict(verdict(), (), 1).failures)
    assert any("does not run on the held-out samples: it crashed" in r for r in why)


KEPT = frozenset((NodeName("a"),))


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
    assert (found.excess, found.kept) == (14.0, 0)
    refused = rungs([fp32, tf32, low], tf32, [[plain], [lost]], refused=True)
    assert [t.end for t in refused] == ["slower", "delivered", "refused"]
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
