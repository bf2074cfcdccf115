"""A plan and its rung: what it keeps and why, plans to choose from, the ladder, how rungs end."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf, isfinite

from halfwise.metrics import usual
from halfwise.records import (
    FP32_SNR_DB,
    FULL_RUNGS,
    AdjustedConstant,
    BuildConfig,
    BuildOutcome,
    Cause,
    Criterion,
    Curve,
    EngineResult,
    EngineRung,
    Engines,
    Guard,
    GuardKind,
    KeptNode,
    LadderRung,
    NodeName,
    Plan,
    Point,
    ProvenEngine,
    Refusal,
    Run,
    RungTried,
    Spared,
    TaskScore,
    Verdict,
)
from halfwise.records.run import places
from halfwise.reporting.parts import Column, Lines, Table, first_of, known, lines_of, table_of
from halfwise.reporting.remarks import guard_sentence, quantised_note, reasons, unfinished
from halfwise.reporting.verdict import allowed, beyond_seen, rests_on
from halfwise.reporting.words import WORDS, say
from halfwise.wording import (
    MOST_ROWS,
    count,
    fixed,
    listed,
    number,
    percent,
    ratio,
    sentence,
    shorten,
    size_of,
)


def rung_name(rung: EngineRung) -> str:
    """Return a rung as users know it."""
    return WORDS["rung"][rung]


def full_name(rung: EngineRung | None) -> str:
    """Return what an engine of a full rung is: FP32 with or without TF32."""
    return f"FP32 {'with' if rung == 'tf32' else 'without'} TF32"


def rung_line(tried: RungTried) -> str:
    """Return how a rung ended, as a sentence."""
    full, delivered = tried.rung in FULL_RUNGS, tried.end == "delivered"
    names = {"name": rung_name(tried.rung), "how": WORDS["end"][tried.end]}
    facts = {
        **dict(tried),
        **names,
        "full": full,
        "delivered": delivered,
        "kept": tried.kept or None,
    }
    return say("built", "rung", facts)


def proven_line(proven: ProvenEngine, rung: EngineRung) -> str:
    """Return what an engine proven on the way is, as a clause."""
    return say("built", "proven", {**dict(proven), "name": full_name(rung)})


def spared_line(spared: Spared) -> str:
    """Return why no more engines were built, as a clause."""
    return say("spared", spared.kind, spared)


def first_line(engines: Engines) -> str:
    """Return when the first engine was proven, as a clause; "" if none was."""
    if not engines.proven:
        return ""
    first = engines.proven[0]
    purpose = next((b.purpose for b in engines.builds if b.number == first.build), "")
    return say("built", "first", {**dict(first), "purpose": purpose})


def judged_name(engines: Engines | None) -> str:
    """Return the name of the judged model in tables: a mixed one, or that of a full rung."""
    full = engines is not None and engines.rung is not None and engines.full
    return rung_name(engines.rung) if full and engines and engines.rung else "mixed"


def in_full(engines: Engines | None) -> str:
    """Return that an engine without the low format is delivered, and why; else ""."""
    if engines is None or not engines.rungs or not engines.full:
        return ""
    low = engines.rungs[-1]
    tried = [build for build in engines.builds if build.config.low is not None]
    crashed = [build for build in tried if build.status == "crashed"]
    refused = (c.nodes for c in engines.causes if c.kind == "refused" and c.nodes)
    facts: dict[str, object] = {
        "low": rung_name(low.rung),
        "crashed": len(crashed) or None,
        "builds": len(tried),
        "signals": tuple(dict.fromkeys(build.signal for build in crashed if build.signal)) or None,
        "place": next(map(_place, refused), None),
    }
    # What engines show says more than how they failed.
    shown = [c for kind in ("ignored", "kernel") for c in engines.causes if c.kind == kind]
    kind: str = "interrupted" if low.rung in FULL_RUNGS else low.end
    if shown and kind in ("tolerance", "held-out", "unsteady", "not-run"):
        kind, facts["nodes"] = shown[0].kind, shown[0].nodes or None
    return f", in {full_name(engines.rung)}, because {say('in full', kind, facts)}"


def rung_caution(engines: Engines | None) -> str:
    """Return what the delivered engine lacks: its time, or anything of the low format."""
    row = None if engines is None or not engines.rungs else engines.row
    if engines is None or row is None:
        return ""
    if engines.full:
        return say("built", "untimed", {**dict(row)}.items()) if row.untimed else ""
    return f"The delivered engine: {shows_line(row)}" if row.shows else ""


def shows_line(row: EngineResult) -> str:
    """Return that an engine's outputs show nothing of its low format; "" if they may."""
    if row.shows is None or row.verdict is None:
        return ""
    worst = fixed(min(o.snr_db for o in row.verdict.outputs.values()), 1)
    low = row.build.config.low or "the low format"
    return say("built", "shows", {"shows": row.shows, "worst": worst, "low": low})


def range_text(least: float, most: float) -> str:
    """Return a range of numbers; one number if both look the same."""
    low, high = number(least), number(most)
    return low if low == high else f"{low} to {high}"


def cause_line(cause: Cause) -> str:
    """Return what engines show, as a clause."""
    builds = (
        f"{'build' if len(cause.builds) == 1 else 'builds'} {', '.join(map(str, cause.builds))}"
    )
    place = _place(cause.nodes) if cause.nodes else ""
    return say("engines", cause.kind, {**dict(cause), "builds": builds, "place": place}.items())


def _place(nodes: Sequence[NodeName]) -> str:
    first, last = (shorten(name, 40) for name in (nodes[0], nodes[-1]))
    return first if len(nodes) == 1 else f"{count(len(nodes), 'node')} from {first} to {last}"


def own_criterion(verdict: Verdict) -> str:
    """Return by what the FP32 engine was judged first, and what it has of that."""
    metrics = None if verdict.metric is None else verdict.metric.metrics
    worst = min((o.snr_db for o in verdict.outputs.values()), default=float("inf"))
    facts = {"metrics": metrics, "least": FP32_SNR_DB, "worst": worst}
    return say("built", "first held", facts)


def config_words(config: BuildConfig, *, full: bool) -> str:
    """Return what is special about a build, to end a sentence."""
    facts = {"level": config.optimization_level, "tf32": config.tf32 and not full}
    return say("built", "config", facts)


def refusal_lines(refusals: Sequence[Refusal], builds: Sequence[BuildOutcome]) -> Iterator[str]:
    """Yield what the builder refused; builds that it refused alike share a line."""
    signals = {b.number: b.signal for b in builds}
    alike: dict[tuple[object, ...], list[Refusal]] = {}
    for r in refusals:
        key = (r.kind, r.ends, r.nodes, r.said, signals.get(r.build))
        alike.setdefault(key, []).append(r)
    for group in alike.values():
        first, where = group[0], ""
        if first.ends or first.kind != "unknown":
            ends = [shorten(name, 40) for name in first.ends[:1] + first.ends[-1:]]
            span = f"{count(len(first.nodes), 'node')} from {' to '.join(ends)}"
            where = span if first.ends else "the model"
        facts = {
            "numbers": len(group),
            "builds": ", ".join(str(r.build) for r in group),
            "what": WORDS["refusal"][first.kind],
            "where": where,
            "signal": signals.get(first.build),
            "said": shorten(first.said, 160),
        }
        yield sentence(say("built", "refusal", facts.items()))


def ladder_table(run: Run) -> Table | None:
    """Return the rungs with their errors, scores, costs and times; None without a ladder."""
    names = list(dict.fromkeys(s.metric for rung in run.rungs for s in rung.scores))
    by_metric = run.criterion.metric is not None

    def figure(title: str, *, minor: bool = True) -> Column:
        return Column(title, "right", minor=minor)

    return table_of(
        "The ladder",
        run.rungs,
        [
            (Column("rung"), lambda rung: rung_name(rung.rung)),
            (
                figure("kept"),
                lambda r: "" if r.rung in (*FULL_RUNGS, "int8") else f"{r.kept}/{r.candidates}",
            ),
            (
                figure("not INT8"),
                lambda r: f"{r.left_out}/{r.candidates}" if r.rung == "int8" else "",
            ),
            (figure("error / allowed", minor=False), lambda r: "" if by_metric else known(r.error)),
            (figure("held out"), lambda r: "" if names else known(r.heldout)),
            *(
                (figure(name, minor=not by_metric), lambda r, name=name: score_cell(r.scores, name))
                for name in names
            ),
            (figure("share"), lambda r: known(r.low_share, percent)),
            (figure("cost", minor=False), lambda r: known(r.cost, ratio)),
            (
                figure("ms", minor=False),
                lambda r: known(r.latency.median_ms if r.latency else None),
            ),
            (
                figure("÷ above"),
                lambda r: f"{range_text(r.beside.low, r.beside.high)} ×" if r.beside else "",
            ),
            (figure("size"), lambda r: known(r.bytes, size_of)),
            (
                figure("memory"),
                lambda r: known(r.latency.device_bytes if r.latency else None, size_of),
            ),
            (Column(""), lambda r: _end(r, run)),
        ],
        note="errors on the samples of the search, scores on held-out samples",
    )


def brief_ladder(run: Run) -> Table | None:
    """Return the ladder without its minor columns."""
    table = ladder_table(run)
    return None if table is None else replace(table.without_minor_columns(), note="")


def score_cell(scores: Iterable[TaskScore], metric: str) -> str:
    """Return a score by a metric, of several outputs the nearest to failing; "" without one."""
    alike = (score for score in scores if score.metric == metric)
    worst = min(alike, key=lambda score: (score.passed, score.value - score.required), default=None)
    if worst is None or (worst.passed and worst.evidence == 0):
        return "" if worst is None else "–"
    return f"{number(usual(metric, worst.value), 4)}{'' if worst.passed else ' ✗'}"


def _end(rung: LadderRung, run: Run) -> str:
    if rung.chosen and run.engines is not None:
        return "delivered"
    state = "passed" if rung.passed else "failed"
    if run.engines is not None and rung.latency is None:
        state += ", emulated"
    if rung.by is not None and rung.passed:
        state = WORDS["right"][rung.by]
    if rung.passed is None:
        state = "nothing in INT8" if rung.is_empty else "not judged"
    return f"{state}, chosen" if rung.chosen else state


def failed_rungs(run: Run) -> Iterator[str]:
    """Yield why rungs fail, apart from what the verdict says."""
    for rung in run.rungs:
        if rung.failures and (run.verdict.passed or rung.failures != run.verdict.failures):
            facts = {"name": rung_name(rung.rung), "why": "; ".join(reasons(rung.failures))}
            yield say("ladder", "fails", {**facts, "tf32": rung.rung == "tf32"})


def ladder_lines(run: Run) -> Lines | None:
    """Return what the ladder's table does not tell; None without a ladder."""
    return lines_of("On the ladder", _measured(run)) if run.rungs else None


def _measured(run: Run) -> Iterator[str]:
    yield from failed_rungs(run)
    fp32, last = run.rungs[0], run.rungs[-1]
    if fp32.passed is None:
        yield say("ladder", "fp32 not judged")
    if fp32.passed is False:
        yield say("ladder", "fp32 wrong")
        return
    chosen = next((rung for rung in run.rungs if rung.chosen), None)
    if chosen is not None and run.engines is None:
        name, costs = rung_name(chosen.rung), chosen.cost
        yield say("ladder", "delivered", {"name": name, "int8": chosen.rung == "int8"})
        tf32 = [r.cost for r in run.rungs if r.rung == "tf32" and r.passed and r.cost is not None]
        if costs is not None and any(cost < costs for cost in tf32):
            yield say("ladder", "tf32")
    beside = run.curve is not None and run.curve.beside is not None
    if run.provenance.options.get("to") == "int8" and not beside and last.rung != "int8":
        remarks = () if run.plan is None else run.plan.remarks
        told = [entry.names["why"].rstrip(".") for entry in remarks if entry.kind == "int8-untried"]
        quantised = bool(last.passed) and quantised_note(run) is not None
        facts = {"passed": last.passed, "failed": last.passed is False, "quantised": quantised}
        yield say("ladder", "no int8", {**facts, "why": told[-1] if told else None})


INSIDE: Mapping[GuardKind | None, str] = {
    "infinite": "infinite inside",
    "decision": "decides otherwise",
}
"""Effects of lowering that are no error of the outputs."""


def kept_table(run: Run) -> Table | None:
    """Return the kept nodes with their reasons, like ones grouped; None if none is kept."""
    if run.plan is None or not run.plan.keep:
        return None
    keep = run.plan.keep
    groups: dict[object, list[KeptNode]] = {}
    for kept in sorted(keep, key=lambda kept: kept.unknown):
        groups.setdefault(_likeness(kept), []).append(kept)
    title = f"Kept in {_types(keep)}: {len(keep)} of {count(run.plan.candidates, 'compute node')}"
    if run.search is not None and run.search.tolerance_factor != 1:
        title += f"; the search uses {number(run.search.tolerance_factor)} of the tolerance"
    title += beyond_seen(run, ", at")
    shown = sorted(groups.values(), key=lambda g: (g[0].guard is None, not g[0].unknown))
    rows = tuple(_kept_row(group, run.guards) for group in shown)
    columns = (Column("node"), Column("why"), Column("without it", "right", minor=True))
    return Table(title, columns, rows, most=MOST_ROWS)


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


def _kept_row(group: Sequence[KeptNode], guards: Sequence[Guard]) -> tuple[str, str, str]:
    first, names = group[0], [kept.node for kept in group]
    excesses = [kept.error_without for kept in group if kept.error_without is not None]
    least = min(excesses, default=inf)
    without = f"≥ {ratio(least)} limit" if isfinite(least) else "unbounded"
    if first.unknown and len(group) > 1:
        return f"{len(group)} nodes", say("plan", "unknown"), "–"
    messages = {g.message if (g := _guard_of([kept], guards)) else kept.reason for kept in group}
    why = first.reason
    if (guard := _guard_of(group, guards)) is not None:
        why = guard_sentence(guard, guard.node if guard.node in names else names[0])
    why = why if len(messages) == 1 else f"For example: {why}"
    nodes, op = listed(names, most=3, width=40), shorten(first.op, 20)
    nodes = f"{nodes} ({op})" if len(names) == 1 else f"{len(names)} × {op}: {nodes}"
    nodes += "" if first.precision == "fp32" else f", in {first.precision.upper()}"
    return nodes, sentence(why), without if excesses else INSIDE.get(first.guard, "–")


def _guard_of(group: Sequence[KeptNode], guards: Sequence[Guard]) -> Guard | None:
    """Return the guard that a group rests on; None if there is none."""
    because, names = group[0].because, {kept.node for kept in group}
    if because is not None and because.guard is not None:
        return guards[because.guard]
    alike = [guard for guard in guards if guard.kind == group[0].guard]
    near = [guard for guard in alike if not names.isdisjoint((guard.node, *guard.nodes))]
    return min(near, key=lambda guard: guard.node not in names, default=None)


def _constant_line(constant: AdjustedConstant, low: str) -> str:
    largest = max(-constant.minimum, constant.maximum)
    facts = {**dict(constant), "low": low, "tiny": largest < 1, "largest": largest}
    return say("plan", "constant", facts | {"name": shorten(constant.name)})


def plan_lines(plan: Plan) -> Iterator[str]:
    """Yield how many nodes are low, and what is special about others, as sentences."""
    facts = {
        **dict(plan),
        "kept": len(plan.keep) or None,
        "types": _types(plan.keep),
        "rest": 0 < len(plan.keep) < plan.candidates,
        "none": not plan.candidates,
        "only": plan.candidates == 1,
        "repairs": len(plan.repairs) or None,
        "moved": len(plan.data_movement) or None,
    }
    yield say("plan", "nodes", facts)
    yield from first_of([_constant_line(constant, plan.low) for constant in plan.constants])
    special: dict[str, list[NodeName]] = {}
    for name, rule in plan.lowered.items():
        special.setdefault(f"The rule {rule} puts in {plan.low.upper()}", []).append(name)
    for node in plan.unsupported:
        special.setdefault(f"Always FP32, {node.op}: {node.reason}", []).append(node.node)
    for what, nodes in special.items():
        yield sentence(f"{what}: {count(len(nodes), 'node')} ({listed(nodes)}).")


def minimality(run: Run, plan: Plan) -> str:
    """Return whether fewer nodes could be kept, as a sentence."""
    search, engines = run.search, run.engines
    if not plan.keep:
        shown = run.verdict.passed and not (engines is not None and engines.full)
        fused = any(repair.rule == "one-node" for repair in plan.repairs)
        return say("plan", "none kept", {"shown": shown, "fused": fused})
    if not plan.minimal:
        interrupted = search is not None and "interrupt" in search.ended_by
        in_engine = engines is not None and engines.keep and not interrupted
        return say("plan", "builds used") if in_engine else unfinished(search)
    fixed = sum(kept.kept_by in ("rule", "model") for kept in plan.keep)
    predicted = len(engines.needed_as_predicted) if engines is not None else 0
    facts = {"all": fixed == len(plan.keep), "fixed": bool(fixed), "predicted": predicted or None}
    return say("plan", "minimal", facts)


def left_out_table(run: Run) -> Table | None:
    """Return the nodes left out of INT8, like ones grouped; None if none is."""
    if run.plan is None or not (left_out := run.plan.left_out or run.without_int8):
        return None
    plan, groups = run.plan, dict[tuple[str, str], list[KeptNode]]()
    for kept in left_out:
        grouped = kept.reason if len(left_out) <= MOST_ROWS else ""
        groups.setdefault((kept.op, grouped), []).append(kept)
    of_all = count(len(plan.int8) + len(left_out), "quantisable node")
    return table_of(
        f"Left out of INT8, in {plan.low.upper()}: {len(left_out)} of {of_all}",
        list(groups.values()),
        [
            (
                Column("node"),
                lambda some: (
                    f"{len(some)} × {shorten(some[0].op, 20)}: "
                    f"{listed([k.node for k in some], 3, 40)}"
                ),
            ),
            (Column("why"), lambda some: some[0].reason),
        ],
        MOST_ROWS,
    )


def nothing_in_int8(run: Run) -> str:
    """Return that a plan asked for in INT8 has none, and why; else ""."""
    if run.plan is None or not run.without_int8:
        return ""
    tried, untried = run.all_int8, sum(kept.error_without is None for kept in run.without_int8)
    why = "" if tried is None else "; ".join(reasons(tried.failures))
    facts: dict[str, object] = {"low": run.plan.low}
    facts |= {"passed": tried is not None and tried.passed, "why": why}
    facts |= {"untried": untried or None, "of": len(run.without_int8)}
    return say("plan", "no int8", facts.items())


def int8_lines(run: Run) -> Iterator[str]:
    """Yield how many nodes have INT8, and whether more could, as sentences."""
    plan = run.plan
    if plan is None or not plan.has_int8:
        return
    of_all, repairs = len(plan.int8) + len(plan.left_out), len(plan.repairs) or None
    facts = {**dict(plan), "of": of_all, "int8": len(plan.int8), "repairs": repairs}
    yield say("plan", "int8", facts)
    if plan.left_out and plan.minimal:
        sums = any(k.because is not None and k.because.beside for k in plan.left_out)
        yield say("plan", "int8 minimal", {"sums": sums})
    elif plan.left_out:
        yield unfinished(run.search)


def curve_table(run: Run) -> Table | None:
    """Return the plans to choose from; None without any."""
    curve = run.curve
    if curve is None:
        return None
    names = dict.fromkeys(score.metric for score in curve.reference)
    rows = [
        *_plans(curve, "this plan"),
        *(_plans(curve.beside, "its plan") if curve.beside else ()),
    ]
    over, judged = curve.criterion or run.criterion, run.verdict
    facts = {
        "over": allowed(over) if over != run.criterion else None,
        "heldout": len(judged.samples) if judged.unseen and judged.level == "emulated" else None,
        "beyond": beyond_seen(run, ", both at"),
        "sketched": any(c is not None and c.unrepaired for c in (curve, curve.beside)),
    }
    return table_of(
        "Plans to choose from",
        rows,
        [
            (Column("rung"), lambda row: "" if row[0].rung is None else rung_name(row[0].rung)),
            (
                Column("kept", "right"),
                lambda row: "" if row[0].rung == "int8" else _counted(row[1]),
            ),
            (
                Column("not INT8", "right", minor=True),
                lambda row: _counted(row[1]) if row[0].rung == "int8" else "",
            ),
            (Column("Casts", "right", minor=True), lambda row: known(row[1].casts, str)),
            (Column("cost", "right"), lambda row: known(row[1].cost, ratio)),
            (
                Column("error / allowed", "right"),
                lambda row: f"{'≥ ' if row[1].is_bound else ''}{number(row[1].error)}",
            ),
            *(
                (
                    Column(_resting(curve, name), "right"),
                    lambda row, name=name: score_cell(row[1].scores, name),
                )
                for name in names
            ),
            (Column(""), lambda row: row[2]),
        ],
        note=say("plan", "curve", facts),
    )


def _plans(curve: Curve, own: str) -> Iterator[tuple[Curve, Point, str]]:
    """Yield the plans to show of a curve, and what is special about them; `own`: of its plan."""
    yield from ((curve, curve.points[i], own * (i == curve.plan)) for i in curve.front)
    if (bare := curve.unrepaired) is not None:
        yield from ((curve, bare.points[i], "tried without repairs") for i in bare.front)


def _resting(curve: Curve, metric: str) -> str:
    """Return the heading of a metric's column: its name, and how little it rests on."""
    scores = [s for s in curve.reference if s.metric == metric and s.evidence is not None]
    least = min(scores, key=lambda score: score.evidence or 0, default=None)
    return metric if least is None else f"{metric} {rests_on(least)}"


def _counted(point: Point) -> str:
    bf16 = len([*places(point.bf16)])
    types = [f"{bf16} BF16"] * bool(bf16) + ["TF32"] * point.tf32
    return f"{point.count} ({', '.join(types)})" if types else str(point.count)


def overflowing(run: Run) -> str:
    """Return that a plan that passed overflows within the headroom; else ""."""
    curve = run.curve
    plan = None if curve is None or curve.plan is None else curve.points[curve.plan]
    if plan is None or not run.verdict.passed or run.verdict.level != "emulated":
        return ""
    where = beyond_seen(run, "At")
    if not where or (plan.error < inf and not plan.nonfinite):
        return ""
    return say("plan", "overflows", {"where": where})


def chosen_line(curve: Curve, point: Point, criterion: Criterion) -> str:
    """Return which plan was chosen and by what it is judged, as a clause."""
    facts = {
        "kept": _counted(point),
        "nodes": len(curve.nodes),
        "int8": curve.rung == "int8",
        "cost": point.cost,
        "unrepaired": curve.unrepaired is not None,
        "allowed": allowed(criterion),
    }
    return say("plan", "chosen", facts)
