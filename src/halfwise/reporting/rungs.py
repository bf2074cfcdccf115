"""The rungs of a run: their names, times and errors, and the ladder."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from halfwise.metrics import usual
from halfwise.records import (
    FP32_SNR_DB,
    FULL_RUNGS,
    BuildConfig,
    BuildOutcome,
    Cause,
    EngineResult,
    EngineRung,
    Engines,
    LadderRung,
    NodeName,
    ProvenEngine,
    Refusal,
    Run,
    RungTried,
    Spared,
    TaskScore,
    Verdict,
)
from halfwise.reporting.parts import Column, Lines, Table, known, lines_of, table_of
from halfwise.reporting.remarks import quantised_note, reasons
from halfwise.reporting.words import WORDS, say
from halfwise.wording import (
    count,
    fixed,
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
