"""The rungs of a run: their names, times and errors, and the ladder."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from halfwise.metrics import usual
from halfwise.records import (
    FP32_SNR_DB,
    FULL_RUNGS,
    BuildConfig,
    BuildOutcome,
    Cause,
    CauseKind,
    EngineResult,
    EngineRung,
    Engines,
    LadderRung,
    Move,
    MoveKind,
    ProvenEngine,
    Refusal,
    RefusalKind,
    RightBy,
    Run,
    RungEnd,
    RungTried,
    Spared,
    SparedKind,
    TaskScore,
    Verdict,
)
from halfwise.reporting.parts import Column, Lines, Table, lines_of
from halfwise.reporting.remarks import reasons
from halfwise.reporting.steps import UNCERTAIN, quantised_note, quantised_products
from halfwise.wording import (
    count,
    filled,
    fixed,
    listed,
    number,
    percent,
    ratio,
    seconds,
    sentence,
    shorten,
    size_of,
    verb,
)

_RUNGS: Mapping[EngineRung, str] = {
    "fp32": "FP32",
    "tf32": "TF32",
    "bf16": "BF16",
    "fp16": "FP16",
    "int8": "INT8",
}
_ENDS_OF_RUNGS: Mapping[RungEnd, str] = {
    "delivered": "delivered",
    "slower": "passed, and is slower",
    "not-preferred": "passed, and is not shown to be slower",
    "no-part": "passed, but nothing of it contributes to the outputs",
    "held-out": "passed the search, and failed on held-out samples or at other shapes",
    "unsteady": "passed in at most half of the builds of its plan",
    "tolerance": "out of tolerance",
    "not-run": "no engine runs to the end",
    "unbuildable": "no engine could be built",
    "refused": "the builder refused every plan that is predicted to pass",
    "unfetched": "passed, and could not be fetched",
    "elsewhere": "passed on this device, but not on all",
    "lost": "unknown: the worker was lost",
}

_WHY_FULL: Mapping[RungEnd, str] = {
    "slower": "it is faster than the {low} engines that passed",
    "not-preferred": "no {low} engine that passed is shown to be faster",
    "no-part": "nothing in {low} contributes to the outputs of any engine that passed",
    "unfetched": "the {low} engine that passed could not be fetched",
    "elsewhere": "no {low} plan passed on all devices",
    "refused": "the builder refused every {low} plan that the emulation predicts to pass{place}",
    "lost": "the worker was lost before any {low} engine was judged",
    "unbuildable": "{crashes}",
    "not-run": "no {low} engine runs to the end",
    "tolerance": "every {low} engine is out of tolerance",
    "held-out": "the {low} engines that passed the search fail on held-out samples or other shapes",
    "unsteady": "no {low} plan passed in most of its builds",
}
"""Why FP32 is delivered, by the low rung's result."""
_CAUSES: Mapping[CauseKind, str] = {
    "lost": "nothing is known of low engines: the worker was lost in all of {builds}",
    "no-engine": "no low engine could be built, in {builds}",
    "refused": "the builder refused every plan that the emulation predicts to pass[, at {place}] "
    "({builds})[; the nearest engine has {excess} times what is allowed, where the emulation "
    "predicts {other}]",
    "not-run": "no low engine runs, of {builds}",
    "ignored": "the builder ignored constraints: the inspector shows {nodes} in the low format, "
    "where FP32 was requested ({builds})",
    "kernel": "a kernel or the compiler is to blame[ in {nodes}]: the engine computes in the "
    "types requested, and its error is [{excess} times what is allowed|unknown][, where the "
    "emulation predicts {other}; the engine that has these nodes in FP32 too is right] ({builds})",
    "precision": "low precision explains it: the nearest engine has [{excess} times what "
    "is allowed|too large an error][, where the emulation predicts {other}] ({builds})",
    "unknown": "why the engines are off is unknown: no constraint was ignored and no kernel is "
    "shown to be at fault[; the nearest engine has {excess} times what is allowed, {other} by the "
    "emulation] ({builds})",
}
"""Templates, see `wording.filled`."""


def rung_name(rung: EngineRung) -> str:
    """Return a rung's name."""
    return _RUNGS[rung]


def full_name(rung: EngineRung | None) -> str:
    """Return the name of a rung's engine that computes nothing low."""
    return f"FP32 {'with' if rung == 'tf32' else 'without'} TF32"


def rung_line(tried: RungTried) -> str:
    """Return what was tried on a rung and the result, as a sentence."""
    text = f"{_RUNGS[tried.rung]}: {_ENDS_OF_RUNGS[tried.end]}"
    facts = []
    if tried.rung not in FULL_RUNGS:
        facts.append(
            f"{count(tried.plans, 'plan')}, {tried.built} of {count(tried.builds, 'build')}"
        )
        facts[-1] += " gave an engine"
    if tried.excess is not None:
        whose = "its error is" if tried.end == "delivered" else "the nearest engine has"
        kept = f" with {count(tried.kept, 'node')} kept" if tried.kept else ""
        facts.append(f"{whose} {number(tried.excess)} times what the search allows{kept}")
    return f"{text} ({'; '.join(facts)})." if facts else f"{text}."


def proven_line(proven: ProvenEngine, rung: EngineRung) -> str:
    """Return a clause that an engine with nothing low is proven while its run continues."""
    timed = "" if proven.median_ms is None else f", {number(proven.median_ms)} ms a run"
    return f"build {proven.build} is proven on held-out data, {full_name(rung)}{timed}"


_SPARED: Mapping[SparedKind, str] = {
    "slower": "no more plans were built[ but one without repairs (build {beside})]: with nothing "
    "kept a run takes {median_ms} ms (build {build}), and {full_ms} ms in an FP32 engine "
    "that passes (build {full})",
    "interrupted": "the run was interrupted, so no more were built",
    "no-tf32": "no engine with TF32 was built: this GPU has none",
}
"""Templates, see `wording.filled`."""


def spared_line(spared: Spared) -> str:
    """Return what was not built and why, as a clause."""
    facts = {"build": str(spared.build), "full": str(spared.full)}
    facts |= {} if spared.beside is None else {"beside": str(spared.beside)}
    times = {"median_ms": spared.median_ms, "full_ms": spared.full_ms}
    facts |= {name: number(ms) for name, ms in times.items() if ms is not None}
    return filled(_SPARED[spared.kind], facts)


def first_line(engines: Engines) -> str:
    """Return when the first engine was proven, as a clause; "" if none was before the end."""
    if not engines.proven:
        return ""
    first = engines.proven[0]
    purpose = next((b.purpose for b in engines.builds if b.number == first.build), "")
    return f"first proven engine: build {first.build} ({purpose}), after {seconds(first.seconds)}"


def judged_name(engines: Engines | None) -> str:
    """Return the judged model's name next to the all-low one."""
    if engines is None or engines.rung is None or not engines.full:
        return "mixed"
    return _RUNGS[engines.rung]


def in_full(engines: Engines | None) -> str:
    """Return the end of the title where the delivered engine computes nothing low, and why."""
    if engines is None or not engines.rungs or not engines.full:
        return ""
    low = engines.rungs[-1]
    why = _WHY_FULL.get(low.end, "no {low} plan passed").format(
        low=_RUNGS[low.rung],
        crashes=_crashes(engines, _RUNGS[low.rung]),
        place="".join(
            f", at {_place(c)}" for c in engines.causes if c.kind == "refused" and c.nodes
        ),
    )
    if low.rung in FULL_RUNGS:
        why = "the run was interrupted before anything lower was built"
    return f", in {full_name(engines.rung)}, because {why}"


def _crashes(engines: Engines, low: str) -> str:
    """Return how the builds of a low rung, of which none gave an engine, ended."""
    tried = [build for build in engines.builds if build.config.low is not None]
    crashed = [build for build in tried if build.status == "crashed"]
    if not crashed:
        return f"no {low} engine could be built"
    signals = listed(list(dict.fromkeys(b.signal for b in crashed if b.signal)))
    by = f" ({signals})" if signals else ""
    return f"the builder crashed in {len(crashed)} of {len(tried)} {low} builds{by}"


def rung_caution(engines: Engines | None) -> str:
    """Return a sentence on what the delivered engine leaves in doubt; else ""."""
    if engines is None or not engines.rungs:
        return ""
    row = engines.row
    if engines.full:
        return _untimed(engines).strip()
    return f"The delivered engine: {shows_line(row)}" if row and row.shows else ""


def shows_line(row: EngineResult) -> str:
    """Return a sentence if nothing low affects an engine's results; "" if it may."""
    if row.shows is None or row.verdict is None:
        return ""
    as_much = "the outputs equal those of the TF32 engine to the last digit"
    if row.shows == "fp32":
        worst = fixed(min(o.snr_db for o in row.verdict.outputs.values()), 1)
        as_much = f"it is as exact as the FP32 engine (SNR {worst} dB"
        as_much += ", where one rounding to FP16 leaves about 71 dB)"
    low = (row.build.config.low or "the low format").upper()
    return f"{as_much}: what is in {low} does not contribute to the outputs."


def _untimed(engines: Engines) -> str:
    """Return what is unknown about the delivered engine, as a sentence; "" if it was timed."""
    row = engines.row
    if row is None or not row.untimed:
        return ""
    if row.lost:
        return (
            " It is right on the samples below; the worker was lost before the rest was measured."
        )
    return f" It could not be timed: {row.untimed.rstrip('.')}."


def range_text(least: float, most: float) -> str:
    """Return two numbers as `0.17 to 0.35`; one if they read the same."""
    low, high = number(least), number(most)
    return low if low == high else f"{low} to {high}"


def cause_line(cause: Cause) -> str:
    """Return what engines show about why nothing low passed, as a sentence without a full stop."""
    builds = verb(len(cause.builds), "build", "builds")
    facts = {"builds": f"{builds} {', '.join(map(str, cause.builds))}"}
    facts |= {"nodes": listed(cause.nodes), "place": _place(cause)} if cause.nodes else {}
    facts |= {"excess": number(cause.excess)} if cause.excess is not None else {}
    facts |= {"other": number(cause.other)} if cause.other is not None else {}
    return filled(_CAUSES[cause.kind], facts)


def _place(cause: Cause) -> str:
    first, last = (shorten(name, 40) for name in (cause.nodes[0], cause.nodes[-1]))
    return (
        first
        if len(cause.nodes) == 1
        else f"{count(len(cause.nodes), 'node')} from {first} to {last}"
    )


def own_criterion(verdict: Verdict) -> str:
    """Return the first criterion that the FP32 engine had to meet, as a sentence."""
    if verdict.metric is not None:
        held = listed(verdict.metric.metrics)
        return f"First, the FP32 engine without TF32 was held to {held}."
    worst = min((o.snr_db for o in verdict.outputs.values()), default=float("inf"))
    return (
        f"First, the FP32 engine without TF32 was held to SNR ≥ {number(FP32_SNR_DB)} dB: it has "
        f"{fixed(worst, 1)} dB. In the table it is held to the same limits as all others."
    )


_MOVES: Mapping[MoveKind, str] = {
    "region": "all of the region kept",
    "level": "optimization level {level}",
    "none": "nothing kept there",
}
_REFUSALS: Mapping[RefusalKind, str] = {
    "no-kernel": "has no kernel for",
    "compiler": "fails in its own compiler for",
    "crash": "crashed in",
    "timeout": "took too long for",
    "unknown": "gave up",
}


def move_line(move: Move) -> str:
    """Return what was tried instead of a refused plan, in a few words."""
    return f"instead of build {move.refused}: {_MOVES[move.kind].format(level=move.level)}"


def config_words(config: BuildConfig, *, full: bool) -> str:
    """Return the build settings that affect the choice of kernels, to follow a clause.

    `full` is whether nothing is low in it: then its name says whether TF32 is on.
    """
    text = ""
    if config.optimization_level is not None:
        text += f", optimization level {config.optimization_level}"
    if config.tf32 and not full:
        text += ", TF32 allowed"
    return text


def refusal_lines(refusals: Sequence[Refusal], builds: Sequence[BuildOutcome]) -> Iterator[str]:
    """Yield sentences on what was refused, and where.

    Builds that were refused alike share a sentence.

    Args:
        refusals: In the order of the run.
        builds: Builds of the run, which have the signal that ended one.
    """
    signals = {b.number: b.signal for b in builds}
    alike: dict[tuple[object, ...], list[Refusal]] = {}
    for r in refusals:
        key = (r.kind, r.ends, r.nodes, r.said, signals.get(r.build))
        alike.setdefault(key, []).append(r)
    for group in alike.values():
        yield _refusal(group, signals.get(group[0].build))


def _refusal(group: Sequence[Refusal], signal: str | None) -> str:
    refusal, where = group[0], "the model"
    if refusal.ends:
        first, last = shorten(refusal.ends[0], 40), shorten(refusal.ends[-1], 40)
        where = f"{count(len(refusal.nodes), 'node')} from {first} to {last}"
    builds = verb(len(group), "Build", "Builds")
    text = f"{builds} {', '.join(str(r.build) for r in group)}: the builder "
    text += _REFUSALS[refusal.kind]
    text += f" {where}" if refusal.kind != "unknown" or refusal.ends else ""
    text += f", by {signal}" if signal else ""
    said = f" It said: {shorten(refusal.said, 160)}" if refusal.said else ""
    return sentence(f"{text}.{said}")


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
    minor = {"kept", "not INT8", "held out", "share", "÷ above", "size", "memory"}
    minor |= set() if run.criterion.metric else set(names)
    right = (Column(figure, "right", minor=figure in minor) for figure in figures)
    columns = (Column("rung"), *right, Column(""))
    rows = tuple(_row(rung, names, run) for rung in run.rungs)
    note = "errors on the samples of the search, scores on held-out samples"
    return Table("The ladder", columns, rows, note=note).without_empty_columns()


def brief_ladder(run: Run) -> Table | None:
    """Return the decisive figures of each rung: error or scores, cost or time, and its result."""
    table = ladder_table(run)
    return None if table is None else replace(table.without_minor_columns(), note="")


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
    by_metric = [score for score in scores if score.metric == name]
    if not by_metric:
        return ""
    worst = min(by_metric, key=lambda score: (score.passed, score.value - score.required))
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
    return lines_of("On the ladder", _measured(run)) if run.rungs else None


def failed_rungs(run: Run) -> Iterator[str]:
    """Yield why each rung fails; nothing if the verdict says the same."""
    for rung in run.rungs:
        if rung.failures and (run.verdict.passed or rung.failures != run.verdict.failures):
            which = "; `halfwise diagnose` ranks the products that TF32 rounds" * (
                rung.rung == "tf32"
            )
            yield f"{rung_name(rung.rung)} fails: {'; '.join(reasons(rung.failures))}{which}."


def _measured(run: Run) -> Iterator[str]:
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
    yield from _speed(run)
    quantised = quantised_note(run)
    chosen = run.curve is not None and run.curve.beside is not None
    wants_int8 = run.provenance.options.get("to") == "int8" and not chosen
    if wants_int8 and run.rungs[-1].rung != "int8":
        why = _WHY_NOT[run.rungs[-1].passed]
        if quantised is not None and run.rungs[-1].passed:
            why = f"the file is quantised already: {quantised_products(quantised)}"
        for entry in run.plan.remarks if run.plan is not None else ():
            why = entry.names["why"].rstrip(".") if entry.kind == "int8-untried" else why
        yield f"INT8 was not tried: {why}."


def _cheaper(rungs: Sequence[LadderRung], chosen: LadderRung) -> Iterator[str]:
    """Yield that TF32, for which no file is written, costs less than the delivered plan."""
    for one in rungs:
        if one.rung != "tf32" or not one.passed or one.cost is None or chosen.cost is None:
            continue
        if one.cost < chosen.cost:
            yield (
                "TF32 passes too, and is predicted to cost less: build the model as given, with "
                "TF32, and compare."
            )


def _speed(run: Run) -> Iterator[str]:
    chosen = next((rung for rung in run.rungs if rung.chosen), None)
    if chosen is None:
        return
    if run.engines is None:
        doubt = f", but {UNCERTAIN}" if chosen.rung == "int8" else ""
        yield (
            f"{rung_name(chosen.rung)} is delivered{doubt}; costs are predicted, and --target "
            "tensorrt measures times."
        )
        yield from _cheaper(run.rungs, chosen)
