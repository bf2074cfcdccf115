"""Engines: what was built, what their inspector shows, their errors and times."""

from collections.abc import Callable, Iterator, Mapping, Sequence

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
    table_of,
)
from halfwise.reporting.rungs import (
    cause_line,
    config_words,
    first_line,
    full_name,
    range_text,
    refusal_lines,
    rung_line,
    shows_line,
    spared_line,
)
from halfwise.reporting.verdict import heading_of, values_of
from halfwise.reporting.words import WORDS as ALL_WORDS
from halfwise.reporting.words import say
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
    sentence,
    shorten,
    size_of,
)

WORDS: Mapping[str, str] = ALL_WORDS["precision"]


def inspected(proof: PrecisionProof, engine: str) -> Report:
    """Return the report on an engine by its inspector; `engine` is its name."""
    layers, total = proof.layers, _total(proof.layers)
    kinds = [layer.precision for layer in layers]
    of_layers = {kind: kinds.count(kind) / len(kinds) for kind in dict.fromkeys(kinds)}
    shares = proof.time_share or proof.node_share or of_layers
    of = "the time" if proof.time_share else "the nodes" if proof.node_share else "layers"
    timed = f"; {number(total)} ms in all of them" if total else ""
    return Report(
        title=f"{share_words(shares)} of {of}" if shares else "The engine has no layers",
        passed=False if proof.findings else None,
        about=f"{clean(engine)}; {count(len(layers), 'layer')}{timed}",
        parts=present(*proof_parts(proof)),
    )


def proof_parts(proof: PrecisionProof) -> tuple[Lines | Table | None, ...]:
    """Return what an inspector shows: precisions, layers and nodes."""
    return (
        lines_of("Not as requested", proof.findings),
        share_table(proof),
        layer_table(proof.layers),
        node_table(proof.nodes),
        lines_of("Remarks", proof.remarks),
    )


def share_words(shares: Mapping[Precision, float]) -> str:
    """Return shares of precisions, the largest first."""
    ordered = sorted(shares.items(), key=lambda item: -item[1])
    return ", ".join(f"{WORDS[precision]} {percent(share)}" for precision, share in ordered)


def share_table(proof: PrecisionProof) -> Table | None:
    """Return the precisions of layers, nodes and time; None without layers."""
    kinds = [layer.precision for layer in proof.layers]
    some = {*kinds, *proof.node_share, *proof.time_share}
    rows: list[Precision] = [kind for kind in WORDS if kind in some]
    return table_of(
        "Precision",
        rows,
        [
            (Column("precision"), lambda kind: WORDS[kind]),
            (Column("layers", "right"), lambda kind: str(kinds.count(kind))),
            (
                Column("of compute nodes", "right"),
                lambda k: known(proof.node_share.get(k), percent),
            ),
            (Column("of time", "right"), lambda k: known(proof.time_share.get(k), percent)),
        ],
    )


def layer_table(layers: Sequence[EngineLayer]) -> Table | None:
    """Return the layers, the longest first; None without layers."""
    total = _total(layers)
    return table_of(
        "Layers, longest first" if total else "Layers",
        sorted(layers, key=lambda layer: -(layer.milliseconds or 0.0)),
        [
            (Column("layer"), lambda layer: shorten(layer.name, 34)),
            (Column("type"), lambda layer: shorten(layer.type, 16)),
            (Column("reads → gives"), lambda layer: shorten(types_of(layer), 24)),
            (Column("precision"), lambda layer: WORDS[layer.precision]),
            (Column("ms", "right"), lambda layer: known(layer.milliseconds)),
            (
                Column("of time", "right"),
                lambda layer: percent(layer.milliseconds / total) if layer.milliseconds else "",
            ),
        ],
        MOST_ROWS,
    )


def types_of(layer: EngineLayer) -> str:
    """Return the types that a layer reads and gives; "" if none is known."""
    sides = [", ".join(dict.fromkeys(filter(None, side))) for side in (layer.inputs, layer.outputs)]
    return " → ".join(side or "?" for side in sides) if any(sides) else ""


def node_table(nodes: Sequence[NodePrecision]) -> Table | None:
    """Return which precision nodes have, those first that should have another; None if unknown."""
    groups: dict[tuple[Precision | None, Precision], list[NodeName]] = {}
    for node in nodes:
        if node.precision != "other" or node.asked is not None:
            groups.setdefault((node.asked, node.precision), []).append(node.node)

    def order(group: tuple[tuple[Precision | None, Precision], list[NodeName]]) -> tuple[bool, int]:
        (asked, precision), names = group
        return asked is None or precision in (asked, "unknown", "other"), -len(names)

    return table_of(
        "Nodes of the model",
        sorted(groups.items(), key=order),
        [
            (Column("asked"), lambda group: WORDS[group[0][0]] if group[0][0] else ""),
            (Column("is"), lambda group: WORDS[group[0][1]]),
            (Column("nodes", "right"), lambda group: str(len(group[1]))),
            (Column("which"), lambda group: listed(group[1], most=3, width=40)),
        ],
    )


def _total(layers: Sequence[EngineLayer]) -> float:
    return sum(layer.milliseconds or 0.0 for layer in layers)


_LOW = ("FP16", "BF16")
"""Names of engines with nothing kept, which others are timed against."""


def engine_parts(engines: Engines) -> tuple[Lines | Table, ...]:
    """Return the report's parts on the engines of one device."""
    proofs = [(r.name, r.proof) for r in engines.results if r.proof is not None]
    refused = {refusal.build for refusal in engines.refusals}
    failed = [b for b in engines.builds if b.status != "built" and b.number not in refused]
    return present(
        Lines("Engines", tuple(made(engines))),
        lines_of("Rungs, most exact first", map(rung_line, engines.rungs)),
        lines_of("What the engines show", (capital(cause_line(cause)) for cause in engines.causes)),
        _rounds(engines.rounds),
        lines_of("What the builder refused", refusal_lines(engines.refusals, engines.builds)),
        lines_of("Failed builds", first_of([*map(_failure, failed)], most=MOST_ROWS)),
        lines_of("Shapes of the profiles", _shapes(engines.results)),
        lines_of(
            "Not as requested", (f"{name}: {one}" for name, p in proofs for one in p.findings)
        ),
        lines_of("About the engines", _remarks(engines)),
        table_of(
            "Precision of the engines, by their inspector",
            proofs,
            [
                (Column("engine"), lambda proof: shorten(proof[0], 24)),
                (Column("of compute nodes"), lambda proof: share_words(proof[1].node_share)),
                (Column("of layer time"), lambda proof: share_words(proof[1].time_share)),
            ],
        ),
        _table(engines.results),
    )


def made(engines: Engines) -> Iterator[str]:
    """Yield where engines were built, which is delivered, and how sure that is."""
    worker, file, row = engines.worker, engines.delivered, engines.row
    yield sentence(say("engine", "built on", {**dict(worker), "typing": engines.typing}))
    if file is None:
        yield say("engine", "none", {"judged": engines.rung is not None})
    else:
        what = (
            full_name(engines.rung)
            if engines.full
            else f"{count(len(engines.keep), 'node')} in FP32"
        )
        what += "" if row is None else config_words(row.build.config, full=engines.full)
        facts = {"path": shorten(file.path), "worker": file.side != "here", "what": what}
        yield say(
            "engine", "delivered", {**facts, "size": size_of(file.bytes), "sha": file.sha256[:12]}
        )
    if first := first_line(engines):
        yield sentence(f"{capital(first)}.")
    if spread := engines.spread:
        errors = range_text(min(spread), max(spread))
        facts = {"passed": engines.confirmed, "builds": len(spread), "errors": errors}
        yield say("engine", "confirmed", facts)
    yield from (sentence(f"{capital(spared_line(s))}.") for s in engines.spared)
    if (emulated := engines.emulated) is not None and emulated.outputs:
        facts = {"passed": emulated.within, "error": largest(emulated, "max_abs")}
        yield say("engine", "emulated", facts)


def _rounds(rounds: Sequence[EngineRound]) -> Table | None:
    return table_of(
        "Rounds (error over what is allowed: 1 just passes)",
        rounds,
        [
            (Column("build", "right"), lambda r: str(r.build)),
            (Column("what was tried", width=40), lambda r: clean(r.step)),
            (Column("kept", "right", minor=True), lambda r: str(len(r.keep))),
            (Column("emulated", "right", minor=True), lambda r: known(r.predicted)),
            (Column("engine", "right"), lambda r: known(r.measured) or "no result"),
            (Column("ms", "right"), lambda r: known(r.median_ms)),
            (Column("passed"), lambda r: "yes" if r.passed else "no"),
        ],
        MOST_ROWS,
    )


def _failure(build: BuildOutcome) -> str:
    last = next((line.strip() for line in reversed(build.log) if line.strip()), "")
    facts = {
        **dict(build),
        "how": ALL_WORDS["build"][build.status],
        "ran": build.status != "skipped",
        "said": build.message.strip().rstrip("."),
        "last": "" if last in build.message else shorten(last, 160),
    }
    return sentence(say("engine", "failed", facts.items()))


def _shapes(results: Sequence[EngineResult]) -> Iterator[str]:
    for result in results:
        for judged in sorted(result.shapes, key=lambda s: s.verdict is not None):
            yield f"{result.name}, {shape_line(judged)}"


def shape_line(judged: ShapeVerdict) -> str:
    """Return how an engine did at the shapes of a profile, as a sentence."""
    facts: dict[str, object] = {"at": judged.at, "sizes": sizes(judged.shapes)}
    facts |= {"why": judged.reason.rstrip(".") or None}
    if (verdict := judged.verdict) is not None:
        facts |= {
            "outcome": "passed" if verdict.passed else "failed",
            "samples": len(verdict.samples),
        }
        facts |= {"error": largest(verdict, "max_abs")}
    return say("engine", "shapes", facts)


def sizes(shapes: Mapping[TensorName, Sequence[int]]) -> str:
    """Return the shapes of inputs; of more than three, how many more."""
    written = [f"{shorten(n, 24)} {dimensions(s)}" for n, s in shapes.items()]
    rest = f" and {len(written) - 3} more" if len(written) > 3 else ""
    return ", ".join(written[:3]) + rest


def _remarks(engines: Engines) -> Iterator[str]:
    """Yield what else is known of results, without saying anything twice."""
    timed = [result for result in engines.results if result.latency is not None]
    shown = engines.row if engines.row in timed else timed[-1] if timed else None
    if shown is not None and shown.latency is not None:
        first, second = speed_lines(shown.latency)
        yield from (f"{shown.name}: {first}", second)
    for result in engines.results:
        if result.failure:
            yield f"{result.name} has no result: {result.failure.rstrip('.')}."
        if shows := shows_line(result):
            yield capital(f"{result.name}: {shows}")
        if result.untimed:
            yield f"{result.name} was not timed: {result.untimed.rstrip('.')}."
        if (beside := result.ratio) is not None:
            yield say("engine", "ratio", {**dict(beside), "name": result.name})
    remarks = (line for r in engines.results if r.proof for line in r.proof.remarks)
    yield from dict.fromkeys(
        map(capital, filter(None, (engines.worker.tf32_remark, *engines.notes, *remarks)))
    )


def speed_lines(latency: Latency) -> tuple[str, str]:
    """Return times of an engine, and what they are of."""
    facts = {
        **dict(latency),
        "memory": size_of(latency.device_bytes),
        "sizes": sizes(latency.shapes),
    }
    return say("engine", "speed", facts), say("engine", "timed", facts)


def _table(results: Sequence[EngineResult]) -> Table | None:
    if not results:
        return None
    outputs = max((len(r.verdict.outputs) for r in results if r.verdict is not None), default=0)
    over = f" (errors: the largest of {outputs} outputs)" if outputs > 1 else ""
    rows = [(shorten(r.name, 24), passed_word(r.verdict), r) for r in results]
    return result_table(f"Errors and speed of the engines{over}", "engine", rows)


def passed_word(verdict: Verdict | None) -> str:
    """Return whether an engine passed, for a table."""
    return "no result" if verdict is None else "yes" if verdict.passed else "no"


ResultRow = tuple[str, str, EngineResult | None]


def result_table(title: str, what: str, rows: Sequence[ResultRow]) -> Table | None:
    """Return errors and times of engines, side by side.

    Args:
        title: The table's title.
        what: Title of the first column.
        rows: Name, whether it passed, and the engine if there is one.
    """
    results = [result for _, _, result in rows if result is not None]
    plain = next((r for r in results if r.name in _LOW and r.latency is not None), None)
    base = plain.latency.median_ms if plain is not None and plain.latency is not None else 0.0
    metrics = (heading_of(r.verdict.metric) for r in results if r.verdict and r.verdict.metric)

    def error(measure: str) -> Callable[[ResultRow], str]:
        return lambda row: (
            number(largest(row[2].verdict, measure)) if row[2] and row[2].verdict else ""
        )

    def time(field: str) -> Callable[[ResultRow], str]:
        return lambda row: (
            number(getattr(row[2].latency, field)) if row[2] and row[2].latency else ""
        )

    def metric(row: ResultRow) -> str:
        verdict = None if row[2] is None else row[2].verdict
        return "; ".join(values_of(verdict.metric)) if verdict and verdict.metric else ""

    def over(row: ResultRow) -> str:
        latency = None if row[2] is None else row[2].latency
        return fixed(latency.median_ms / base, 2) if latency is not None and base else ""

    def size(row: ResultRow) -> str:
        return mebibytes(row[2].build.engine.bytes) if row[2] and row[2].build.engine else ""

    return table_of(
        title,
        rows,
        [
            (Column(what), lambda row: row[0]),
            (Column("passed"), lambda row: row[1]),
            (Column("max error", "right"), error("max_abs")),
            (Column("mean", "right", minor=True), error("mean_abs")),
            (Column(next(metrics, ""), "right"), metric),
            (Column("ms", "right"), time("median_ms")),
            (Column("p99 ms", "right", minor=True), time("p99_ms")),
            (Column(f"ms ÷ {plain.name if plain else ''}", "right"), over),
            (Column("MiB", "right", minor=True), size),
        ],
    )


def largest(verdict: Verdict, measure: str) -> float:
    """Return the largest of the outputs' errors, by the name of the measure; 0 without outputs."""
    return max((getattr(error, measure) for error in verdict.outputs.values()), default=0.0)
