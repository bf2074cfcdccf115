"""The report on a run: its headline, the reason, and everything that is known; the first screen."""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from halfwise.metrics import BUILT_IN
from halfwise.records import (
    UNDONE,
    Change,
    EngineResult,
    Engines,
    Failure,
    Note,
    Run,
    Verdict,
    replace,
)
from halfwise.reporting.causes import (
    blame_lines,
    followed_lines,
    mended,
    reason_line,
    remade_line,
    repair_lines,
    trouble,
)
from halfwise.reporting.diagnosis import diagnosed
from halfwise.reporting.engines import engine_parts, given_parts, made, passed_word, result_table
from halfwise.reporting.parts import (
    LONGEST,
    Column,
    Lines,
    Report,
    Table,
    commands,
    first_of,
    known,
    lines_of,
    present,
    say,
    table_of,
)
from halfwise.reporting.plan import (
    cause_line,
    curve_table,
    failed_rungs,
    in_full,
    int8_lines,
    judged_name,
    kept_table,
    ladder_lines,
    ladder_table,
    left_out_table,
    minimality,
    nothing_in_int8,
    overflowing,
    plan_lines,
    rung_caution,
    rung_line,
)
from halfwise.reporting.remarks import (
    clause,
    cost_line,
    cut_lines,
    note,
    nothing_gained,
    quantised_note,
    reasons,
    stated,
    steps_told,
)
from halfwise.reporting.verdict import (
    asked,
    bound_part,
    doubt,
    failing_runners,
    file_lines,
    inside,
    non_finite,
    part_lines,
    places,
    scale_lines,
    share,
    size_lines,
    sums_wide,
    thresholds,
)
from halfwise.wording import (
    FEW,
    MOST_ROWS,
    capital,
    clean,
    count,
    fixed,
    listed,
    number,
    percent,
    sentence,
    shorten,
    size_of,
    stopped,
)


def worsened(change: Change) -> str:
    """Return how a figure is worse than the baseline allows, as a clause."""
    what = say("figure", change.kind, of=shorten(change.of, 60))
    return say("baseline", "worse", change, what=what)


def baseline_line(run: Run) -> str:
    """Return how many figures are worse than a baseline allows; "" without one."""
    compared = run.compared
    if compared is None:
        return ""
    changes = [change for change in compared.changes if change.now is not None]
    facts = {"samples": not compared.same_samples, "model": not compared.same_model}
    return say(
        "baseline",
        "line",
        compared,
        facts,
        figures=len(changes),
        worse=sum(not change.passed for change in changes) or None,
        lacking=(len(compared.changes) - len(changes)) or None,
        run=shorten(compared.run, 40),
    )


def held_lines(run: Run) -> Iterator[str]:
    """Yield what became of a verified file on each target."""
    for held in run.held:
        before = held.before if held.before != held.version else None
        outcome, first = say("held", held.outcome), listed([*map(shorten, held.first)]) or None
        yield say("held", "line", held, outcome=outcome, first=first, before=before or None)


def report(run: Run) -> Report:
    """Return the report on a run, with everything that is known."""
    if run.kind == "diagnose":
        return diagnosed(run)
    verdict, given = run.verdict, run.given_engine
    return _headed(
        run,
        ladder_table(run),
        ladder_lines(run),
        trouble(run),
        curve_table(run),
        kept_table(run),
        left_out_table(run),
        repair_lines(run),
        error_table(run),
        scale_lines(verdict),
        metric_lines(run),
        lines_of("In figures", _figures(run)),
        inside(verdict),
        bound_part(run),
        blame_lines(run.blame),
        lines_of("Remarks", _remarks(run)),
        *device_parts(run.devices),
        *(() if given is None else given_parts(given)),
        lines_of("Targets", held_lines(run)),
        lines_of("The baseline", [baseline_line(run)]),
        lines_of(_failed(verdict), [*_forced(run), *stated(verdict.failures)]),
        # A path cut in the middle would break the command.
        Lines("Next", steps_told(run.next_step), whole=True) if run.next_step else None,
    )


def screen(run: Run) -> Report:
    """Return the first screen of the report that `report` returns."""
    if run.kind == "diagnose":
        return diagnosed(run)
    # Of the FP32 model there is nothing to tell that the caution does not.
    plain = no_faster(run) and run.engines is None
    return _headed(
        run,
        ladder_table(run, brief=True),
        None if plain else lines_of("Result", _result(run), first=True),
        blame_lines(run.blame),
        _why(run),
        commands("Next", steps_told(run.next_step, LONGEST)),
    )


def _headed(run: Run, *parts: Lines | Table | None) -> Report:
    """Return a report with the run's headline: the verdict and its reason first."""
    passed = None if run.verdict.passed and no_faster(run) else run.verdict.passed
    return Report(_title(run), passed, _about(run), present(*parts), _caution(run), _reason(run))


def _on_heldout(run: Run) -> bool:
    """Return whether held-out samples judge."""
    return run.kind != "verify" and run.plan is not None and run.verdict.unseen


_TOLD_AT_ONCE = frozenset(
    ("part", "metric", "run", "non-finite", "shape", "interface", "mistyped", "other-aside")
)
"""Failures that the title tells; of others it has the number of samples, or what is in doubt."""


def _counted(verdict: Verdict) -> bool:
    """Return whether the title has the number of samples that fail or pass."""
    bound = verdict.failure_bound
    return bound is not None and (verdict.passed or bool(bound.failing))


def _told_at_once(verdict: Verdict) -> Failure | None:
    """Return the failure that the title tells; None if it tells none."""
    if _counted(verdict) or not verdict.judged or verdict.unjudged:
        return None
    return next((f for f in verdict.failures if f.kind in _TOLD_AT_ONCE), None)


def _title(run: Run) -> str:
    """Return the verdict, on what it rests, and the reason if it is one of a closed list."""
    verdict, bound = run.verdict, run.verdict.failure_bound
    counted, told = _counted(verdict), _told_at_once(verdict)
    whose = "held out" if "heldout" in run.provenance.options else ""
    drawn = any(n.kind == "random" and n.of == whose for n in run.provenance.notes)
    alone = {failure.kind for failure in verdict.failures} == {"worse"}
    rate = run.criterion.failing is not None
    fails, right = not verdict.passed or rate, 0 if bound is None else bound.judged - bound.failing
    noun = "random " * drawn + ("held-out sample" if _on_heldout(run) else "sample")
    return say(
        "headline",
        "title",
        verdict,
        level="file" if failing_runners(verdict) else verdict.level,
        places=places(verdict),
        runner=verdict.runner and shorten(verdict.runner),
        sums=sums_wide(verdict),
        on=count(len(verdict.samples), noun) if verdict.samples else None,
        used=not verdict.unseen and bool(verdict.samples),
        of=None if bound is None or not counted else bound.failing if fails else right,
        fails=counted and fails,
        together=counted and not fails and right < len(verdict.samples),
        share=share(bound.upper) if counted and bound is not None and rate else None,
        early=run.search is not None and "interrupt" in run.search.ended_by and verdict.passed,
        worse=alone,
        why=next(iter(reasons([told] if told else ())), None),
        rest="" if alone else in_full(run.devices) or nothing_gained(run),
        doubt=doubt(verdict),
    )


def _beyond(run: Run) -> Iterator[str]:
    """Yield that a target has FP32 wrong too, where a file fails only on such targets."""
    outcomes = {held.outcome: held for held in run.held}
    if failing_runners(run.verdict) and "fragile" not in outcomes and "fp32" in outcomes:
        held = outcomes["fp32"]
        first = listed([*map(shorten, held.first)])
        yield say("held", "beyond", target=held.target, first=first)


def _reason(run: Run) -> str:
    """Return the line below the title: why it fails, or why nodes are kept; "" if there is none."""
    verdict = run.verdict
    if not verdict.passed:
        others = (f for f in verdict.failures[:1] if f is not _told_at_once(verdict))
        return " ".join((*_beyond(run), *stated(others)))
    full = run.engines is not None and run.engines.full
    return "" if full else reason_line(run)


_BESIDE = frozenset(
    ("mistyped", "array", "aside", "draws", "unbuilt", "late", "static", "frozen"),
)
"""Notes that a user has to know beside the verdict: how the model or an input was taken other than
it is given, and what is not judged, built or of one size."""


def _converted(notes: Iterable[Note]) -> Iterator[str]:
    """Yield which inputs are given as whole numbers where the model takes others."""
    for one in notes:
        given, wanted = (str(one.facts.get(key, "float")) for key in ("stored", "dtype"))
        if "float" in wanted and "float" not in given:
            yield say("headline", "converted", one.facts)


def _caution(run: Run) -> str:
    """Return a warning against misreading the verdict; "" if there is none."""
    first = rung_caution(run.engines) or no_faster(run) or nothing_in_int8(run)
    right = "WebGPU" in places(run.verdict)
    sums = say("headline", "sums", right=right) if sums_wide(run.verdict) else ""
    about = [n for n in run.provenance.notes if n.kind in _BESIDE]
    # The names of outputs, nodes and files, which begin these, keep their case.
    clauses = ((n.kind, stopped(clause(n))) for n in about)
    named = ("aside", "draws", "array")
    notes = [text if kind in named else capital(sentence(text)) for kind, text in clauses]
    told = (
        *_converted(run.provenance.notes),
        *notes,
        first,
        *run.verdict.hints,
        _inside(run),
        sums,
        overflowing(run),
    )
    return " ".join(filter(None, told))


def _inside(run: Run) -> str:
    """Return what is beyond the range inside low nodes of a plan that passed emulated; else ""."""
    plan = run.plan
    if plan is None or not run.verdict.passed or run.verdict.level != "emulated":
        return ""
    kept = {one.node for one in plan.keep}
    beyond = (guard for guard in run.guards if "what" in guard.names and guard.node not in kept)
    found = [*{guard.node: guard for guard in beyond}.values()]
    if not found:
        return ""
    ops = dict.fromkeys(guard.names["op"] for guard in found)
    facts = {"more": len(found) - 1 or None, "rules": " --keep-op ".join(ops)}
    return say("headline", "inside", found[0].facts, facts)


def no_faster(run: Run) -> str:
    """Return a sentence if all compute nodes stay in FP32; else ""."""
    plan = run.plan
    # Nodes that only move data may be low if inputs and outputs are.
    if plan is None or len(plan.keep) < plan.candidates or (not plan.keep and run.io != "fp32"):
        return ""
    given = quantised_note(run) is not None
    return say("headline", "no faster", kept=plan.keep, given=given, low=plan.low)


def _about(run: Run) -> str:
    judged = " against ".join(filter(None, (run.provenance.candidate, run.provenance.model)))
    facts = [sentence(judged), *asked(run.criterion, run.verdict, heldout=_on_heldout(run))]
    facts += [f"inputs and outputs in {run.io.upper()}"] * (run.io != "fp32")
    if run.accumulate != "fp32":
        facts.append(f"ops accumulate in {run.accumulate.upper()}, in blocks of 16 products")
    return " · ".join(facts)


def _all_low(run: Run) -> dict[str, Verdict]:
    """Return the verdicts on models that keep nothing, by name."""
    if (plan := run.plan) is None:
        return {}
    low = (
        "as given" if plan.own else f"{'mostly' if plan.unsupported else 'all'} {plan.low.upper()}"
    )
    verdicts = {low: run.baseline, "all INT8": run.all_int8}
    return {name: verdict for name, verdict in verdicts.items() if verdict is not None}


def _is_all_low(run: Run) -> bool:
    """Return whether the judged model is the one that keeps nothing."""
    plan, other = run.plan, run.baseline is None or run.engines is not None
    return plan is not None and not (other or plan.keep or plan.repairs or plan.has_int8)


_EXACT = partial(percent, digits=4)


def error_table(run: Run) -> Table | None:
    """Return the errors of each output, those that fail first; None if none was judged."""
    engine, emulated = ("", "") if run.verdict.level != "engine" else (" engine", ", emulated")
    sides = {f"{name}{emulated}": low for name, low in _all_low(run).items()}
    own = "candidate" if not engine else "engine" if run.kind == "verify" else "FP32 engine"
    own = own if run.plan is None else f"{judged_name(run.engines)}{engine}"
    sides[next(iter(sides)) if _is_all_low(run) else own] = run.verdict
    outputs = run.verdict.outputs
    rows = [
        (name, side, error)
        for name in sorted(outputs, key=lambda name: outputs[name].passed)
        for side, verdict in sides.items()
        if (error := verdict.outputs.get(name)) is not None
    ]
    return table_of(
        "Error against FP32",
        rows,
        [
            (Column("output", width=28), lambda row: clean(row[0])),
            (Column("model"), lambda row: row[1]),
            (Column("max abs", "right"), lambda row: number(row[2].max_abs)),
            (Column("rel max", "right"), lambda row: number(row[2].rel_max)),
            (Column("SNR dB", "right", minor=True), lambda row: fixed(row[2].snr_db, 1)),
            (Column("cosine", "right", minor=True), lambda row: fixed(row[2].cosine, 6)),
            (Column("non-finite", "right", minor=True), lambda row: str(row[2].nonfinite)),
            (Column("equal", "right"), lambda row: known(row[2].agreement, _EXACT)),
            (Column("of few", "right"), lambda row: known(row[2].rare_agreement, _EXACT)),
        ],
        MOST_ROWS,
    )


def metric_lines(run: Run) -> Lines | None:
    """Return each model's task metrics; None if none judged."""
    result = run.verdict.metric
    if result is None:
        return None
    models = {side: low.metric for side, low in _all_low(run).items() if low.metric is not None}
    own = "candidate" if run.plan is None else judged_name(run.engines)
    models[next(iter(models)) if _is_all_low(run) and models else own] = result
    if not result.parts:
        models = {"FP32": replace(result, candidate=result.reference), **models}
    unlabelled = result.labelled is False and result.name in BUILT_IN
    note = [say("headline", "unlabelled")] if unlabelled else ()
    return lines_of("Task metrics", (*part_lines(models), *note))


def _figures(run: Run) -> Iterator[str]:
    if (plan := run.plan) is not None:
        yield from plan_lines(plan)
        yield from int8_lines(run) if plan.has_int8 else (minimality(run, plan),)
    if run.worth is not None:
        yield cost_line(run)
        yield from [say("worth", "other base")] * (quantised_note(run) is not None)
    if run.remade is not None:
        yield remade_line(run.remade)
    yield from (*size_lines(run.verdict), *file_lines(run.verdict))
    cost, named = run.cost, sorted(run.cost.stage_seconds.items(), key=lambda item: -item[1])
    spent = ", ".join(f"{name} {fixed(took, 1)}" for name, took in named if took >= 0.05)
    memory = cost.peak_rss_bytes and size_of(cost.peak_rss_bytes)
    planned = run.plan is not None
    yield say("headline", "took", cost, planned=planned, spent=spent, memory=memory)


def _remarks(run: Run) -> Iterator[str]:
    yield from (
        *followed_lines(run),
        *cut_lines(run),
        # Undone repairs appear with the repairs.
        *(note(one) for one in (run.plan.remarks if run.plan else ()) if one.kind not in UNDONE),
    )
    if run.search is not None and run.search.joined:
        yield say("headline", "joined", run.search)
    yield from (f"Warning: {line}" for line in run.warnings)


def _failed(verdict: Verdict) -> str:
    return f"Why it {'failed' if verdict.judged else 'is not judged'}"


def device_parts(devices: Sequence[Engines]) -> tuple[Lines | Table, ...]:
    """Return the report's parts on engines: everything for one device, or several side by side."""
    if len(devices) < 2:
        return tuple(part for engines in devices for part in engine_parts(engines))
    rows = [
        (
            shorten(engines.worker.name, 20),
            passed_word(engines.verdict),
            shown_row(engines),
        )
        for engines in devices
    ]
    table = result_table("One plan on each device, on held-out samples", "device", rows)
    lines = (lines_of(f"On {engines.worker.name}", _device(engines)) for engines in devices)
    return present(*lines, table)


def _device(engines: Engines) -> Iterator[str]:
    yield from made(engines)
    yield from (*map(rung_line, engines.rungs), *map(cause_line, engines.causes))


def shown_row(engines: Engines) -> EngineResult | None:
    """Return the row of the delivered engine, else of the last that ran; None if there is none."""
    ran = [row for row in engines.results if row.verdict is not None]
    return engines.row or (ran[-1] if ran else None)


def _result(run: Run) -> Iterator[str]:
    metrics, plan, times = metric_lines(run), run.plan, _times(run)
    if plan is not None and not (run.engines is not None and run.engines.full):
        yield next(int8_lines(run) if plan.has_int8 else plan_lines(plan))
    # No line speaks of the emulation, or of another builder, where engines decided.
    shown = plan if run.engines is None else None
    repaired = "" if shown is None else mended(shown)
    yield from filter(
        None,
        (
            repaired,
            # The news of an upgrade: a screen that is short cuts what is last.
            *held_lines(run),
            *(_largest(run) if metrics is None else metrics.lines),
            times,
            "" if run.rungs or times else cost_line(run),
            baseline_line(run),
        ),
    )


def _largest(run: Run) -> Iterator[str]:
    """Yield the largest errors of all outputs, each with its limit."""
    outputs = run.verdict.outputs
    floats = {name: error for name, error in outputs.items() if error.agreement is None}
    errors = []
    for field, name, sign, limit in thresholds(run.criterion) if floats else ():
        measure = "rel_max_needed" if field == "rel_max" else field
        values = {output: getattr(error, measure) for output, error in floats.items()}
        at = (max if sign == "≤" else min)(values, key=values.__getitem__)
        of = f" (output {shorten(at, 28)})" if len(floats) > 1 else ""
        errors.append(f"{name} {number(values[at])} of {number(limit)} allowed{of}")
    yield from [f"Largest error: {'; '.join(errors)}."] * bool(errors)


def _times(run: Run) -> str:
    """Return the delivered engine's inference time, next to others; "" if unknown."""
    row = None if run.engines is None else run.engines.row
    if run.engines is None or row is None or row.latency is None:
        return ""
    others = [
        f"{shorten(other.name, 24)}: {number(other.latency.median_ms)} ms"
        f"{'' if other.verdict is None or other.verdict.passed else ', which fails'}"
        for other in run.engines.results
        if other is not row and other.latency is not None
    ]
    beside = f" ({'; '.join(others)})" if others else ""
    return f"One run takes {number(row.latency.median_ms)} ms{beside}."


def _forced(run: Run) -> list[str]:
    """Return what a failing run loses at nodes that rules lower, the worst first."""
    lowered = run.plan.lowered if run.plan is not None and not run.verdict.passed else {}
    lines = [f"{shorten(g.node)}: {g.message}." for g in run.guards if lowered.keys() & g.nodes]
    return first_of(lines or [*followed_lines(run), *non_finite(run.verdict)] if lowered else [])


def _why(run: Run) -> Lines | None:
    """Return why the run failed, beyond its first reason; else why types, or everything low, do."""
    verdict, low = run.verdict, trouble(run, brief=True)
    if not verdict.passed:
        return lines_of(_failed(verdict), [*_forced(run), *stated(verdict.failures)[1:FEW]])
    told = nothing_in_int8(run)
    if types := [line for line in failed_rungs(run) if not told.endswith(line)]:
        return lines_of("Why types fail", types)
    return None if run.engines is not None else low
