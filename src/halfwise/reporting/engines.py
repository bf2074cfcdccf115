"""Engines, built or given: their builds, precision, errors and times; ranges of tensors."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import inf

from halfwise.records import (
    AheadBuild,
    BuildOutcome,
    EngineBuild,
    EngineLayer,
    EngineResult,
    EngineRound,
    Engines,
    EngineTensor,
    GivenEngine,
    Inspection,
    Latency,
    LogFinding,
    NodePrecision,
    Observation,
    Observations,
    Precision,
    PrecisionProof,
    ShapeVerdict,
    TensorName,
    Verdict,
)
from halfwise.reporting.parts import (
    PRECISIONS,
    WORDS,
    Column,
    Lines,
    Report,
    Table,
    first_of,
    known,
    lines_of,
    present,
    say,
    table_of,
)
from halfwise.reporting.plan import (
    cause_line,
    full_name,
    range_text,
    rung_line,
    score_cell,
)
from halfwise.wording import (
    MOST_ROWS,
    alike,
    capital,
    clean,
    count,
    dimensions,
    listed,
    number,
    percent,
    sentence,
    shorten,
    size_of,
    stopped,
)


def inspected(proof: PrecisionProof, engine: str) -> Report:
    """Return the report on an engine by its inspector; `engine` is its name."""
    layers = proof.layers
    kinds = [layer.precision for layer in layers]
    of_layers = {kind: kinds.count(kind) / len(kinds) for kind in dict.fromkeys(kinds)}
    shares = proof.node_share or of_layers
    of = "the nodes" if proof.node_share else "layers"
    return Report(
        title=f"{share_words(shares)} of {of}" if shares else "The engine has no layers",
        passed=False if proof.findings else None,
        about=f"{clean(engine)}; {count(len(layers), 'layer')}",
        parts=present(*proof_parts(proof)),
    )


def proof_parts(proof: PrecisionProof) -> tuple[Lines | Table | None, ...]:
    """Return what an inspector shows: precisions, layers and nodes."""
    return (
        lines_of("Not as requested", proof.findings),
        layer_table(proof.layers),
        node_table(proof.nodes),
        lines_of("Remarks", proof.remarks),
    )


def share_words(shares: Mapping[Precision, float]) -> str:
    """Return shares of precisions, the largest first."""
    ordered = sorted(shares.items(), key=lambda item: -item[1])
    return ", ".join(f"{PRECISIONS[precision]} {percent(share)}" for precision, share in ordered)


def layer_table(layers: Sequence[EngineLayer]) -> Table | None:
    """Return the layers, in the engine's order; None without layers."""
    return table_of(
        "Layers",
        layers,
        [
            (Column("layer"), lambda layer: shorten(layer.name, 34)),
            (Column("type"), lambda layer: shorten(layer.type, 16)),
            (Column("precision"), lambda layer: PRECISIONS[layer.precision]),
        ],
        MOST_ROWS,
    )


def node_table(nodes: Sequence[NodePrecision]) -> Table | None:
    """Return which precision nodes have, those first that should have another; None if unknown."""
    nodes = [node for node in nodes if node.precision != "other" or node.asked is not None]

    def order(group: Sequence[NodePrecision]) -> tuple[bool, int]:
        fine = group[0].asked in (None, group[0].precision) or group[0].precision in _VAGUE
        return fine, -len(group)

    return table_of(
        "Nodes of the model",
        sorted(alike(nodes, lambda node: (node.asked, node.precision)), key=order),
        [
            (Column("asked"), lambda group: PRECISIONS[group[0].asked] if group[0].asked else ""),
            (Column("is"), lambda group: PRECISIONS[group[0].precision]),
            (Column("nodes", "right"), lambda group: str(len(group))),
            (Column("which"), lambda group: listed([n.node for n in group], most=3, width=40)),
        ],
    )


_VAGUE = ("unknown", "other")


def engine_parts(engines: Engines) -> tuple[Lines | Table, ...]:
    """Return the report's parts on the engines of one device."""
    proofs = [(r.name, r.proof) for r in engines.results if r.proof is not None]
    return present(
        Lines("Engines", tuple(made(engines))),
        lines_of("Rungs, most exact first", map(rung_line, engines.rungs)),
        lines_of("What the engines show", (capital(cause_line(cause)) for cause in engines.causes)),
        _rounds(engines.rounds),
        lines_of("Failed builds", first_of([*_failures(engines.builds)], most=MOST_ROWS)),
        lines_of(
            "Shapes of the profiles",
            (f"{r.name}, {line}" for r in engines.results for line in _shapes(r.shapes)),
        ),
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
            ],
        ),
        _table(engines.results),
    )


def made(engines: Engines) -> Iterator[str]:
    """Yield where engines were built, which is delivered, and how sure that is."""
    file, row = engines.delivered, engines.row
    yield sentence(say("engine", "built on", engines.worker, typing=engines.typing))
    if file is None:
        yield WORDS["engine"]["none"]
    else:
        what = f"{count(len(engines.keep), 'node')} in FP32"
        what = full_name(engines.rung) if engines.full else what
        if row is not None:
            level, tf32 = row.build.config.optimization_level, row.build.config.tf32
            what += say("built", "config", level=level, tf32=tf32 and not engines.full)
        facts = {"path": shorten(file.path), "worker": file.side != "here", "what": what}
        size, sha = size_of(file.bytes), file.sha256[:12]
        yield say("engine", "delivered", facts, size=size, sha=sha)
    if spread := engines.spread:
        errors = range_text(min(spread), max(spread))
        facts = {"passed": engines.confirmed, "builds": len(spread)}
        yield say("engine", "confirmed", facts, errors=errors)
    yield from (sentence(f"{capital(WORDS['spared'][kind])}.") for kind in engines.spared)


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


def _failures(builds: Sequence[BuildOutcome]) -> Iterator[str]:
    """Yield why builds gave no engine; those that ended alike share a line."""
    failed = [build for build in builds if build.status != "built"]
    for group in alike(failed, lambda b: (b.message, b.said)):
        first = group[0]
        facts = {
            "numbers": ", ".join(str(build.number) for build in group),
            "purposes": listed([*dict.fromkeys(build.purpose for build in group)], most=2),
            "message": stopped(first.message),
            "said": "" if first.said in first.message else shorten(first.said, 160),
        }
        yield sentence(say("engine", "failed", facts, builds=len(group)))


def _shapes(shapes: Sequence[ShapeVerdict]) -> Iterator[str]:
    """Return how an engine did at the shapes of a profile, a sentence each."""
    return map(shape_line, sorted(shapes, key=lambda shape: shape.verdict is not None))


def shape_line(judged: ShapeVerdict) -> str:
    """Return how an engine did at shapes of a profile, as a sentence."""
    verdict = judged.verdict
    return say(
        "engine",
        "shapes",
        judged,
        sizes=sizes(judged.shapes),
        why=judged.reason.rstrip("."),
        outcome=verdict and ("passed" if verdict.passed else "failed"),
        samples=verdict and verdict.samples,
        error=verdict and largest(verdict, "max_abs"),
    )


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
    for one in engines.results:
        lines = (
            say("engine", "no result", one),
            say("engine", "untimed", one),
        )
        yield from map(stopped, filter(None, lines))
    remarks = (line for r in engines.results if r.proof for line in r.proof.remarks)
    yield from dict.fromkeys(
        map(capital, filter(None, (engines.worker.tf32_remark, *engines.notes, *remarks)))
    )


def speed_lines(latency: Latency) -> tuple[str, str]:
    """Return times of an engine, and what they are of."""
    facts = {"memory": size_of(latency.device_bytes), "sizes": sizes(latency.shapes)}
    return say("engine", "speed", latency, facts), say("engine", "timed", latency, facts)


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
    results = [row.verdict.metric for _, _, row in rows if row is not None and row.verdict]
    names = dict.fromkeys(name for metric in results if metric for name in metric.metrics)

    def of(show: Callable[[EngineResult], str]) -> Callable[[ResultRow], str]:
        return lambda row: "" if row[2] is None else show(row[2])

    def score(name: str) -> Callable[[ResultRow], str]:
        return of(
            lambda r: (
                score_cell(r.verdict.metric.scores, name) if r.verdict and r.verdict.metric else ""
            )
        )

    return table_of(
        title,
        rows,
        [
            (Column(what), lambda row: row[0]),
            (Column("passed"), lambda row: row[1]),
            (
                Column("max error", "right"),
                of(lambda r: number(largest(r.verdict, "max_abs")) if r.verdict else ""),
            ),
            *((Column(shorten(name, 16), "right"), score(name)) for name in names),
            (
                Column("ms", "right"),
                of(lambda r: number(r.latency.median_ms) if r.latency else ""),
            ),
            (
                Column("p99 ms", "right", minor=True),
                of(lambda r: number(r.latency.p99_ms) if r.latency else ""),
            ),
            (
                Column("MiB", "right", minor=True),
                of(lambda r: number(r.build.engine.bytes / 2**20) if r.build.engine else ""),
            ),
        ],
    )


def largest(verdict: Verdict, measure: str) -> float:
    """Return the largest of the outputs' errors, by the name of the measure; 0 without outputs."""
    return max((getattr(error, measure) for error in verdict.outputs.values()), default=0.0)


def built(made: EngineBuild) -> Report:
    """Return the report on a single build: its request, engine, and what the builder said."""
    build, look = made.build, looked_into(made.inspection)
    facts = {"model": made.model, "low": build.config.low or "fp32", "layers": build.layers}
    asked = say("engine", "asked", build.config, facts)
    took = say("engine", "took", build, facts, fused=made.inspection.layers)
    return Report(
        title=look.title,
        passed=False if look.passed is False else None,
        about=look.about,
        parts=present(
            Lines("Build", (sentence(asked), took)),
            *look.parts,
            lines_of(
                "What the builder said",
                first_of([*_said(made.findings)], "more; --json has all", MOST_ROWS),
            ),
        ),
    )


def ahead(made: AheadBuild) -> Report:
    """Return the report on a build ahead of time."""
    names = listed([*map(shorten, made.folded)])
    return Report(
        title=capital(say("engine", "ahead", {"folded": names or None})),
        passed=not made.folded,
        about=say("engine", "ahead of time", {**made.to_dict(), "size": size_of(made.bytes)}),
        parts=present(
            lines_of("What the builder said", first_of(made.warnings, "more", MOST_ROWS))
        ),
    )


def looked_into(inspection: Inspection) -> Report:
    """Return the report on an engine: its inputs and outputs, speed and precision."""
    about, latency = _about(inspection), inspection.latency
    shown = present(
        _tensors(inspection.tensors),
        None if latency is None else lines_of("Speed", speed_lines(latency)),
        lines_of(
            "About this inspection",
            (*inspection.notes, inspection.worker.tf32_remark),
        ),
    )
    if inspection.proof is None:
        return Report(f"{count(inspection.layers, 'layer')}; not inspected", None, about, shown)
    report = inspected(inspection.proof, about)
    return Report(report.title, report.passed, report.about, (*shown, *report.parts))


def given_parts(engine: GivenEngine) -> tuple[Lines | Table, ...]:
    """Return the report's parts on the engine that a user gave."""
    return present(
        lines_of("Engine", (f"{_about(engine)}.", engine.worker.tf32_remark)),
        lines_of("Shapes of the profiles", _shapes(engine.shapes)),
        lines_of("Speed", speed_lines(engine.latency)),
        *(() if engine.proof is None else proof_parts(engine.proof)),
    )


def _about(engine: Inspection | GivenEngine) -> str:
    file, worker = engine.engine, engine.worker
    where = sentence(f"{worker.product} {worker.tensorrt} on {worker.gpu}")
    return f"{clean(file.path)}, {size_of(file.bytes)}, {where}"


def _tensors(tensors: tuple[EngineTensor, ...]) -> Table | None:
    def limits(tensor: EngineTensor, at: str) -> str:
        varies = tensor.shape_tensor or -1 in tensor.shape
        return "; ".join(dimensions(getattr(one, at)) for one in tensor.limits) if varies else ""

    return table_of(
        "Inputs and outputs",
        tensors,
        [
            (Column(""), lambda t: "input" if t.is_input else "output"),
            (Column("name", width=28), lambda t: clean(t.name)),
            (Column("type"), lambda t: t.dtype),
            (
                Column("shape"),
                lambda t: "values" if t.shape_tensor and t.is_input else dimensions(t.shape),
            ),
            (Column("min"), lambda t: limits(t, "min")),
            (Column("opt"), lambda t: limits(t, "opt")),
            (Column("max"), lambda t: limits(t, "max")),
        ],
        MOST_ROWS,
    )


def _said(findings: tuple[LogFinding, ...]) -> Iterator[str]:
    return (say("engine", "said", finding) for finding in findings if finding.severity != "info")


def observed(observations: Observations, limit: float) -> Report:
    """Return the report on ranges: what reaches `limit` or is not finite, the largest first."""
    tensors = [o for o in observations.tensors if o.absmax >= limit or o.nonfinite]
    tensors.sort(key=lambda o: (o.nonfinite > 0, o.absmax), reverse=True)
    ranges = ("sum", "score", "residual", "mean-square")
    inner = [i for i in observations.inner if i.kind in ranges and i.value >= limit]
    inner.sort(key=lambda i: i.value, reverse=True)
    constants = [c for c in observations.constants if c.largest >= limit]
    constants.sort(key=lambda c: c.largest, reverse=True)
    least = min((o.detail.samples for o in tensors if o.detail is not None), default=inf)
    names = observations.samples
    rows: list[_Large] = [
        *((o.producer, o.tensor, o.op, o.absmax, o.worst_sample, o) for o in tensors),
        *((i.node, f"inside: {i.kind}", i.op, i.value, i.worst_sample, None) for i in inner),
        *(("".join(c.consumers[:1]), c.name, "(constant)", c.largest, -1, None) for c in constants),
    ]

    def share(row: _Large, field: str) -> str:
        return percent(getattr(row[5].detail, field)) if row[5] and row[5].detail else ""

    table = table_of(
        "Largest first",
        rows,
        [
            (
                Column("node"),
                lambda row: "(graph input)" if row[0] is None else shorten(row[0], 40),
            ),
            # Exporters name tensors after nodes; the common part would only take up space.
            (Column("tensor"), lambda row: shorten(_without(row[1], row[0] or ""), 24)),
            (Column("op"), lambda row: shorten(row[2], 16)),
            (Column("absmax", "right"), lambda row: number(row[3])),
            (Column("NaN, inf", "right"), lambda row: str((row[5] and row[5].nonfinite) or "")),
            (Column("overflow", "right"), lambda row: share(row, "overflow")),
            (Column("flush", "right"), lambda row: share(row, "flush")),
            (
                Column("worst sample"),
                lambda row: shorten("".join(names[row[4] :][:1]), 20) if row[4] >= 0 else "",
            ),
        ],
    )
    facts = {
        "reach": len(tensors),
        "limit": limit,
        "inner": len(inner),
        "constants": len(constants),
    }
    of = least if least < len(names) else None
    about = say("ranges", "about", observations, facts, of=of)
    return Report(say("ranges", "title", observations, facts), None, about, present(table))


_Large = tuple[str | None, str, str, float, int, Observation | None]
"""Node, tensor, operator, value, sample, and the tensor's observation if it is one's."""


def _without(tensor: str, node: str) -> str:
    return f"…{tensor.removeprefix(node)}" if node and tensor.startswith(node) else tensor
