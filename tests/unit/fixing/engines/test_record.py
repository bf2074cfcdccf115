"""What engines show of why nothing low passed, and how a device's result is recorded."""

from types import SimpleNamespace
from typing import Any

import pytest

from halfwise.fixing.engines.measure import ROUNDS
from halfwise.fixing.engines.plan import EnginePlan, Outcome
from halfwise.fixing.engines.run import Found, all_of, causes
from halfwise.fixing.plan.plan import Plan
from halfwise.records import (
    Cause,
    EngineResult,
    EngineRung,
    Failure,
    NodeName,
    NodePrecision,
    Precision,
    Verdict,
    replace,
)
from halfwise.reporting.plan import cause_line
from halfwise.reporting.remarks import reasons
from tests.unit.fixing.engines.test_table import VARIANT, changed, offer
from tests.unit.reporting.engine_runs import build, failed, latency, measured, proof, result
from tests.unit.reporting.runs import output_error, verdict

A, B, C = ORDER = NodeName("a"), NodeName("b"), NodeName("c")


def plan(*keep: NodeName, rung: EngineRung = "fp16") -> EnginePlan:
    return EnginePlan(Plan(VARIANT, frozenset(keep)), rung)


KEPT = plan(A)


def outcome(built: EngineResult, *keep: NodeName, rung: EngineRung = "fp16") -> Outcome:
    return Outcome(plan(*keep, rung=rung), {"": built})


def tried(number: int, excess: float | None, *keep: NodeName, shown: Precision = "fp32") -> Outcome:
    """Return a build whose inspector shows what is kept as `shown`."""
    nodes = tuple(NodePrecision(node=n, precision=shown, asked="fp32") for n in keep)
    return outcome(measured(build(number, ""), excess, proof=proof(nodes=nodes)), *keep)


def kinds(
    *outcomes: Outcome, predicted: dict[int, float], relative: bool = True
) -> dict[str, Cause]:
    """Return the causes by kind; what is not predicted has no limit."""
    expected = {o.plan: predicted.get(o.number, 1e9) for o in outcomes}
    shown = causes(outcomes, expected, relative=relative)
    return {cause.kind: cause for cause in shown}


def test_an_error_of_twice_what_is_predicted_is_one_of_precision():
    off, worse = tried(1, 2.4), tried(2, 9.0, A)
    (cause,) = kinds(off, worse, predicted={1: 1.2, 2: 0.4}).values()
    assert (cause.kind, cause.builds) == ("precision", (1,))
    assert (cause.excess, cause.other) == (2.4, 1.2)
    # Better than expected is explained too: a builder may compute more in FP32 than it must.
    assert kinds(tried(1, 1.4), predicted={1: 90.0}).keys() == {"precision"}
    (cause,) = kinds(tried(1, 2.5), predicted={1: 1.2}).values()
    assert (cause.kind, cause.other) == ("unknown", 1.2)
    # That plain low precision is as far off explains nothing of a plan that was to pass.
    alike = tried(1, 125.0), tried(2, 125.0, A)
    (cause,) = kinds(*alike, predicted={1: 125.0, 2: 0.1}).values()
    assert (cause.kind, cause.builds) == ("unknown", (2,))


def without(number: int, *keep: NodeName, status: str = "crashed") -> Outcome:
    """Return a build without an engine."""
    return outcome(measured(failed(number, status=status)), *keep)


def test_where_all_that_is_predicted_to_pass_was_refused_plain_precision_is_no_cause():
    plain = tried(4, 99.0)
    predicted = {3: 0.1, 4: 99.0, 5: 0.1}
    builds = plain, without(3, A), without(5, A, B)
    (cause,) = kinds(*builds, predicted=predicted).values()
    assert (cause.kind, cause.builds) == ("refused", (3, 5))
    assert (cause.excess, cause.other) == (99.0, 99.0)
    assert cause_line(cause) == (
        "the builder refused every plan that the emulation predicts to pass (builds 3, 5); the "
        "nearest engine has 99 times what is allowed, where the emulation predicts 99"
    )
    # Of a build that was lost nothing is known.
    lost = without(5, A, B, status="lost")
    assert kinds(*builds[:2], lost, predicted=predicted).keys() == {"unknown"}
    # What is predicted to fail, and was refused, explains nothing; nor where another one ran.
    assert kinds(*builds, predicted={4: 99.0, 3: 2.0}).keys() == {"precision"}
    ran = plain, without(3, A), tried(5, 1.2, A, B)
    assert kinds(*ran, predicted=predicted | {5: 0.7}).keys() == {"precision"}
    metric = kinds(*builds, predicted=predicted, relative=False)
    assert metric["refused"].excess is None


def test_what_a_metric_falls_is_no_share_of_what_is_allowed():
    # 1 plus what it falls beyond its allowance: from 0.9 too much to 0.2 is an effect.
    plain, kept = tried(1, 1.9), tried(2, 1.2, A)
    (cause,) = kinds(plain, kept, predicted={1: 1.9, 2: -3.0}, relative=False).values()
    assert (cause.kind, cause.excess, cause.other) == ("unknown", None, None)
    ignored = tried(2, 1.9, A, shown="fp16")
    assert kinds(plain, ignored, predicted={1: 1.9, 2: 0.9}, relative=False).keys() == {"ignored"}


def test_constraints_that_are_not_honoured_are_told():
    plain, kept = tried(1, 90.0), tried(2, 89.0, A, shown="fp16")
    by_kind = kinds(plain, kept, predicted={1: 90.0, 2: 0.5})
    assert by_kind["ignored"].nodes == (A,)


def test_engines_that_are_not_there_blame_nobody():
    none = without(1), without(2, A)
    assert kinds(*none, predicted={}) == kinds(tried(1, None), none[1], predicted={}) == {}


# --- rungs -----------------------------------------------------------------------------------


def found(
    *offers: Outcome,
    delivered: Outcome | None = None,
    tried: dict[EnginePlan, list[Outcome]] | None = None,
) -> Found:
    """Return what a table shows, with further builds."""
    plans = {o.plan: [o] for o in offers if not o.plan.is_full} | (tried or {})
    bench: Any = SimpleNamespace(tried=plans)
    return Found(bench, offers, delivered)


def ends(*offers: Outcome, **more: Any) -> list[str]:
    """Return how the rungs of a table ended."""
    return [rung.end for rung in found(*offers, **more).rungs]


def test_every_rung_is_told_with_what_became_of_it():
    fp32, tf32 = offer("fp32", *[8] * ROUNDS), offer("tf32", *[5] * ROUNDS)
    low = offer("fp16", *[6] * ROUNDS, passed=False, excess=14.0)
    refused = outcome(measured(failed(2)), A)
    results = fp32, tf32, low
    more: dict[str, Any] = {"delivered": tf32, "tried": {refused.plan: [refused]}}
    assert [rung.rung for rung in found(*results, **more).rungs] == ["fp32", "tf32", "fp16"]
    assert ends(fp32, tf32, low, delivered=tf32) == ["slower", "delivered", "tolerance"]


@pytest.mark.parametrize(
    ("built", "end"),
    [
        ([measured(failed(1))], "unbuildable"),
        ([measured(build(1, ""), failure="it crashed")], "not-run"),
        ([measured(build(1, ""), 3.0)], "tolerance"),
        ([measured(build(1, ""), 0.5), measured(build(2, ""), 3.0)], "unsteady"),
        ([measured(build(1, "", engine=None, status="lost"))], "lost"),
    ],
)
def test_why_nothing_low_was_delivered(built, end):
    group = [outcome(one, A) for one in built]
    row = result("mixed", 1, 1.0, excess=group[0].excess)
    shown = replace(group[0], rows={"": row}, allowed=False)
    assert ends(shown, tried={KEPT: group}) == [end]


def test_what_failed_on_held_out_samples_or_was_lost_there_is_told():
    low = offer("fp16", 1, passed=False)
    assert ends(low) == ["held-out"]
    assert ends(changed(low, verdict=None, lost=True)) == ["lost"]
    assert ends(changed(low, verdict=None)) == ["not-run"]


# --- devices ---------------------------------------------------------------------------------


def test_what_passes_on_some_devices_alone_passes_nowhere():
    rows = {
        "orin": measured(build(3, ""), 0.5, latency=latency(1.0)),
        "a100": measured(build(4, ""), 9.0),
    }
    both = Outcome(KEPT, rows)
    row = result("mixed", 3, 1.0, verdict=verdict(level="engine"), excess=0.5)
    off = replace(row, verdict=verdict(level="engine", passed=False), excess=9.0)
    low = replace(both, rows={"orin": row, "a100": off})
    fp32 = offer("fp32", 1.0, on=("orin", "a100"))
    assert ends(fp32, low, delivered=fp32, tried={KEPT: [both]}) == ["delivered", "elsewhere"]
    lost = replace(both, rows={**rows, "a100": measured(build(4, ""), lost=True)})
    assert ends(fp32, low, delivered=fp32, tried={KEPT: [lost]}) == ["delivered", "lost"]


def failing(kind: str) -> Verdict:
    failures = (Failure(kind=kind, names={"why": "so"}),)  # type: ignore[arg-type]
    return replace(verdict(passed=False), failures=failures)


def test_all_devices_have_to_pass():
    better = verdict(outputs={"y": output_error(rel_max=1e-4)})
    worse = verdict(outputs={"y": output_error(rel_max=1e-3)})
    assert all_of({"orin": better, "a100": worse}) is worse
    each = {"orin": verdict(), "a100": failing("not-run"), "h200": failing("not-run")}
    all_three = all_of(each)
    assert not all_three.passed
    assert [f.under for f in all_three.failures] == [{"device": "a100"}, {"device": "h200"}]
    assert all_of({"": each["a100"]}) is each["a100"]


# --- verdicts --------------------------------------------------------------------------------


def judged(
    *offers: Outcome, delivered: Outcome | None = None, cause: Cause | None = None
) -> Verdict:
    why = () if cause is None else (cause,)
    return found(*offers, delivered=delivered).verdict("", verdict(), why, 3)


def test_the_verdict_is_that_of_what_is_delivered():
    fp32, low = offer("fp32", 1), offer("fp16", 2, passed=False)
    assert judged(fp32, low, delivered=fp32) == fp32.verdict("")


def test_where_nothing_passed_what_came_closest_is_told_with_its_cause():
    low, cause = offer("fp16", 2, passed=False, excess=1.4), Cause(kind="unknown", builds=(2,))
    fp32 = offer("fp32", 1, passed=False, excess=1.2)
    closest = judged(fp32, low, cause=cause)
    assert (closest.passed, closest.level) == (False, "engine")
    assert [f.kind for f in closest.failures][:2] == ["no-engine", "cause"]
    within = judged(replace(fp32, limit=2.0), low, cause=cause)
    assert next(f.kind for f in within.failures) == "cause"
    silent = judged(offer("fp16", 2, excess=None))
    assert (silent.passed, silent.level) == (False, verdict().level)


def test_what_does_not_run_is_told():
    fp32 = changed(offer("fp32", 1), verdict=None, failure="The connection is lost.")
    silent = judged(fp32, offer("fp16", 2, excess=None))
    assert reasons(silent.failures)[0].endswith("does not run to the end: The connection is lost.")
    low = changed(offer("fp16", 2), verdict=None, failure="it crashed")
    why = reasons(judged(low).failures)
    assert any("does not run on the held-out samples: it crashed" in r for r in why)
