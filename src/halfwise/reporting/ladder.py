"""Words on the ladder of a run: each type's result, and why one fails."""

from collections.abc import Iterator, Mapping

from halfwise.metrics import usual
from halfwise.records import FULL_RUNGS, LadderRung, RightBy, Run, TaskScore
from halfwise.reporting.notes import quantised_note, quantised_products
from halfwise.reporting.parts import Column, Lines, Table, lines_of
from halfwise.reporting.reasons import reasons
from halfwise.reporting.rungs import range_text, rung_name
from halfwise.reporting.worth import UNCERTAIN
from halfwise.wording import number, percent, ratio, size_of

_BY: Mapping[RightBy, str] = {
    "labels": "right by labels",
    "expected": "as expected",
}

_WHY_NOT: Mapping[bool | None, str] = {
    True: "no product in low precision can use it",
    False: "the rung before it fails",
    None: "the rung before it is not judged",
}
"""Keyed by whether the last rung passed."""


def ladder_table(run: Run) -> Table | None:
    """Return a row for each rung; None if a run has none."""
    if not run.rungs:
        return None
    names = _metrics(run)
    figures = ("kept", "not INT8", "error / allowed", "held out", *names, "share", "cost")
    figures += ("ms", "÷ above", "size", "memory")
    minor = ("kept", "not INT8", "held out", "share", "size", "memory")
    right = (Column(figure, "right", minor=figure in minor) for figure in figures)
    columns = (Column("rung"), *right, Column(""))
    rows = tuple(_row(rung, names, run) for rung in run.rungs)
    note = "errors on the samples of the search, scores on held-out samples"
    return Table("The ladder", columns, rows, note=note).without_empty_columns()


def brief_ladder(run: Run) -> Table | None:
    """Return the decisive figures of each rung: error or scores, cost or time, and its result."""
    if not run.rungs:
        return None
    names = _metrics(run) if run.criterion.metric else []
    rows = tuple(
        (
            rung_name(rung.rung),
            _error(rung, run),
            *(_score(rung.scores, name) for name in names),
            "" if rung.cost is None else ratio(rung.cost),
            "" if rung.latency is None else number(rung.latency.median_ms),
            _end(rung, run),
        )
        for rung in run.rungs
    )
    figures = (Column(figure, "right") for figure in ("error / allowed", *names, "cost", "ms"))
    columns = (Column("rung"), *figures, Column(""))
    return Table("The ladder", columns, rows).without_empty_columns()


def _row(rung: LadderRung, names: list[str], run: Run) -> tuple[str, ...]:
    has_plan = rung.rung not in FULL_RUNGS
    timed, beside = rung.latency, rung.beside
    return (
        rung_name(rung.rung),
        f"{rung.kept}/{rung.candidates}" if has_plan and rung.rung != "int8" else "",
        f"{rung.left_out}/{rung.candidates}" if rung.rung == "int8" else "",
        _error(rung, run),
        "" if rung.heldout is None or names else number(rung.heldout),
        *(_score(rung.scores, name) for name in names),
        "" if rung.low_share is None else percent(rung.low_share),
        "" if rung.cost is None else ratio(rung.cost),
        "" if timed is None else number(timed.median_ms),
        "" if beside is None else f"{range_text(beside.low, beside.high)} ×",
        "" if rung.bytes is None else size_of(rung.bytes),
        "" if timed is None else size_of(timed.device_bytes),
        _end(rung, run),
    )


def _metrics(run: Run) -> list[str]:
    return list(dict.fromkeys(s.metric for rung in run.rungs for s in rung.scores))


def _error(rung: LadderRung, run: Run) -> str:
    """Return the error over what is allowed; "" with a metric, where the record has no ratio."""
    return "" if rung.error is None or run.criterion.metric else number(rung.error)


def _score(scores: tuple[TaskScore, ...], name: str) -> str:
    """Return the score by a metric; of several outputs with one, the nearest to failing."""
    own = [score for score in scores if score.metric == name]
    if not own:
        return ""
    worst = min(own, key=lambda score: (score.passed, score.value - score.required))
    return f"{number(usual(name, worst.value), 4)}{'' if worst.passed else ' ✗'}"


def _end(rung: LadderRung, run: Run) -> str:
    if rung.chosen:
        return f"{_state(rung, run)}, chosen" if run.engines is None else "delivered"
    return _state(rung, run)


def _state(rung: LadderRung, run: Run) -> str:
    if rung.is_empty:
        return "nothing in INT8"
    if rung.passed is None:
        return "not judged"
    if rung.by is not None and rung.passed:
        return _BY[rung.by]
    emulated = ", emulated" * (run.engines is not None and rung.latency is None)
    return f"{'passed' if rung.passed else 'failed'}{emulated}"


def ladder_lines(run: Run) -> Lines | None:
    """Return lines that keep the table from being misread; None if a run has no rungs."""
    return lines_of("On the ladder", _told(run)) if run.rungs else None


def failed_rungs(run: Run) -> Iterator[str]:
    """Yield why each rung fails; nothing if the verdict says the same."""
    for rung in run.rungs:
        if rung.failures and (run.verdict.passed or rung.failures != run.verdict.failures):
            which = "; `halfwise diagnose` ranks the products that TF32 rounds" * (
                rung.rung == "tf32"
            )
            yield f"{rung_name(rung.rung)} fails: {'; '.join(reasons(rung.failures))}{which}."


def _told(run: Run) -> Iterator[str]:
    yield from failed_rungs(run)
    fp32 = run.rungs[0]
    if fp32.passed is None:
        yield (
            "FP32 itself is not judged: give --labels with a metric, or --expected with the "
            "framework's outputs."
        )
    if fp32.passed is False:
        yield "Nothing lower was tried: what is wrong in FP32 is wrong in every type."
        return
    for rung in run.rungs:
        if rung.passed and rung.by is None and (rung.error or 0.0) > 1:
            yield (
                f"{rung_name(rung.rung)} passes on held-out samples, which decide; on those of the "
                f"search its error is {number(rung.error or 0.0)} times what is allowed."
            )
    yield from _speed(run)
    quantised = quantised_note(run)
    if quantised is not None and len(run.rungs) > 1 and run.rungs[1].rung != "tf32":
        yield "TF32 has no row: every product is quantised."
    chosen = run.curve is not None and run.curve.beside is not None
    asked = run.provenance.options.get("to") == "int8" and not chosen
    if asked and run.rungs[-1].rung != "int8":
        why = _WHY_NOT[run.rungs[-1].passed]
        if quantised is not None and run.rungs[-1].passed:
            why = f"the file is quantised already: {quantised_products(quantised)}"
        for told in run.plan.remarks if run.plan is not None else ():
            why = told.names["why"].rstrip(".") if told.kind == "int8-untried" else why
        yield f"INT8 was not tried: {why}."


def _speed(run: Run) -> Iterator[str]:
    chosen = next((rung for rung in run.rungs if rung.chosen), None)
    if chosen is None:
        return
    if run.engines is None:
        told = f", but {UNCERTAIN}" if chosen.rung == "int8" else ""
        yield (
            f"{rung_name(chosen.rung)} has the lowest predicted cost of the rungs that are not "
            f"shown to be wrong{told}; --target tensorrt measures times."
        )
