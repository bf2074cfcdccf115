"""Words for what was decided: failures, suspicions, why nodes are kept, worth, what to do next."""

from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import Any, Literal, TypeVar

from halfwise.records import (
    Decided,
    Failure,
    Followed,
    Guard,
    GuardKind,
    JudgedBatch,
    KeptNode,
    MadeUp,
    NodeName,
    Note,
    Remark,
    Run,
    Search,
    Step,
    Verdict,
    replace,
)
from halfwise.records.planned import Because
from halfwise.reporting.parts import WORDS, say
from halfwise.wording import (
    capital,
    clean,
    command,
    everything_low,
    number,
    sentence,
    stopped,
)


def flipped(decided: Decided, allowed: str) -> str:
    """Return which decisions change, and the effect of the reference's; `allowed`: of the error."""
    return say(
        "kept",
        "flipped",
        decided,
        nodes=decided.deciding,
        elements=sum(flip.elements for flip in decided.flips),
        of=sum(flip.of for flip in decided.flips),
        allowed=allowed,
    )


def followed_over(metric: str | None) -> str:
    """Return the unit of errors that a run follows; `metric` is its metric, or None."""
    return "what the search allows" if metric is None else "the default tolerance"


_SEEN_INSIDE: frozenset[GuardKind] = frozenset(("infinite", "decision"))
"""Guards that rest on what was seen in the plan, not on what happens when a node is low."""
Reason = (
    GuardKind
    | Literal["rule", "model", "engine", "flip"]
    | Literal["accumulated error", "effect", "little", "spare", "unknown"]
)
CAUSES: Mapping[str, str] = WORDS["suspicion"]


def found_at(reason: Reason, followed: Followed | None) -> Decided | None:
    """Return the decisions if they are the reason, else None."""
    return followed.decided if followed and reason == "flip" else None


def message(guard: Guard) -> str:
    """Return a suspicion as a clause with its numbers; the stored one if a record has no facts."""
    if not guard.names:
        return guard.message
    near, numbers = guard.kind == "headroom", guard.numbers
    times = numbers["limit"] / numbers["value"] if near else None
    return say(
        "guard",
        guard.kind,
        {"tensor": guard.tensor or ""},
        guard.facts,
        node=guard.node,
        times=times,
    )


def guard_sentence(guard: Guard, node: NodeName) -> str:
    """Return a guard's message worded as the reason why `node` is kept."""
    why = "it reads what may overflow" if guard.is_read_by(node) else f"needed by {guard.node}"
    return guard.message if node == guard.node else f"{why}: {guard.message}"


def worded(guards: Sequence[Guard]) -> tuple[Guard, ...]:
    """Return guards with their messages."""
    return tuple(replace(guard, message=message(guard)) for guard in guards)


def reason_of(kept: KeptNode, followed: Followed | None) -> Reason:
    """Return why a node is kept, by what was measured; `followed` is that of the run."""
    facts, measured = kept.because or Because(), kept.error_without
    unknown = not facts.nonfinite and (measured, facts.contribution) == (None, None)
    decided = followed.decided if followed else None
    grows = followed is not None and followed.accumulates
    # What only adds to an error is no cause of NaN or infinities.
    ways: tuple[tuple[bool, Reason | None], ...] = (
        (kept.kept_by != "search", None if kept.kept_by == "search" else kept.kept_by),
        (kept.guard is not None, kept.guard),
        (facts.spare, "spare"),
        (unknown, "unknown"),
        (decided is not None and kept.node in decided.nodes and not facts.nonfinite, "flip"),
        (grows and not facts.nonfinite, "accumulated error"),
        (measured is None and not facts.nonfinite and (facts.contribution or 0) <= 1, "little"),
    )
    return next((reason for holds, reason in ways if holds), None) or "effect"


def explained(
    keep: Sequence[KeptNode],
    guards: Sequence[Guard],
    headroom: float,
    followed: Followed | None = None,
) -> tuple[KeptNode, ...]:
    """Return kept nodes with their reasons; unchanged for records without facts.

    Args:
        keep: The nodes.
        guards: All guards of the run, with their messages.
        headroom: Factor on observed ranges within which overflow counts.
        followed: Where the error comes from that no guard explains; None if not followed.
    """
    return tuple(
        kept
        if kept.because is None
        else replace(kept, reason=_reason(kept, guards, headroom, followed))
        for kept in keep
    )


def _reason(
    kept: KeptNode, guards: Sequence[Guard], headroom: float, followed: Followed | None
) -> str:
    facts, excess = kept.because or Because(), kept.error_without
    near = f", with values {number(headroom)} × those seen," if facts.at_headroom else ","
    effect = say("kept", "what is done", facts, near=near, excess=excess, endless=excess == inf)
    if facts.guard is None or kept.kept_by != "search":
        reason, way = reason_of(kept, followed), facts.opposed
        opposed = None if way is None else " and ".join(way) or "low inputs and outputs"
        own = {"rule": facts.rule, "opposed": opposed, "effect": effect}
        return say("kept", reason, found_at(reason, followed), own)
    guard = guards[facts.guard]
    doubt = "suspected: " if guard.severity < 1 else ""
    if not effect and guard.kind not in _SEEN_INSIDE:
        doubt = "suspected, not tried alone: "
    starts = () if doubt else (guard.node, *guard.nodes, guard.tensor or guard.node)
    return f"{capital(f'{doubt}{guard_sentence(guard, kept.node)}', starts)}{effect}."


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
    return replace(judged, passed=False, failures=kinds)


def under(at: str, which: str | int, failures: Iterable[Failure]) -> tuple[Failure, ...]:
    """Return failures as they occur elsewhere: at a place of `under` in `words.toml`."""
    return tuple(replace(f, under={at: which, **f.under}) for f in failures)


def spent(search: Search) -> str:
    """Return the budget that ended a search, as a clause."""
    by_clock = bool(search.ended_by) and search.seconds_budget > 0
    return say("ended", lacking(search), search, by_clock=by_clock)


def lacking(search: Search) -> Literal["interrupt", "work", "time"]:
    """Return what a search lacked: it was interrupted, or needed more work or time."""
    if "interrupt" in search.ended_by:
        return "interrupt"
    by_work = search.budget is not None and "seconds" not in search.ended_by
    return "work" if by_work else "time"


EARLY = ("dearer", "futile")
"""Remarks on why a search ended before its plan was minimal."""


def remark(entry: Remark) -> str:
    """Return a remark as a sentence, or a clause for steps of a search."""
    start, (names, numbers) = "", (entry.names, entry.numbers)
    if entry.kind == "seen-only":
        start = everything_low(names["low"], int(numbers["own"]), int(numbers["pinned"]))
    return say("remark", entry.kind, {"start": start}, entry.facts)


def unfinished(search: Search | None) -> str:
    """Return that a plan is not minimal, and why."""
    if search is None:
        return "Not shown to be minimal."
    early = [step for step in search.remarks if step.kind in EARLY] or search.remarks
    ended = search.exhausted or "interrupt" in search.ended_by
    why = spent(search) if ended else remark(early[-1]) if early else ""
    return sentence(f"Not shown to be minimal{why and f': {why}'}.")


def note(entry: Remark) -> str:
    """Return a remark on a plan with a capital letter, unless a name begins it."""
    return capital(remark(entry), tuple(entry.names.values()))


def explain_left_out(left_out: Iterable[KeptNode]) -> tuple[KeptNode, ...]:
    """Return nodes left out of INT8 with their reasons."""
    told = ((k, say("kept", "left out", k.because, excess=k.error_without)) for k in left_out)
    return tuple(replace(k, reason=capital(reason)) for k, reason in told)


def in_words(run: Run) -> Run:
    """Return the run with the words of its guards and kept nodes, made of their facts."""
    guards, plan = worded(run.guards), run.plan
    if plan is not None:
        keep = explained(plan.keep, guards, run.headroom, run.followed)
        plan = replace(plan, keep=keep, left_out=explain_left_out(plan.left_out))
    without = explain_left_out(run.without_int8)
    return replace(run, without_int8=without, guards=guards, plan=plan)


def note_text(note: Note) -> str:
    """Return a note as a separate line, which says whether it is a warning."""
    return f"warning: {clause(note)}" if note.severity == "warning" else clause(note)


def clause(note: Note, *, repairs: int = 0) -> str:
    """Return a note in words, without a capital letter or full stop.

    Args:
        note: The note.
        repairs: Number of repairs made since.
    """
    text = say("note", note.kind, note.facts, note.made_up, repairs=repairs)
    return f"{note.of}: {text}" if note.of else text


def not_real(made_up: Sequence[MadeUp]) -> str:
    """Return why inputs say nothing about real data.

    Args:
        made_up: What looks made up; empty if random inputs were requested.
    """
    if not made_up:
        return "the inputs are random, not real data, so this says nothing"
    seen = "; ".join(say("note", "look", one) for one in made_up)
    return f"{seen}: not real data. If the model really gets such inputs, add --allow random"


def quantised_note(run: Run, *, candidate: bool = False) -> Mapping[str, Any] | None:
    """Return what is known of quantised products of the model or candidate; None if it has none."""
    notes = (note.facts for note in run.provenance.notes if note.kind == "quantised")
    return next((f for f in notes if (f["whose"] == "candidate") == candidate), None)


def cut_lines(run: Run) -> tuple[str, ...]:
    """Return a sentence each on what the budget ended, and on overlong and refused runs, if any."""
    if (search := run.search) is None:
        return ()
    ended = "; ".join(WORDS["cut"][stage] for stage in search.cut if stage in WORDS["cut"])
    told = ended or "interrupt" in search.ended_by
    lines = [f"{': '.join(filter(None, (capital(spent(search)), ended)))}."] if told else []
    lines += [say("cut", fact, search) for fact in ("late", "refused") if getattr(search, fact)]
    return tuple(map(sentence, lines))


def nothing_gained(run: Run) -> str:
    """Return the end of the title of a run that gains too little; else nothing."""
    worth, required = run.worth, run.verdict.required_worth
    if required is None and (worth is None or worth.gains or not run.verdict.passed):
        return ""
    kind = "required"
    if required is None and worth is not None:
        # 1 is everything low, which the last lines cover.
        dearer = worth.is_dearer and worth.ratio != 1
        kind = "dearer" if dearer else "fp32" if worth.fp32_ratio <= 1 else "little"
    gain = "little" if worth is not None and worth.saved >= 1e-4 else "nothing"
    of = "the low format" if run.plan is None else run.plan.low.upper()
    return say("worth", kind, worth, of=of, required=required, gain=gain)


def low_name(run: Run) -> str:
    """Return what is low in the model that everything is compared with."""
    return f"everything in {run.low.upper()}" if run.low else "everything low"


def cost_line(run: Run) -> str:
    """Return the cost of a run's plan or candidate, as a sentence; "" if it is unknown."""
    if run.worth is None:
        return ""
    # The cost of INT8 is uncertain until it is measured.
    planned = run.plan is not None and run.plan.has_int8
    uncertain = planned or quantised_note(run, candidate=True) is not None
    return say("worth", "cost", run.worth, everything=low_name(run), uncertain=uncertain)


def steps_told(steps: tuple[Step, ...], longest: float = inf) -> tuple[str, ...]:
    """Return a line for each step, which its command ends; lines must not be wrapped.

    A command of more than `longest` characters is left to the whole report.
    """
    told = ((words, line, len(line) > longest) for words, line in map(step_text, steps))
    return tuple(
        ": ".join(filter(None, (words, "--full has the command." if long else line)))
        for words, line, long in told
    )


def step_text(step: Step) -> tuple[str, str]:
    """Return a step's words and its command, quoted for a shell; "" for none."""
    words = say("step", step.kind, step, dict.fromkeys(step.items, True), step.facts)
    return clean(words), clean(command(*step.command or ()))
