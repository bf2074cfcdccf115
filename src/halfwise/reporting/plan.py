"""A plan and its rung: what it keeps and why, plans to choose from, the ladder, how rungs end."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from math import inf

from halfwise.metrics import usual
from halfwise.records import (
    FP32_SNR_DB,
    FULL_RUNGS,
    AdjustedConstant,
    Cause,
    Criterion,
    Curve,
    EngineResult,
    EngineRung,
    Engines,
    KeptNode,
    LadderRung,
    Plan,
    Point,
    Run,
    RungTried,
    TaskScore,
    Verdict,
    places,
)
from halfwise.reporting.parts import (
    PRECISIONS,
    WORDS,
    Column,
    Columns,
    Lines,
    Table,
    first_of,
    known,
    lines_of,
    say,
    table_of,
)
from halfwise.reporting.remarks import quantised_note, reasons, unfinished
from halfwise.reporting.verdict import allowed, beyond_seen
from halfwise.wording import (
    MOST_ROWS,
    alike,
    count,
    listed,
    number,
    ratio,
    sentence,
    shorten,
    size_of,
    verb,
)


def full_name(rung: EngineRung | None) -> str:
    """Return what an engine of a full rung is: FP32 with or without TF32."""
    return f"FP32 {'with' if rung == 'tf32' else 'without'} TF32"


def rung_line(tried: RungTried) -> str:
    """Return how a rung ended, as a sentence."""
    return f"{PRECISIONS[tried.rung]}: {WORDS['end'][tried.end]}."


def proven_line(row: EngineResult) -> str:
    """Return what an FP32 engine that is right is, as a clause."""
    facts = {"build": row.build.number, "median_ms": row.latency and row.latency.median_ms}
    return say("built", "proven", facts, name=full_name(row.rung))


def judged_name(engines: Engines | None) -> str:
    """Return the name of the judged model in tables: a mixed one, or that of a full rung."""
    rung = None if engines is None else engines.rung
    return PRECISIONS[rung] if rung in FULL_RUNGS else "mixed"


def in_full(devices: Sequence[Engines]) -> str:
    """Return that engines without the low format are delivered, and why; else ""."""
    engines = devices[0] if devices else None
    if engines is None or not engines.rungs or not engines.full:
        return ""
    low, causes = engines.rungs[-1], {cause.kind: cause for cause in reversed(engines.causes)}
    # Others are not at fault if a worker is lost, or if builds or engines fail there.
    broken = [
        one
        for one in devices
        if any(r.failure for r in one.results if r.rung == low.rung)
        or any(r.measured is None for r in one.rounds)
    ]
    at_fault = broken or devices
    tried = [b for one in at_fault for b in one.builds if b.config.low is not None]
    crashed = [build for build in tried if build.status == "crashed"]
    kind: str = "interrupted" if low.rung in FULL_RUNGS else low.end
    # What engines show says more than how they failed.
    shown = causes.get("ignored") or causes.get("refused")
    if shown is not None and kind in ("tolerance", "held-out", "unsteady", "not-run"):
        kind = shown.kind
    why = say(
        "in full",
        kind,
        shown,
        low=PRECISIONS[low.rung],
        crashed=len(crashed) or None,
        builds=len(tried),
        signals=tuple(dict.fromkeys(build.signal for build in crashed if build.signal)),
        on=tuple(one.worker.name for one in at_fault) if len(at_fault) < len(devices) else None,
    )
    return f", in {full_name(engines.rung)}, because {why}"


def rung_caution(engines: Engines | None) -> str:
    """Return why the delivered engine has no time; "" if it has."""
    row = None if engines is None or not engines.rungs else engines.row
    if engines is None or row is None:
        return ""
    return say("built", "untimed", row) if engines.full and row.untimed else ""


def range_text(least: float, most: float) -> str:
    """Return a range of numbers; one number if both look the same."""
    low, high = number(least), number(most)
    return low if low == high else f"{low} to {high}"


def cause_line(cause: Cause) -> str:
    """Return what engines show, as a clause."""
    builds = f"{verb(len(cause.builds), 'build', 'builds')} {', '.join(map(str, cause.builds))}"
    return say("engines", cause.kind, cause, builds=builds)


def own_criterion(verdict: Verdict) -> str:
    """Return by what the FP32 engine was judged first, and what it has of that."""
    worst = min((o.snr_db for o in verdict.outputs.values()), default=float("inf"))
    return say("built", "first held", verdict.metric, least=FP32_SNR_DB, worst=worst)


def ladder_table(run: Run, *, brief: bool = False) -> Table | None:
    """Return the rungs with their errors, scores, costs and times; None without a ladder.

    `brief`: without minor columns and the note on figures.
    """
    names = list(dict.fromkeys(s.metric for rung in run.rungs for s in rung.scores))
    by_metric = run.criterion.metric is not None

    def figure(title: str, *, minor: bool = True) -> Column:
        return Column(title, "right", minor=minor)

    columns: Columns[LadderRung] = [
        (Column("rung"), lambda rung: PRECISIONS[rung.rung]),
        (
            figure("kept"),
            lambda r: "" if r.rung in (*FULL_RUNGS, "int8") else f"{r.kept}/{r.candidates}",
        ),
        (
            figure("not INT8"),
            lambda r: f"{r.left_out}/{r.candidates}" if r.rung == "int8" else "",
        ),
        (figure("error / allowed", minor=False), lambda r: "" if by_metric else known(r.error)),
        *(
            (figure(name, minor=not by_metric), lambda r, name=name: score_cell(r.scores, name))
            for name in names
        ),
        (figure("cost", minor=False), lambda r: known(r.cost, ratio)),
        (
            figure("ms", minor=False),
            lambda r: known(r.latency.median_ms if r.latency else None),
        ),
        (
            figure("memory"),
            lambda r: known(r.latency.device_bytes if r.latency else None, size_of),
        ),
        (Column(""), lambda r: _end(r, run)),
    ]
    if brief:
        columns = [one for one in columns if not one[0].minor]
    note = "errors on the samples of the search, scores on held-out samples"
    return table_of("The ladder", run.rungs, columns, note="" if brief else note)


def score_cell(scores: Iterable[TaskScore], metric: str) -> str:
    """Return a score by a metric, of several outputs the nearest to failing; "" without one."""
    alike = (score for score in scores if score.metric == metric)
    worst = min(alike, key=lambda score: (score.passed, score.value - score.required), default=None)
    if worst is None or (worst.value >= worst.required and worst.evidence == 0):
        return "" if worst is None else "–"
    return f"{number(usual(metric, worst.value), 4)}{'' if worst.passed else ' ✗'}"


def _end(rung: LadderRung, run: Run) -> str:
    if rung.chosen and run.engines is not None:
        return "delivered"
    if rung.passed is None:
        # A plan without anything in INT8 is the plan of the rung before.
        empty = rung.rung == "int8" and rung.left_out == rung.candidates
        state = "nothing in INT8" if empty else "not judged"
    elif rung.by is not None and rung.passed:
        state = WORDS["right"][rung.by]
    else:
        emulated = ", emulated" * (run.engines is not None and rung.latency is None)
        state = f"{'passed' if rung.passed else 'failed'}{emulated}"
    return f"{state}, chosen" if rung.chosen else state


def failed_rungs(run: Run) -> Iterator[str]:
    """Yield why rungs fail, apart from what the verdict says."""
    for rung in run.rungs:
        if rung.failures and (run.verdict.passed or rung.failures != run.verdict.failures):
            yield _fails(rung)


def _fails(rung: LadderRung) -> str:
    why = "; ".join(reasons(rung.failures))
    return say("ladder", "fails", name=PRECISIONS[rung.rung], why=why)


def ladder_lines(run: Run) -> Lines | None:
    """Return what the ladder's table does not tell; None without a ladder."""
    return lines_of("On the ladder", _measured(run)) if run.rungs else None


def _measured(run: Run) -> Iterator[str]:
    yield from failed_rungs(run)
    fp32, last = run.rungs[0].passed, run.rungs[-1]
    if not fp32:
        yield say("ladder", "fp32 not judged" if fp32 is None else "fp32 wrong")
    if fp32 is False:
        return
    asked = run.provenance.options.get("to") == "int8" and run.provenance.command != "choose"
    if asked and last.rung != "int8":
        remarks = () if run.plan is None else run.plan.remarks
        told = [entry.names["why"].rstrip(".") for entry in remarks if entry.kind == "int8-untried"]
        quantised = bool(last.passed) and quantised_note(run) is not None
        facts = {"quantised": quantised, "failed": last.passed is False, "passed": last.passed}
        yield say("ladder", "no int8", facts, why=told[-1] if told else None)


def kept_table(run: Run) -> Table | None:
    """Return the kept nodes with their reasons, like ones grouped; None if none is kept."""
    if run.plan is None or not (keep := run.plan.keep):
        return None
    title = f"Kept in {_types(keep)}: {len(keep)} of {count(run.plan.candidates, 'compute node')}"
    if run.search is not None and run.search.tolerance_factor != 1:
        title += f"; the search uses {number(run.search.tolerance_factor)} of the tolerance"
    groups = alike(keep, _likeness)
    groups.sort(key=lambda group: (group[0].guard is None, not group[0].unknown))
    return table_of(
        f"{title}{beyond_seen(run, ', at')}",
        groups,
        [(Column("node"), _nodes), (Column("why"), _why), (_WITHOUT, _without)],
        MOST_ROWS,
    )


def _types(keep: Sequence[KeptNode]) -> str:
    types = Counter(kept.precision.upper() for kept in keep)
    if len(types) < 2:
        return next(iter(types), "FP32")
    *rest, last = (f"{name} ({types[name]})" for name in ("BF16", "TF32", "FP32") if types[name])
    return f"{', '.join(rest)} and {last}"


def _likeness(kept: KeptNode) -> tuple[str | bool | None, ...]:
    if kept.unknown:
        return (True,)
    general = kept.guard is None and kept.error_without is None
    return kept.precision, kept.op, kept.guard, kept.reason if general else None


def _nodes(group: Sequence[KeptNode]) -> str:
    first, names = group[0], [kept.node for kept in group]
    if first.unknown and len(group) > 1:
        return f"{len(group)} nodes"
    nodes, op = listed(names, most=3, width=40), shorten(first.op, 20)
    low = "" if first.precision in ("fp32", "fp16") else f", in {first.precision.upper()}"
    return (f"{nodes} ({op})" if len(names) == 1 else f"{len(names)} × {op}: {nodes}") + low


def _why(group: Sequence[KeptNode]) -> str:
    reasons = dict.fromkeys(kept.reason for kept in group)
    return sentence(f"{'For example: ' * (len(reasons) > 1)}{next(iter(reasons))}")


_WITHOUT = Column("without it", "right", minor=True)


def _without(group: Sequence[KeptNode]) -> str:
    least = min((k.error_without for k in group if k.error_without is not None), default=None)
    return "–" if least is None else "unbounded" if least == inf else f"≥ {ratio(least)} limit"


def _constant_line(constant: AdjustedConstant, low: str) -> str:
    facts = {"name": shorten(constant.name), "tiny": constant.largest < 1}
    return say("plan", "constant", constant, facts, low=low)


def plan_lines(plan: Plan) -> Iterator[str]:
    """Yield how many nodes are low, and what is special about others, as sentences."""
    rest, none, only = (
        0 < len(plan.keep) < plan.candidates,
        not plan.candidates,
        plan.candidates == 1,
    )
    yield say("plan", "nodes", plan, types=_types(plan.keep), rest=rest, none=none, only=only)
    yield from first_of([_constant_line(constant, plan.low) for constant in plan.constants])
    low = plan.low.upper()
    special = [(f"The rule {rule} puts in {low}", name) for name, rule in plan.lowered.items()]
    special += [(f"Always FP32, {n.op}: {n.reason}", n.node) for n in plan.unsupported]
    for group in alike(special, lambda one: one[0]):
        nodes = [name for _, name in group]
        yield sentence(f"{group[0][0]}: {count(len(nodes), 'node')} ({listed(nodes)}).")


def minimality(run: Run, plan: Plan) -> str:
    """Return whether fewer nodes could be kept, as a sentence."""
    search, engines = run.search, run.engines
    if not plan.keep:
        shown = run.verdict.passed and not (engines is not None and engines.full)
        fused = any(repair.rule == "one-node" for repair in plan.repairs)
        return say("plan", "none kept", shown=shown, fused=fused)
    if not plan.minimal:
        interrupted = search is not None and "interrupt" in search.ended_by
        in_engine = engines is not None and engines.keep and not interrupted
        return say("plan", "builds used") if in_engine else unfinished(search)
    fixed = sum(kept.kept_by in ("rule", "model") for kept in plan.keep)
    every = fixed == len(plan.keep)
    return say("plan", "minimal", all=every, fixed=bool(fixed))


def left_out_table(run: Run) -> Table | None:
    """Return the nodes left out of INT8, like ones grouped; None if none is."""
    if run.plan is None or not (left_out := run.plan.left_out or run.without_int8):
        return None
    of_all = count(len(run.plan.int8) + len(left_out), "quantisable node")
    few = len(left_out) <= MOST_ROWS
    return table_of(
        f"Left out of INT8, in {run.plan.low.upper()}: {len(left_out)} of {of_all}",
        alike(left_out, lambda kept: (kept.op, kept.reason if few else "")),
        [(Column("node"), _nodes), (Column("why"), _why)],
        MOST_ROWS,
    )


def nothing_in_int8(run: Run) -> str:
    """Return that a plan asked for in INT8 has none, and why; else ""."""
    if run.plan is None:
        return ""
    if not run.without_int8:
        last = run.rungs[-1] if run.rungs and run.verdict.passed else None
        if last is None or last.rung != "int8" or not last.failures:
            return ""
        return f"{say('plan', 'no int8', run.plan)} {_fails(last)}"
    tried, untried = run.all_int8, sum(kept.error_without is None for kept in run.without_int8)
    facts = {"passed": tried is not None and tried.passed, "of": len(run.without_int8)}
    why = "" if tried is None else "; ".join(reasons(tried.failures))
    return say("plan", "no int8", run.plan, facts, untried=untried or None, why=why)


def int8_lines(run: Run) -> Iterator[str]:
    """Yield how many nodes have INT8, and whether more could, as sentences."""
    plan = run.plan
    if plan is None or not plan.has_int8:
        return
    yield say("plan", "int8", plan, of=len(plan.int8) + len(plan.left_out))
    if plan.left_out and plan.minimal:
        sums = any(k.because is not None and k.because.beside for k in plan.left_out)
        yield say("plan", "int8 minimal", sums=sums)
    elif plan.left_out:
        yield unfinished(run.search)


def curve_table(run: Run) -> Table | None:
    """Return the plans to choose from; None without any."""
    curve = run.curve
    if curve is None:
        return None
    rows = [(curve.points[i], "this plan" * (i == curve.plan)) for i in curve.shown]
    over = curve.criterion or run.criterion
    note = say(
        "plan",
        "curve",
        over=allowed(over) if over != run.criterion else None,
        beyond=beyond_seen(run, ", at"),
    )
    return table_of(
        "Plans to choose from",
        rows,
        [
            (
                Column("not INT8" if curve.rung == "int8" else "kept", "right"),
                lambda row: _counted(row[0]),
            ),
            (Column("cost", "right"), lambda row: known(row[0].cost, ratio)),
            (
                Column("error / allowed", "right"),
                lambda row: number(row[0].error),
            ),
            (Column(""), lambda row: row[1]),
        ],
        note=note,
    )


def _counted(point: Point) -> str:
    bf16 = len(places(point.bf16))
    types = [f"{bf16} BF16"] * bool(bf16) + ["TF32"] * point.tf32
    return f"{point.count} ({', '.join(types)})" if types else str(point.count)


def overflowing(run: Run) -> str:
    """Return that a plan that passed overflows within the headroom; else ""."""
    curve = run.curve
    plan = None if curve is None or curve.plan is None else curve.points[curve.plan]
    if plan is None or not run.verdict.passed or run.verdict.level != "emulated":
        return ""
    where = beyond_seen(run, "At")
    if not where or plan.error < inf:
        return ""
    return say("plan", "overflows", where=where)


def chosen_line(curve: Curve, point: Point, criterion: Criterion) -> str:
    """Return which plan was chosen and by what it is judged, as a clause."""
    facts = {"kept": _counted(point), "allowed": allowed(criterion)}
    return say("plan", "chosen", curve, facts, cost=point.cost)
