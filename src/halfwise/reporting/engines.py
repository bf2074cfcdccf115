"""Turn a run's results on real engines into parts of its report; the final table comes last."""

from collections.abc import Iterator, Mapping, Sequence

from halfwise.records import (
    BuildOutcome,
    EngineLayer,
    EngineResult,
    EngineRound,
    Engines,
    Latency,
    NodeName,
    NodePrecision,
    Precision,
    PrecisionProof,
    ShapeVerdict,
    TensorName,
    Verdict,
)
from halfwise.reporting.parts import (
    Column,
    Lines,
    Report,
    Table,
    first_of,
    known,
    lines_of,
    present,
)
from halfwise.reporting.rungs import (
    cause_line,
    config_words,
    first_line,
    full_name,
    move_line,
    range_text,
    refusal_lines,
    rung_line,
    shows_line,
    spared_line,
)
from halfwise.reporting.verdict import heading_of, values_of
from halfwise.wording import (
    MOST_ROWS,
    capital,
    clean,
    count,
    dimensions,
    fixed,
    listed,
    mebibytes,
    number,
    percent,
    seconds,
    sentence,
    shorten,
    size_of,
)

WORDS: dict[Precision, str] = {
    "fp32": "FP32",
    "tf32": "TF32",
    "fp16": "FP16",
    "bf16": "BF16",
    "int8": "INT8",
    "fp8": "FP8",
    "mixed": "mixed",
    "other": "other",
    "unknown": "unknown",
}


def inspected(proof: PrecisionProof, engine: str) -> Report:
    """Return the report on an engine, by its inspector.

    Args:
        proof: Its precisions; without nodes if its model is unknown.
        engine: Its name, such as its path.
    """
    total = _total(proof.layers)
    timed = f"; {number(total)} ms in all of them" if total else ""
    shares = proof.time_share or proof.node_share or _layer_share(proof.layers)
    of = "of the time" if proof.time_share else "of the nodes" if proof.node_share else "of layers"
    return Report(
        title=f"{share_words(shares)} {of}" if shares else "The engine has no layers",
        passed=False if proof.findings else None,
        about=f"{clean(engine)}; {count(len(proof.layers), 'layer')}{timed}",
        parts=present(*proof_parts(proof)),
    )


def proof_parts(proof: PrecisionProof) -> tuple[Lines | Table | None, ...]:
    """Return the parts on an engine's precision, in reading order."""
    return (
        lines_of("Not as requested", proof.findings),
        share_table(proof),
        layer_table(proof.layers),
        node_table(proof.nodes),
        lines_of("Remarks", proof.remarks),
    )


def share_words(shares: Mapping[Precision, float]) -> str:
    """Return shares such as `FP16 83%, FP32 12%, other 5%`, largest first; "" for none."""
    ordered = sorted(shares.items(), key=lambda item: -item[1])
    return ", ".join(f"{WORDS[precision]} {percent(share)}" for precision, share in ordered)


def share_table(proof: PrecisionProof) -> Table | None:
    """Return a row for each precision: its layers, compute nodes and time."""
    kinds = [p for p in WORDS if any(layer.precision == p for layer in proof.layers)]
    kinds += [p for p in WORDS if p not in kinds and p in {**proof.node_share, **proof.time_share}]
    rows = tuple(
        (
            WORDS[kind],
            str(sum(layer.precision == kind for layer in proof.layers)),
            percent(proof.node_share[kind]) if kind in proof.node_share else "",
            percent(proof.time_share[kind]) if kind in proof.time_share else "",
        )
        for kind in kinds
    )
    columns = ("layers", "of compute nodes", "of time")
    table = Table(
        "Precision",
        (Column("precision"), *(Column(title, "right") for title in columns)),
        rows,
    )
    return table.without_empty_columns() if rows else None


def layer_table(layers: Sequence[EngineLayer]) -> Table | None:
    """Return the layers that take longest, or the first ones if no time is known."""
    if not layers:
        return None
    total = _total(layers)
    shown = sorted(layers, key=lambda layer: -(layer.milliseconds or 0.0))
    rows, rest = tuple(_layer_row(layer, total) for layer in shown), tuple[str, ...]()
    if others := shown[MOST_ROWS:]:
        remaining = _total(others)
        share = percent(remaining / total) if total else ""
        rest = (f"and {len(others)} more", "", "", "", number(remaining) if total else "", share)
    columns = (
        *map(Column, ("layer", "type", "reads → gives", "precision")),
        Column("ms", "right"),
        Column("of time", "right"),
    )
    title = "Layers, longest first" if total else "Layers"
    return Table(title, columns, rows, most=MOST_ROWS, rest=rest).without_empty_columns()


def node_table(nodes: Sequence[NodePrecision]) -> Table | None:
    """Return the nodes by requested and actual precision, wrong ones first."""
    groups: dict[tuple[Precision | None, Precision], list[NodeName]] = {}
    for node in nodes:
        if node.precision != "other" or node.asked is not None:
            groups.setdefault((node.asked, node.precision), []).append(node.node)
    if not groups:
        return None
    ordered = sorted(groups.items(), key=lambda item: (_is_as_asked(*item[0]), -len(item[1])))
    rows = tuple(
        (
            WORDS[requested] if requested else "",
            WORDS[precision],
            str(len(names)),
            listed(names, most=3, width=40),
        )
        for (requested, precision), names in ordered
    )
    columns = (Column("asked"), Column("is"), Column("nodes", "right"), Column("which"))
    return Table("Nodes of the model", columns, rows).without_empty_columns()


def _is_as_asked(requested: Precision | None, precision: Precision) -> bool:
    return requested is None or precision in (requested, "unknown", "other")


def _layer_row(layer: EngineLayer, total: float) -> tuple[str, ...]:
    time = layer.milliseconds
    return (
        shorten(layer.name, 34),
        shorten(layer.type, 16),
        _types(layer),
        WORDS[layer.precision],
        "" if time is None else number(time),
        percent(time / total) if time and total else "",
    )


def _types(layer: EngineLayer) -> str:
    sides = [", ".join(dict.fromkeys(filter(None, side))) for side in (layer.inputs, layer.outputs)]
    return shorten(" → ".join(side or "?" for side in sides), 24) if any(sides) else ""


def _layer_share(layers: Sequence[EngineLayer]) -> dict[Precision, float]:
    precisions = [layer.precision for layer in layers]
    return {kind: precisions.count(kind) / len(precisions) for kind in dict.fromkeys(precisions)}


def _total(layers: Sequence[EngineLayer]) -> float:
    return sum(layer.milliseconds or 0.0 for layer in layers)


_ENDS = {
    "failed": "failed",
    "crashed": "crashed",
    "timeout": "took too long and was stopped",
    "lost": "was lost with its worker",
    "skipped": "was skipped",
    "interrupted": "was interrupted",
}
_LOW = ("FP16", "BF16")
"""Names of the engine with everything low, with whose time the others are compared."""


def engine_parts(engines: Engines) -> tuple[Lines | Table, ...]:
    """Return the report's parts on engines, in reading order."""
    parts = (
        Lines("Engines", tuple(made(engines))),
        lines_of("Rungs, most exact first", map(rung_line, engines.rungs)),
        lines_of("What the engines show", (capital(cause_line(cause)) for cause in engines.causes)),
        _rounds(engines.rounds),
        lines_of("What the builder refused", refusal_lines(engines.refusals, engines.builds)),
        _failed(engines),
        lines_of("Shapes of the profiles", _shapes(engines.results)),
        lines_of(
            "Not as requested",
            (f"{r.name}: {line}" for r in engines.results if r.proof for line in r.proof.findings),
        ),
        lines_of("About the engines", _remarks(engines)),
        _precision(engines.results),
        lines_of(
            "Time of the delivered engine over others",
            (
                f"{r.name}: {number(r.ratio.low)} to {number(r.ratio.high)}, over "
                f"{count(r.ratio.rounds, 'alternating round')}"
                for r in engines.results
                if r.ratio is not None
            ),
        ),
        _table(engines.results),
    )
    return present(*parts)


def made(engines: Engines) -> Iterator[str]:
    """Yield sentences on where engines were built, which is delivered, and how sure that is."""
    worker = engines.worker
    gpu = worker.gpu or "no GPU"
    facts = [f"TensorRT {worker.tensorrt or 'unknown'}", gpu]
    if worker.compute_capability:
        facts.append(f"compute capability {worker.compute_capability}")
    if worker.driver:
        facts.append(f"driver {worker.driver}")
    if worker.tf32_override is not None:
        facts.append(f"NVIDIA_TF32_OVERRIDE={worker.tf32_override}")
    facts.append(f"{engines.typing} typing")
    yield sentence(f"Built on {worker.name}: {', '.join(facts)}.")
    file = engines.delivered
    if file is None:
        why = "the verdict says why" if engines.rung is not None else "none passed"
        yield f"No engine is delivered: {why}."
    else:
        where = "" if file.side == "here" else " on the worker's side"
        yield (
            f"Delivered: {shorten(file.path)}{where}, {size_of(file.bytes)}, SHA-256 "
            f"{clean(file.sha256[:12])}…; {_what(engines)}."
        )
    if first := first_line(engines):
        yield sentence(f"{capital(first)}.")
    if engines.spread:
        yield _confirmed(engines)
    yield from (sentence(f"{capital(spared_line(s))}.") for s in engines.spared)
    if engines.emulated is not None and engines.emulated.outputs:
        judged = "passed" if engines.emulated.within else "failed"
        error = number(largest(engines.emulated, "max_abs"))
        yield f"In the emulation the first plan {judged}; largest error {error}."


def _what(engines: Engines) -> str:
    what = f"{count(len(engines.keep), 'node')} in FP32"
    if engines.full:
        what = full_name(engines.rung)
    if engines.row is None:
        return what
    return what + config_words(engines.row.build.config, full=engines.full)


def _confirmed(engines: Engines) -> str:
    spread, built = engines.spread, len(engines.spread)
    least, most = number(min(spread)), number(max(spread))
    errors = f"its error is {most}" if built == 1 else f"their errors are {least} to {most}"
    return (
        f"Confirmed: {engines.confirmed} of {count(built, 'build')} of this plan passed on the "
        f"calibration samples; {errors} times what is allowed."
    )


def _rounds(rounds: Sequence[EngineRound]) -> Table | None:
    if not rounds:
        return None
    rows: list[tuple[str, ...]] = [
        (
            str(r.build),
            clean(r.step if r.move is None else move_line(r.move)),
            str(len(r.keep)),
            _emulated(r),
            known(r.measured) or "no result",
            known(r.median_ms),
            "yes" if r.passed else "no",
        )
        for r in rounds
    ]
    figures = ("kept", "emulated", "engine", "ms")
    columns = (
        Column("build", "right"),
        Column("what was tried", width=40),
        *(Column(figure, "right", minor=figure in ("kept", "emulated")) for figure in figures),
        Column("passed"),
    )
    title = "Rounds (error over what is allowed: 1 just passes)"
    return Table(title, columns, tuple(rows), most=MOST_ROWS).without_empty_columns()


def _emulated(made: EngineRound) -> str:
    """Return a plan's error by emulation, without fusion and with it, from least to most."""
    errors = [e for e in (made.predicted, made.predicted_fused) if e is not None]
    return range_text(min(errors), max(errors)) if errors else ""


def _failed(engines: Engines) -> Lines | None:
    refused = {refusal.build for refusal in engines.refusals}
    failed = [b for b in engines.builds if b.status != "built" and b.number not in refused]
    if not failed:
        return None
    return Lines("Failed builds", tuple(first_of([_failure(b) for b in failed], most=MOST_ROWS)))


def _failure(build: BuildOutcome) -> str:
    signal = f" by {build.signal}" if build.signal else ""
    text = f"Build {build.number} ({build.purpose}) {_ENDS[build.status]}{signal}"
    if build.status != "skipped":
        text += f" after {seconds(build.seconds)}"
    said = build.message.strip().rstrip(".")
    text += f": {said}." if said else "."
    last = next((line.strip() for line in reversed(build.log) if line.strip()), "")
    if last and last not in build.message:
        text += f" Last line of the log: {shorten(last, 160)}"
    return sentence(text)


def _shapes(results: Sequence[EngineResult]) -> Iterator[str]:
    for result in results:
        for judged in sorted(result.shapes, key=lambda s: s.verdict is not None):
            yield f"{result.name}, {shape_line(judged)}"


def shape_line(judged: ShapeVerdict) -> str:
    """Return the engine's result at one set of shapes, as a sentence."""
    where = f"{judged.at} ({sizes(judged.shapes)})"
    if judged.verdict is None:
        return f"{where}: not judged, {judged.reason.rstrip('.') or 'no data have these shapes'}."
    outcome = "passed" if judged.verdict.passed else "failed"
    error = number(largest(judged.verdict, "max_abs"))
    on = count(len(judged.verdict.samples), "sample")
    note = f"; {judged.reason.rstrip('.')}" if judged.reason else ""
    return f"{where}: {outcome} on {on}, largest error {error}{note}."


def sizes(shapes: Mapping[TensorName, Sequence[int]]) -> str:
    """Return inputs with their shapes, the first three."""
    written = [f"{shorten(n, 24)} {dimensions(s)}" for n, s in shapes.items()]
    rest = f" and {len(written) - 3} more" if len(written) > 3 else ""
    return ", ".join(written[:3]) + rest


def _remarks(engines: Engines) -> Iterator[str]:
    timed = [result for result in engines.results if result.latency is not None]
    if timed:
        delivered = engines.row
        shown = timed[-1] if delivered is None or delivered.latency is None else delivered
        latency = shown.latency
        assert latency is not None
        first, second = speed_lines(latency)
        yield from (f"{shown.name}: {first}", second)
    for result in engines.results:
        if result.failure:
            yield f"{result.name} has no result: {result.failure.rstrip('.')}."
        if shows := shows_line(result):
            yield capital(f"{result.name}: {shows}")
        if result.untimed:
            yield f"{result.name} was not timed: {result.untimed.rstrip('.')}."
    override = (engines.worker.tf32_remark,) if engines.worker.tf32_remark else ()
    remarks = (line for r in engines.results if r.proof for line in r.proof.remarks)
    yield from dict.fromkeys(
        f"{n[:1].upper()}{n[1:]}" for n in (*override, *engines.notes, *remarks)
    )


def speed_lines(latency: Latency) -> tuple[str, str]:
    """Return an engine's speed, and what the times measure."""
    return (
        f"{number(latency.median_ms)} ms, 99th percentile {number(latency.p99_ms)} ms; with "
        f"transfers {number(latency.transfer_median_ms)} ms (99th percentile "
        f"{number(latency.transfer_p99_ms)} ms); {number(latency.per_second)} runs per second; "
        f"{size_of(latency.device_bytes)} of GPU memory.",
        f"Times are for one run on the GPU at {sizes(latency.shapes)}, without transfers: median "
        f"and 99th percentile of {count(latency.iterations, 'run')}.",
    )


def _precision(results: Sequence[EngineResult]) -> Table | None:
    rows = [
        (
            shorten(result.name, 24),
            str(result.kept) if result.kept else "",
            share_words(result.proof.node_share),
            share_words(result.proof.time_share),
        )
        for result in results
        if result.proof is not None
    ]
    columns = (
        Column("engine"),
        Column("FP32 requested", "right", minor=True),
        Column("of compute nodes"),
        Column("of layer time"),
    )
    table = Table("Precision of the engines, by their inspector", columns, tuple(rows))
    return table.without_empty_columns() if rows else None


def _table(results: Sequence[EngineResult]) -> Table | None:
    if not results:
        return None
    outputs = max((len(r.verdict.outputs) for r in results if r.verdict is not None), default=0)
    over = f" (errors: the largest of {outputs} outputs)" if outputs > 1 else ""
    rows = [(shorten(r.name, 24), passed_word(r.verdict), r) for r in results]
    return result_table(f"Errors and speed of the engines{over}", "engine", rows)


def passed_word(verdict: Verdict | None) -> str:
    """Return whether an engine passed, for a cell."""
    return "no result" if verdict is None else "yes" if verdict.passed else "no"


def result_table(
    title: str, what: str, rows: Sequence[tuple[str, str, EngineResult | None]]
) -> Table:
    """Return errors and speed of engines.

    Args:
        title: The title.
        what: What a row stands for.
        rows: A name, whether it passed, and the engine, if there is one.
    """
    results = [result for _, _, result in rows if result is not None]
    plain = next((r for r in results if r.name in _LOW and r.latency is not None), None)
    base = plain.latency.median_ms if plain is not None and plain.latency is not None else 0.0
    name = plain.name if plain is not None else ""
    metrics = (heading_of(r.verdict.metric) for r in results if r.verdict and r.verdict.metric)
    figures = ("max error", "mean", "median", next(metrics, ""), "ms", "p99 ms", f"ms ÷ {name}")
    minor = ("mean", "median", "p99 ms", "MiB")
    columns = (
        Column(what),
        Column("passed"),
        *(Column(figure, "right", minor=figure in minor) for figure in (*figures, "MiB")),
    )
    empty = ("",) * (len(figures) + 1)
    cells = (
        (name, passed, *(empty if result is None else _cells(result, base)))
        for name, passed, result in rows
    )
    return Table(title, columns, tuple(cells)).without_empty_columns()


def _cells(result: EngineResult, base: float) -> tuple[str, ...]:
    verdict, latency, file = result.verdict, result.latency, result.build.engine
    errors: tuple[str, ...] = ("", "", "")
    metric, times = "", ("", "", "")
    if verdict is not None:
        measures = ("max_abs", "mean_abs", "median_abs")
        errors = tuple(number(largest(verdict, measure)) for measure in measures)
        metric = "" if verdict.metric is None else "; ".join(values_of(verdict.metric))
    if latency is not None:
        ratio = fixed(latency.median_ms / base, 2) if base else ""
        times = (number(latency.median_ms), number(latency.p99_ms), ratio)
    return (*errors, metric, *times, "" if file is None else mebibytes(file.bytes))


def largest(verdict: Verdict, measure: str) -> float:
    """Return the largest of a measure over all outputs."""
    return max((getattr(error, measure) for error in verdict.outputs.values()), default=0.0)
