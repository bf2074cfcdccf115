"""Words for what was decided: why verdicts fail, and remarks on a plan and its search."""

from collections.abc import Iterable
from typing import Literal, TypeVar

from halfwise.records import Failure, JudgedBatch, KeptNode, Remark, Run, Search, Verdict
from halfwise.reporting.guards import explained, worded
from halfwise.reporting.words import say
from halfwise.wording import capital, everything_low, sentence, stopped

Judged = TypeVar("Judged", Verdict, JudgedBatch)


def reasons(failures: Iterable[Failure]) -> tuple[str, ...]:
    """Return a clause for each reason for a verdict, without a capital letter or full stop."""
    return tuple(map(_clause, failures))


def stated(failures: Iterable[Failure]) -> tuple[str, ...]:
    """Return a sentence for each reason, with a capital letter unless a name begins it."""
    return tuple(sentence(stopped(capital(_clause(f), tuple(f.names.values())))) for f in failures)


def _clause(failure: Failure) -> str:
    where = "".join(say("under", at, {"which": str(which)}) for at, which in failure.under.items())
    return f"{where}{failure.text or say('failure', failure.kind, failure.facts)}"


def with_failures(judged: Judged, failures: Iterable[Failure], *, ahead: bool = False) -> Judged:
    """Return a failed verdict with more reasons; `ahead` puts them before the others."""
    new: tuple[Failure, ...] = tuple(failures)
    kinds = (*new, *judged.failures) if ahead else (*judged.failures, *new)
    return judged.model_copy(update={"passed": False, "failures": kinds})


def under(at: str, which: str | int, failures: Iterable[Failure]) -> tuple[Failure, ...]:
    """Return failures as they occur elsewhere: at a place of `under` in `words.toml`."""
    return tuple(f.model_copy(update={"under": {at: which, **f.under}}) for f in failures)


def spent(search: Search) -> str:
    """Return the budget that ended a search, as a clause."""
    by_clock = bool(search.ended_by) and search.seconds_budget > 0
    return say("ended", lacking(search), {**dict(search), "by_clock": by_clock})


def lacking(search: Search) -> Literal["interrupt", "work", "time"]:
    """Return what a search lacked: it was interrupted, or needed more work or time."""
    if "interrupt" in search.ended_by:
        return "interrupt"
    by_work = search.budget is not None and "seconds" not in search.ended_by
    return "work" if by_work else "time"


EARLY = ("dearer", "rationed", "futile")
"""Remarks on why a search ended before its plan was minimal."""


def remark(entry: Remark) -> str:
    """Return a remark as a sentence, or a clause for steps of a search."""
    facts = entry.facts
    if entry.kind == "seen-only":
        kept, pinned = (int(entry.numbers[name]) for name in ("own", "pinned"))
        facts["start"] = everything_low(entry.names["low"], kept, pinned)
    return say("remark", entry.kind, facts)


def unfinished(search: Search | None) -> str:
    """Return that a plan is not minimal, and why."""
    why = ""
    if search is not None and (search.exhausted or "interrupt" in search.ended_by):
        why = f": {spent(search)}"
    elif search is not None and search.remarks:
        early = [step for step in search.remarks if step.kind in EARLY]
        why = f": {remark((early or search.remarks)[-1])}"
    return sentence(f"Not shown to be minimal{why}.")


def note(entry: Remark) -> str:
    """Return a remark on a plan with a capital letter, unless a name begins it."""
    return capital(remark(entry), tuple(entry.names.values()))


def explain_left_out(left_out: Iterable[KeptNode]) -> tuple[KeptNode, ...]:
    """Return nodes left out of INT8 with their reasons."""
    return tuple(k.model_copy(update={"reason": _why_left_out(k)}) for k in left_out)


def _why_left_out(kept: KeptNode) -> str:
    because = {} if kept.because is None else dict(kept.because)
    return capital(say("kept", "left out", {**because, "excess": kept.error_without}))


def in_words(run: Run) -> Run:
    """Return the run with the words of its guards and kept nodes, made of their facts."""
    guards, plan = worded(run.guards), run.plan
    if plan is not None:
        keep = explained(plan.keep, guards, run.headroom, run.followed)
        plan = plan.model_copy(update={"keep": keep, "left_out": explain_left_out(plan.left_out)})
    without = explain_left_out(run.without_int8)
    return run.model_copy(update={"without_int8": without, "guards": guards, "plan": plan})
