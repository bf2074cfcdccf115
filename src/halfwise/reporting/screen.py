"""The first screen of a run: the verdict, its worth, its reasons, and what to do next."""

from collections.abc import Iterator

from halfwise.records import EngineResult, Run
from halfwise.reporting.baseline import baseline_line
from halfwise.reporting.diagnosis import diagnosed_screen
from halfwise.reporting.ladder import brief_ladder, failed_rungs
from halfwise.reporting.parts import Report, commands, lines_of, present
from halfwise.reporting.plan import int8_lines, plan_lines
from halfwise.reporting.quantisation import quantisation_lines
from halfwise.reporting.reasons import stated
from halfwise.reporting.remarks import in_words
from halfwise.reporting.steps import steps_told
from halfwise.reporting.trouble import low_name, mended, trouble
from halfwise.reporting.verdict import thresholds
from halfwise.reporting.view import caution, metric_lines, no_faster, report
from halfwise.reporting.worth import cost_line, has_int8
from halfwise.wording import number, shorten

_CAUSES = 3


def screen(run: Run) -> Report:
    """Return the first screen of the report that `report` returns."""
    if run.kind == "diagnose":
        return diagnosed_screen(run)
    whole, told = report(run), in_words(run)
    parts = present(
        brief_ladder(told),
        # Of the FP32 model there is nothing to tell that `caution` does not.
        None if no_faster(told) and run.engines is None else lines_of("Result", _result(told)),
        lines_of(*_why(told)),
        commands("Next", steps_told(run.next_step)),
    )
    return Report(whole.title, whole.passed, whole.about, parts, caution(told))


def _result(run: Run) -> Iterator[str]:
    metrics = metric_lines(run)
    errors = list(_errors(run) if metrics is None else metrics.lines)
    if run.plan is not None and not (run.engines is not None and run.engines.full):
        plan = next(int8_lines(run) if run.plan.has_int8 else plan_lines(run.plan))
        # Below a ladder there is room for one of them.
        yield " ".join((plan, *errors[:1])) if run.rungs else plan
        errors = errors[bool(run.rungs) :]
    yield from errors
    if times := _times(run):
        yield times
    elif run.worth is not None and not run.rungs:
        yield cost_line(run.worth, low_name(run), int8=has_int8(run))
    if told := baseline_line(run):
        yield told


def _errors(run: Run) -> Iterator[str]:
    """Yield the largest errors of all outputs, each with its limit."""
    outputs = run.verdict.outputs
    floats = {name: error for name, error in outputs.items() if error.agreement is None}
    told = []
    for field, name, sign, limit in thresholds(run.criterion) if floats else ():
        measure = "rel_max_needed" if field == "rel_max" else field
        values = {output: getattr(error, measure) for output, error in floats.items()}
        at = (max if sign == "≤" else min)(values, key=values.__getitem__)
        told.append(f"{name} {number(values[at])} of {number(limit)} allowed")
        told[-1] += f" (output {shorten(at, 28)})" if len(floats) > 1 else ""
    if told:
        yield f"Largest error: {'; '.join(told)}."


def _times(run: Run) -> str:
    """Return the delivered engine's inference time, next to others; "" if unknown."""
    row = None if run.engines is None else run.engines.row
    if run.engines is None or row is None or row.latency is None:
        return ""
    others = [r for r in run.engines.results if r is not row and r.latency is not None]
    beside = "; ".join(map(_timed, others))
    return f"One run takes {number(row.latency.median_ms)} ms{f' ({beside})' if beside else ''}."


def _timed(row: EngineResult) -> str:
    assert row.latency is not None
    failed = "" if row.verdict is None or row.verdict.passed else ", which fails"
    return f"{shorten(row.name, 24)}: {number(row.latency.median_ms)} ms{failed}"


def _why(run: Run) -> tuple[str, list[str]]:
    """Return a title and sentences on why the run failed; else why types, or everything low, do."""
    verdict, low = run.verdict, trouble(run, brief=True)
    if not verdict.passed:
        pairs = quantisation_lines(run.quantisation)
        blamed = pairs.lines[:1] if pairs is not None else ()
        told = stated(verdict.reasons, verdict.failures)
        lines = [*told[: _CAUSES - len(blamed)], *blamed]
        return f"Why it {'failed' if verdict.judged else 'is not judged'}", lines
    if types := list(failed_rungs(run)):
        return "Why types fail", types
    if low is None or run.plan is None:
        return "Why", []
    return low.title, [*low.lines, *filter(None, [mended(run.plan)])]
