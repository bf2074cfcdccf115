"""Words on a run against its baseline."""

from collections.abc import Iterator, Mapping

from halfwise.records import Baseline, Change, FigureKind, Run
from halfwise.reporting.parts import MOST_ROWS, Column, Lines, Table, lines_of
from halfwise.wording import count, number, sentence, shorten

_WHAT: Mapping[FigureKind, str] = {
    "rel-max": "rel max of output {}",
    "mean-abs": "mean error of output {}",
    "unequal": "share of unequal elements in output {}",
    "non-finite": "number of non-finite values in output {}",
    "metric": "loss in {}",
    "cost": "predicted cost over everything low",
    "measured": "measured cost over everything low",
    "time": "time in ms on {}",
}


def worsened(change: Change) -> str:
    """Return a clause on a figure that is worse than allowed."""
    what, before = _what(change), number(change.before, 4)
    if change.now is None:
        return f"the baseline has {what} ({before}), and this run has none"
    return (
        f"{what} is {number(change.now, 4)}, against {before} in the baseline; at most "
        f"{number(change.limit, 4)} is allowed"
    )


def worse_alone(run: Run) -> str:
    """Return the end of the title of a run that fails only against its baseline; else ""."""
    alone = {failure.kind for failure in run.verdict.failures} == {"worse"}
    return ": within tolerance, but worse than the baseline" if alone else ""


def baseline_line(run: Run) -> str:
    """Return a sentence if nothing is worse than the baseline; else ""."""
    found = run.compared
    if found is None or not found.passed:
        return ""
    lacking = sum(change.now is None for change in found.changes)
    missing = f"; {lacking} could not be compared" if lacking else ""
    missing += "" if found.same_samples else "; the samples may differ"
    missing += "" if found.same_model else "; the FP32 model differs"
    some = count(len(found.changes) - lacking, "figure")
    return f"Of {some}, none is worse than the baseline {shorten(found.run, 40)} allows{missing}."


def baseline_parts(run: Run) -> Iterator[Table | Lines | None]:
    """Yield a run's comparison with its baseline; nothing without one."""
    found = run.compared
    if found is None:
        return
    rows = [
        (
            sentence(_what(c)),
            *(number(value, 4) for value in (c.before, c.now, c.limit)),
            "" if c.passed else "worse",
        )
        for c in sorted(found.changes, key=lambda change: change.passed)
        if c.now is not None
    ]
    heads = ("baseline", "now", "at most")
    columns = (Column("figure"), *(Column(head, "right") for head in heads), Column(""))
    yield Table(
        "Against the baseline", columns, tuple(rows), most=MOST_ROWS
    ).without_empty_columns()
    yield lines_of("The baseline", _remarks(found))


def _remarks(found: Baseline) -> Iterator[str]:
    yield f"{found.run}, made {found.date}."
    if not found.same_samples:
        yield "Its samples have the same names; whether they are the same is not known."
    if not found.same_model:
        yield "It is a run of another FP32 model, and its errors are relative to that model."
    for change in found.changes:
        if change.now is None:
            yield f"Not compared: {_what(change)}, which this run does not have."


def _what(change: Change) -> str:
    return _WHAT[change.kind].format(shorten(change.of, 60))
