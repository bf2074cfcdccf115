"""Turn a diagnosis into a report; words on the decisions that it finds at fault."""

from dataclasses import replace

from halfwise.records import Criterion, Decided, NodeName, Run, Rung, RungName, Sign
from halfwise.reporting.origins import flipped
from halfwise.reporting.parts import (
    MOST_ROWS,
    Column,
    Lines,
    Report,
    Table,
    commands,
    lines_of,
    present,
)
from halfwise.reporting.reasons import stated
from halfwise.reporting.steps import steps_told
from halfwise.wording import count, listed, percent, sentence

QUESTIONS: dict[RungName, str] = {
    "harness": "are the inputs right, and real?",
    "export": "does the ONNX file give what the framework gives?",
    "model": "is the model healthy?",
    "fp32": "does an FP32 engine give the same?",
    "tf32": "does TF32 matter?",
    "precision": "which nodes does the low format break?",
    "kernels": "does the engine match its emulation?",
}
_FIRST = 3
"""Most pieces of evidence on the first screen."""
_MARKS = {"error": "✗", "warning": "!", "info": "·"}


def diagnosed(run: Run) -> Report:
    """Return the report on a run of `diagnose`: the first rung that failed, and all before it."""
    failed = _first_failed(run)
    parts: list[Lines | Table] = [_ladder(run)]
    if failed is not None:
        parts += _failed(failed)
    elif not run.verdict.passed:
        why = stated(run.verdict.reasons, run.verdict.failures)
        parts.append(Lines("Why it is not judged", why))
        parts.append(Lines("What to do", steps_told(run.next_step), whole=True))
    parts += [part for rung in run.diagnosis if rung is not failed for part in _warnings(rung)]
    samples = count(len(run.verdict.samples), "sample")
    about = f"{sentence(run.provenance.model)} · {samples} · {run.verdict.level}"
    return Report(_title(run, failed), run.verdict.passed, about, tuple(parts))


def diagnosed_screen(run: Run) -> Report:
    """Return the first screen of the report that `diagnosed` returns."""
    whole = diagnosed(run)
    failed = _first_failed(run)
    if failed is None:
        ladder, rest = _ladder(run), whole.parts[1:]
        answers = tuple(row[:3] for row in ladder.rows)
        return replace(whole, parts=(Table(ladder.title, ladder.columns[:3], answers), *rest))
    where = Lines("Where", (listed(failed.nodes, most=4),)) if failed.nodes else None
    errors = [s for s in failed.evidence if s.severity == "error"] or failed.evidence[:1]
    lines = [f"{sign.text}{_at(sign.nodes)}" for sign in errors[:_FIRST]]
    if left := len(errors) - len(lines):
        lines.append(f"and {left} more in the full report")
    seen = lines_of("Evidence", lines)
    parts = present(where, seen, commands("Next", steps_told(failed.advice)))
    return replace(whole, parts=parts)


def _first_failed(run: Run) -> Rung | None:
    return next((rung for rung in run.diagnosis if rung.passed is False), None)


def _title(run: Run, failed: Rung | None) -> str:
    if failed is not None:
        return f"Rung {failed.rung} ({failed.name}) fails: {sentence(failed.cause)}"
    looked = [rung for rung in run.diagnosis if rung.passed is not None]
    found = f"othing wrong on {count(len(looked), 'rung')} of {len(run.diagnosis)}"
    if run.verdict.passed:
        return f"N{found}"
    return f"NOT JUDGED: n{found}, but the samples do not test everything"


def _ladder(run: Run) -> Table:
    failed = _first_failed(run)
    rows = tuple(
        (
            str(rung.rung),
            QUESTIONS[rung.name],
            _answer(rung),
            "see above" if rung is failed else sentence(rung.cause),
        )
        for rung in run.diagnosis
    )
    columns = (Column("", "right"), Column("question"), Column("answer"), Column("what was found"))
    return Table("The ladder", columns, rows)


def _answer(rung: Rung) -> str:
    unknown = "skipped" if rung.how == "skipped" else "suspected"
    word = unknown if rung.passed is None else "passes" if rung.passed else "FAILS"
    return f"{word} (emulated)" if rung.how == "emulated" else word


def _failed(rung: Rung) -> list[Lines | Table]:
    signs = rung.evidence[:MOST_ROWS]
    lines = [f"{_MARKS[sign.severity]} {sentence(sign.text)}{_at(sign.nodes)}" for sign in signs]
    if len(rung.evidence) > len(signs):
        lines.append(f"and {len(rung.evidence) - len(signs)} more in run.json")
    parts: list[Lines | Table] = []
    if rung.nodes:
        parts.append(Lines("Where", (listed(rung.nodes, most=MOST_ROWS),)))
    parts.append(Lines("Evidence", tuple(lines)))
    if rung.advice:
        parts.append(Lines("What to do", steps_told(rung.advice), whole=True))
    return parts


def _warnings(rung: Rung) -> list[Lines]:
    told = [s for s in rung.evidence if s.severity == "warning"]
    lines = [f"{sentence(sign.text)}{_at(sign.nodes)}" for sign in told[:MOST_ROWS]]
    advice = steps_told(rung.advice) if rung.passed is None else ()
    if not lines and not advice:
        return []
    return [Lines(f"Also seen on rung {rung.rung} ({rung.name})", (*lines, *advice))]


def _at(nodes: tuple[str, ...]) -> str:
    return f" ({listed(nodes)})" if nodes else ""


def decided_cause(found: Decided, what: str, criterion: Criterion) -> str:
    """Return the cause of an error that the reference's decisions undo, in one sentence.

    Args:
        found: The decisions.
        what: What rounds differently, with its verb, such as `TF32 changes`.
        criterion: What is acceptable.
    """
    decisions = "a decision" if len(found.flips) == 1 else "decisions"
    return f"{what} {decisions}: {_told(found, criterion)}."


def decided_part(found: Decided, criterion: Criterion) -> Sign:
    """Return what decisions contribute to an error that remains out of tolerance without them."""
    text = f"Part of the error comes from decisions: {_told(found, criterion)}."
    return Sign(severity="warning", text=text, nodes=tuple(flip.node for flip in found.flips))


def decided_signs(found: Decided) -> list[Sign]:
    """Return how many of each decision's values differ, and what leads to them."""
    signs = [
        Sign(
            severity="error",
            text=f"{flip.op} decides {flip.elements} of {count(flip.of, 'value')} "
            f"({percent(flip.elements / flip.of)}) differently than FP32 in ONNX Runtime.",
            nodes=(flip.node,),
        )
        for flip in found.flips
    ]
    if before := _feeding(found):
        signs.append(Sign(severity="info", text="They lead to these decisions.", nodes=before))
    return signs


def decided_advice(
    found: Decided, criterion: Criterion, *, low: bool, auto: bool
) -> tuple[str, ...]:
    """Return what to do about decisions, one sentence each.

    Args:
        found: The decisions.
        criterion: What is acceptable.
        low: Whether FP32 would help.
        auto: Whether `--metric auto` recognises the outputs, and the samples test them.
    """
    before = listed(_feeding(found)) if low else ""
    keep = f"Keep in FP32 what leads to these decisions: {before}." if before else ""
    tolerant = (
        ""
        if criterion.metric is not None
        else "Where both decisions are as good, judge by a metric of the task, which tolerates "
        f"them: --metric {'auto, or your own' if auto else 'file.py:function'}."
    )
    return tuple(text for text in (keep, tolerant) if text)


def _told(found: Decided, criterion: Criterion) -> str:
    allowed = "what is allowed" if criterion.metric is None else "the default tolerance"
    return flipped(found, allowed=allowed)


def _feeding(found: Decided) -> tuple[NodeName, ...]:
    own = {flip.node for flip in found.flips}
    return tuple(name for name in found.nodes if name not in own)
