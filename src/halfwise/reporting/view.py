"""The whole report of a run, and its first screen."""

from collections.abc import Iterator, Mapping, Sequence

from halfwise.metrics import BUILT_IN, rises, usual
from halfwise.records import (
    Baseline,
    Change,
    EngineResult,
    Engines,
    FigureKind,
    MetricResult,
    OutputError,
    Plan,
    Run,
    Verdict,
)
from halfwise.reporting.causes import (
    notes_beside,
    remade_line,
    repair_lines,
)
from halfwise.reporting.diagnosis import diagnosed, diagnosed_screen
from halfwise.reporting.engines import engine_parts, made, passed_word, result_table
from halfwise.reporting.inspection import given_parts
from halfwise.reporting.nodes import followed_lines, low_name, mended, trouble
from halfwise.reporting.parts import (
    Column,
    Lines,
    Report,
    Table,
    commands,
    lines_of,
    present,
)
from halfwise.reporting.plan import (
    curve_table,
    int8_lines,
    kept_table,
    left_out_table,
    minimality,
    nothing_in_int8,
    overflowing,
    plan_lines,
)
from halfwise.reporting.remarks import in_words, reasons, stated
from halfwise.reporting.rungs import (
    brief_ladder,
    cause_line,
    failed_rungs,
    in_full,
    judged_name,
    ladder_lines,
    ladder_table,
    rung_caution,
    rung_line,
)
from halfwise.reporting.steps import (
    cost_line,
    cut_lines,
    has_int8,
    nothing_gained,
    quantised_note,
    steps_told,
)
from halfwise.reporting.verdict import (
    asked,
    bound_part,
    doubt,
    file_lines,
    inside,
    part_lines,
    places,
    rests_on,
    scale_lines,
    share,
    size_lines,
    sums_wide,
    thresholds,
)
from halfwise.wording import (
    FEW,
    MOST_ROWS,
    clean,
    count,
    fixed,
    number,
    percent,
    seconds,
    sentence,
    shorten,
    size_of,
    verb,
)

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
    compared = run.compared
    if compared is None or not compared.passed:
        return ""
    lacking = sum(change.now is None for change in compared.changes)
    missing = f"; {lacking} could not be compared" if lacking else ""
    missing += "" if compared.same_samples else "; the samples may differ"
    missing += "" if compared.same_model else "; the FP32 model differs"
    some = count(len(compared.changes) - lacking, "figure")
    return (
        f"Of {some}, none is worse than the baseline {shorten(compared.run, 40)} allows{missing}."
    )


def baseline_parts(run: Run) -> Iterator[Table | Lines | None]:
    """Yield a run's comparison with its baseline; nothing without one."""
    compared = run.compared
    if compared is None:
        return
    rows = [
        (
            sentence(_what(c)),
            *(number(value, 4) for value in (c.before, c.now, c.limit)),
            "" if c.passed else "worse",
        )
        for c in sorted(compared.changes, key=lambda change: change.passed)
        if c.now is not None
    ]
    heads = ("baseline", "now", "at most")
    columns = (Column("figure"), *(Column(head, "right") for head in heads), Column(""))
    yield Table(
        "Against the baseline", columns, tuple(rows), most=MOST_ROWS
    ).without_empty_columns()
    yield lines_of("The baseline", _remarks(compared))


def _remarks(baseline: Baseline) -> Iterator[str]:
    yield f"{baseline.run}, made {baseline.date}."
    if not baseline.same_samples:
        yield "Its samples have the same names; whether they are the same is not known."
    if not baseline.same_model:
        yield "It is a run of another FP32 model, and its errors are relative to that model."
    for change in baseline.changes:
        if change.now is None:
            yield f"Not compared: {_what(change)}, which this run does not have."


def _what(change: Change) -> str:
    return _WHAT[change.kind].format(shorten(change.of, 60))


_OTHER_BASE = (
    "Costs are relative to this quantised file with everything low: do not compare them with those "
    "of the original, or of a file quantised in another way."
)


def report(run: Run) -> Report:
    """Return the report on a run, whichever command made it."""
    if run.kind == "diagnose":
        return diagnosed(run)
    run = in_words(run)
    parts = [
        ladder_table(run),
        ladder_lines(run),
        trouble(run),
        curve_table(run),
        kept_table(run),
        left_out_table(run),
        repair_lines(run),
        _errors(run),
        scale_lines(run.verdict),
        metric_lines(run),
    ]
    parts += [_figures(run), inside(run.verdict), bound_part(run), _remarks_view(run)]
    parts += device_parts(run.devices)
    parts += given_parts(run.given_engine) if run.given_engine is not None else ()
    parts += [*baseline_parts(run), _reasons(run.verdict)]
    if run.next_step:
        # A path cut in the middle would break the command.
        parts.append(Lines("Next", steps_told(run.next_step), whole=True))
    why = worse_alone(run) or in_full(run.engines) or nothing_gained(run) or _first_reason(run)
    ended = run.search is not None and "interrupt" in run.search.ended_by
    early = ", with the best plan until the interruption" * (ended and run.verdict.passed)
    return Report(
        title=f"{_title(run)}{early}{why}{doubt(run.verdict)}",
        passed=None if run.verdict.passed and no_faster(run) else run.verdict.passed,
        about=_about(run),
        parts=present(*parts),
        caution=caution(run),
    )


_TOLD_AT_ONCE = frozenset(("part", "metric", "run", "non-finite", "shape"))
"""Failures that the title tells; of others it has the number of samples, or what is in doubt."""


def _first_reason(run: Run) -> str:
    """Return the end of the title of a run that fails: the first reason, if no number says it."""
    verdict = run.verdict
    first = [failure for failure in verdict.failures if failure.kind in _TOLD_AT_ONCE][:1]
    counted = verdict.failure_bound is not None and verdict.failure_bound.failing
    if verdict.passed or not verdict.judged or not first or counted or len(verdict.unjudged):
        return ""
    return f": {reasons(first)[0]}"


def _title(run: Run) -> str:
    verdict, bound = run.verdict, run.verdict.failure_bound
    result = "PASSED" if verdict.passed else "FAILED" if verdict.judged else "NOT JUDGED"
    by = {"emulated": " in emulation", "engine": " in the engine"}.get(verdict.level, "")
    whose = "" if verdict.runner is None else f" by outputs of {shorten(verdict.runner)}"
    sums = " with sums in FP32" if sums_wide(verdict) else ""
    kind = "sample" if run.kind == "verify" or run.plan is None else "held-out sample"
    if not verdict.samples:
        where = ", with no sample to judge on"
    elif not verdict.unseen:
        where = f" on {_samples(run, 'sample')} that the search used"
    elif bound is not None and (verdict.passed or bound.failing):
        fails = not verdict.passed or run.criterion.failing is not None
        count_of = bound.failing if fails else bound.judged - bound.failing
        off = f" {verb(count_of, 'fails', 'fail')}" * fails
        where = f": {count_of} of {_samples(run, kind)}{off}"
        if run.criterion.failing is not None:
            where += f", so at most {share(bound.upper)} of inputs"
    else:
        where = f" on {_samples(run, kind)}"
    return f"{result}{by}{places(verdict)}{whose}{sums}{where}"


def _samples(run: Run, what: str) -> str:
    """Return the number of judged samples, and whether they are random."""
    whose = "held out" if "heldout" in run.provenance.options else ""
    drawn = any(note.kind == "random" and note.of == whose for note in run.provenance.notes)
    return count(len(run.verdict.samples), f"random {what}" if drawn else what)


def caution(run: Run) -> str:
    """Return a warning against misreading the verdict; "" if there is none."""
    first = rung_caution(run.engines) or no_faster(run) or nothing_in_int8(run)
    return " ".join(filter(None, (first, _sums(run.verdict), overflowing(run))))


def _sums(verdict: Verdict) -> str:
    """Return what "sums in FP32" means, and what to do; "" where the title does not say it."""
    if not sums_wide(verdict):
        return ""
    return (
        "Right where operators add in FP32, as TensorRT's tensor cores and norm layers do; perhaps "
        "wrong where they add in FP16, as on WebGPU: --accumulate fp16 asks for both."
    )


def no_faster(run: Run) -> str:
    """Return a sentence if all compute nodes stay in FP32; else ""."""
    plan = run.plan
    if plan is None or len(plan.keep) < plan.candidates:
        return ""
    same = "this is the FP32 model" if quantised_note(run) is None else "this is the model as given"
    if plan.keep:
        return f"Every compute node stays in FP32: {same}, and no faster."
    if run.io != "fp32":  # nodes that only move data may then be low
        return ""
    return f"No compute node may be {plan.low.upper()}: {same}, and no faster."


def _about(run: Run) -> str:
    judged = " against ".join(filter(None, (run.provenance.candidate, run.provenance.model)))
    facts = [sentence(judged), *asked(run.criterion, run.verdict)]
    if run.io != "fp32":
        facts.append(f"inputs and outputs in {run.io.upper()}")
    if run.accumulate != "fp32":
        facts.append(f"ops accumulate in {run.accumulate.upper()}, in blocks of 16 products")
    return " · ".join(facts)


def _baseline(plan: Plan) -> str:
    return "as given" if plan.own else f"{'most' if plan.unsupported else 'all'} {plan.low.upper()}"


def _all_low(run: Run) -> dict[str, Verdict]:
    """Return the verdicts on models that keep nothing, by name."""
    low = {} if run.plan is None else {_baseline(run.plan): run.baseline, "all INT8": run.all_int8}
    return {name: verdict for name, verdict in low.items() if verdict is not None}


def _errors(run: Run) -> Table | None:
    engine = " engine" if run.verdict.level == "engine" else ""
    other = "engine" if run.kind == "verify" else "FP32 engine"
    sides = {other if engine else "candidate": run.verdict}
    if run.plan is not None:
        sides = {f"{judged_name(run.engines)}{engine}": run.verdict}
        emulated = ", emulated" if engine else ""
        sides = {f"{name}{emulated}": low for name, low in _all_low(run).items()} | sides
    names = sorted(run.verdict.outputs, key=lambda name: run.verdict.outputs[name].passed)
    rows = []
    for name in names:
        for side, verdict in sides.items():
            if name in verdict.outputs:
                rows.append((clean(name), side, *_error_cells(verdict.outputs[name])))
    if not rows:
        return None
    figures = ("max abs", "rel max", "SNR dB", "cosine", "non-finite", "equal", "of few")
    minor = ("SNR dB", "cosine", "non-finite")
    columns = (
        Column("output", width=28),
        Column("model"),
        *(Column(f, "right", minor=f in minor) for f in figures),
    )
    table = Table("Error against FP32", columns, tuple(rows), most=MOST_ROWS, grouped=True)
    return table.without_empty_columns()


def _error_cells(error: OutputError) -> tuple[str, ...]:
    return (
        number(error.max_abs),
        number(error.rel_max),
        fixed(error.snr_db, 1),
        fixed(error.cosine, 6),
        str(error.nonfinite),
        *("" if e is None else f"{percent(e, 4)}" for e in (error.agreement, error.rare_agreement)),
    )


def metric_lines(run: Run) -> Lines | None:
    """Return each model's task metrics; None if none judged."""
    result = run.verdict.metric
    if result is None:
        return None
    name = result.name
    models: dict[str, MetricResult] = {}
    for side, low in _all_low(run).items():
        models |= {side: low.metric} if low.metric is not None else {}
    models["candidate" if run.plan is None else judged_name(run.engines)] = result
    if result.parts:
        return Lines("Task metrics", tuple(part_lines(models)))
    values = {"in FP32": result.reference} | {n: one.candidate for n, one in models.items()}
    figures = [f"{number(usual(name, value), 6)} {model}" for model, value in values.items()]
    figures += filter(None, [rests_on(result)])
    drop = f"a {'rise' if rises(name) else 'drop'} of {number(result.allowed_drop)} is allowed"
    against_fp32 = result.labelled is False and name in BUILT_IN
    against = " against the FP32 outputs, since there are no labels" if against_fp32 else ""
    return Lines("Task metric", (f"{sentence(name)}{against}: {', '.join(figures)}; {drop}.",))


def _figures(run: Run) -> Lines:
    lines: list[str] = []
    if run.plan is not None:
        lines += plan_lines(run.plan)
        lines += int8_lines(run) if run.plan.has_int8 else [minimality(run, run.plan)]
    if run.worth is not None:
        lines.append(cost_line(run.worth, low_name(run), int8=has_int8(run)))
        lines += [_OTHER_BASE] if quantised_note(run) is not None else []
    if run.remade is not None:
        lines.append(remade_line(run.remade))
    lines += [*size_lines(run.verdict), *file_lines(run.verdict)]
    cost = run.cost
    trials = f"{count(cost.evaluations, 'evaluation')} in " if run.plan is not None else ""
    stages = sorted(cost.stage_seconds.items(), key=lambda item: -item[1])
    spent = ", ".join(f"{sentence(name)} {fixed(took, 1)}" for name, took in stages if took >= 0.05)
    spent = f" ({spent})" if spent else ""
    peak = cost.peak_rss_bytes
    memory = f"; peak memory {size_of(peak)}" if peak is not None else ""
    lines.append(f"{trials}{seconds(cost.seconds)}{spent}{memory}.")
    return Lines("In figures", tuple(lines))


def _remarks_view(run: Run) -> Lines | None:
    lines = [*followed_lines(run), *cut_lines(run), *(notes_beside(run.plan) if run.plan else ())]
    if run.search is not None and run.search.joined:
        joined, filed = count(len(run.search.joined), "held-out sample"), len(run.search.filed)
        how = f" ({filed} of them only as the file runs)" if filed else ""
        lines.append(
            f"{joined} failed at first{how} and joined the search; the verdict is on the others."
        )
    lines += [f"Warning: {line}" for line in run.warnings]
    lines += [f"Hint: {line}" for line in run.verdict.hints]
    return lines_of("Remarks", lines)


def _reasons(verdict: Verdict) -> Lines | None:
    lines = stated(verdict.failures)
    title = f"Why it {'failed' if verdict.judged else 'is not judged'}"
    return Lines(title, lines) if lines else None


def device_parts(devices: Sequence[Engines]) -> tuple[Lines | Table, ...]:
    """Return the report's parts on engines: everything for one device, or several side by side."""
    if len(devices) < 2:
        return tuple(part for engines in devices for part in engine_parts(engines))
    lines = (lines_of(f"On {engines.worker.name}", _lines(engines)) for engines in devices)
    return present(*lines, _table(devices))


def _lines(engines: Engines) -> Iterator[str]:
    yield from made(engines)
    if engines.lost:
        yield f"Lost before its engine was judged: {engines.lost}"
    yield from map(rung_line, engines.rungs)
    yield from (f"{sentence(cause_line(cause))}" for cause in engines.causes)


def _table(devices: Sequence[Engines]) -> Table:
    rows = [
        (
            shorten(engines.worker.name, 20),
            "lost" if engines.lost else passed_word(engines.verdict),
            None if engines.lost else shown_row(engines),
        )
        for engines in devices
    ]
    return result_table("One plan on each device, on held-out samples", "device", rows)


def shown_row(engines: Engines) -> EngineResult | None:
    """Return the row of the delivered engine, else of the last that ran; None if there is none."""
    ran = [row for row in engines.results if row.verdict is not None]
    return engines.row or (ran[-1] if ran else None)


def screen(run: Run) -> Report:
    """Return the first screen of the report that `report` returns."""
    if run.kind == "diagnose":
        return diagnosed_screen(run)
    whole, worded = report(run), in_words(run)
    parts = present(
        brief_ladder(worded),
        # Of the FP32 model there is nothing to tell that `caution` does not.
        None if no_faster(worded) and run.engines is None else lines_of("Result", _result(worded)),
        lines_of(*_why(worded)),
        commands("Next", steps_told(run.next_step)),
    )
    return Report(whole.title, whole.passed, whole.about, parts, caution(worded))


def _result(run: Run) -> Iterator[str]:
    metrics = metric_lines(run)
    errors = list(_errors_screen(run) if metrics is None else metrics.lines)
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
    if line := baseline_line(run):
        yield line


def _errors_screen(run: Run) -> Iterator[str]:
    """Yield the largest errors of all outputs, each with its limit."""
    outputs = run.verdict.outputs
    floats = {name: error for name, error in outputs.items() if error.agreement is None}
    errors = []
    for field, name, sign, limit in thresholds(run.criterion) if floats else ():
        measure = "rel_max_needed" if field == "rel_max" else field
        values = {output: getattr(error, measure) for output, error in floats.items()}
        at = (max if sign == "≤" else min)(values, key=values.__getitem__)
        errors.append(f"{name} {number(values[at])} of {number(limit)} allowed")
        errors[-1] += f" (output {shorten(at, 28)})" if len(floats) > 1 else ""
    if errors:
        yield f"Largest error: {'; '.join(errors)}."


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
        lines = [*stated(verdict.failures)][:FEW]
        return f"Why it {'failed' if verdict.judged else 'is not judged'}", lines
    if types := list(failed_rungs(run)):
        return "Why types fail", types
    if low is None or run.plan is None:
        return "Why", []
    return low.title, [*low.lines, *filter(None, [mended(run.plan)])]
