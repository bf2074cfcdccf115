"""Reports on engines that were built or given, and on the ranges of a model's tensors."""

from collections.abc import Iterator, Sequence

from halfwise.records import (
    AdjustedConstant,
    EngineBuild,
    EngineTensor,
    GivenEngine,
    InnerObservation,
    Inspection,
    LogFinding,
    Observation,
    Observations,
)
from halfwise.reporting.engines import inspected, proof_parts, shape_line, speed_lines
from halfwise.reporting.parts import (
    Column,
    Lines,
    Report,
    Table,
    first_of,
    lines_of,
    present,
    table_of,
)
from halfwise.reporting.words import say
from halfwise.wording import (
    MOST_ROWS,
    clean,
    count,
    dimensions,
    number,
    percent,
    sentence,
    shorten,
    size_of,
)


def built(made: EngineBuild) -> Report:
    """Return the report on a single build: its request, engine, and what the builder said."""
    build, look = made.build, looked_into(made.inspection)
    facts = {
        **dict(build.config),
        "model": made.model,
        "low": build.config.low or "fp32",
        "keep": len(build.config.keep) or None,
        "seconds": build.seconds,
        "layers": len(build.layers),
        "fused": made.inspection.layers,
    }
    return Report(
        title=look.title,
        passed=False if look.passed is False else None,
        about=look.about,
        parts=present(
            Lines("Build", (sentence(say("engine", "asked", facts)), say("engine", "took", facts))),
            *look.parts,
            lines_of("Constraints without a layer", made.unmatched),
            lines_of(
                "What the builder said",
                first_of([*_said(made.findings)], "more; --json has all", MOST_ROWS),
            ),
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
            (*inspection.notes, *filter(None, [inspection.worker.tf32_remark])),
        ),
    )
    if inspection.proof is None:
        return Report(f"{count(inspection.layers, 'layer')}; not inspected", None, about, shown)
    report = inspected(inspection.proof, about)
    return Report(report.title, report.passed, report.about, (*shown, *report.parts))


def given_parts(engine: GivenEngine) -> tuple[Lines | Table, ...]:
    """Return the report's parts on the engine that a user gave."""
    shapes = sorted(engine.shapes, key=lambda s: s.verdict is not None)
    return present(
        Lines("Engine", (f"{_about(engine)}.", *filter(None, [engine.worker.tf32_remark]))),
        lines_of("Shapes of the profiles", map(shape_line, shapes)),
        lines_of("Speed", speed_lines(engine.latency)),
        *(() if engine.proof is None else proof_parts(engine.proof)),
    )


def _about(engine: Inspection | GivenEngine) -> str:
    file, worker = engine.engine, engine.worker
    where = sentence(f"TensorRT {worker.tensorrt} on {worker.gpu}")
    return f"{clean(file.path)}, {size_of(file.bytes)}, {where}"


def _tensors(tensors: tuple[EngineTensor, ...]) -> Table | None:
    def shape(tensor: EngineTensor) -> str:
        values = tensor.shape_tensor and tensor.is_input
        return "values" if values else dimensions(tensor.shape)

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
            (Column("shape"), shape),
            (Column("min"), lambda t: limits(t, "min")),
            (Column("opt"), lambda t: limits(t, "opt")),
            (Column("max"), lambda t: limits(t, "max")),
        ],
        MOST_ROWS,
    )


def _said(findings: tuple[LogFinding, ...]) -> Iterator[str]:
    for finding in findings:
        if finding.severity != "info":
            yield say("engine", "said", finding)


def observed(observations: Observations, limit: float) -> Report:
    """Return the report on ranges: what reaches `limit` or is not finite, the largest first."""
    tensors = [o for o in observations.tensors if o.absmax >= limit or o.nonfinite]
    tensors.sort(key=lambda o: (o.nonfinite > 0, o.absmax), reverse=True)
    inner = [i for i in observations.inner if i.kind in ("square", "sum") and i.value >= limit]
    inner.sort(key=lambda i: i.value, reverse=True)
    constants = [c for c in observations.constants if _largest(c) >= limit]
    constants.sort(key=_largest, reverse=True)
    shares = [o.detail.samples for o in tensors if o.detail is not None]
    facts = {
        "reach": len(tensors),
        "tensors": len(observations.tensors),
        "limit": limit,
        "samples": len(observations.samples),
        "inner": len(inner),
        "constants": len(constants),
        "of": min(shares) if shares and min(shares) < len(observations.samples) else None,
    }
    seen = observations.samples
    rows = [
        *(_row(o.producer, o.tensor, o.op, o.absmax, _sample(o, seen), o) for o in tensors),
        *(_row(i.node, f"inside: {i.kind}", i.op, i.value, _sample(i, seen)) for i in inner),
        *(
            _row(c.consumers[0] if c.consumers else "", c.name, "(constant)", _largest(c), "")
            for c in constants
        ),
    ]
    columns = (
        *map(Column, ("node", "tensor", "op")),
        *(Column(figure, "right") for figure in ("absmax", "NaN, inf", "overflow", "flush")),
        Column("worst sample"),
    )
    table = Table("Largest first", columns, tuple(rows)).without_empty_columns() if rows else None
    about = say("ranges", "about", facts)
    return Report(say("ranges", "title", facts), None, about, present(table))


def _row(
    node: str | None,
    tensor: str,
    op: str,
    value: float,
    sample: str,
    seen: Observation | None = None,
) -> tuple[str, ...]:
    detail = None if seen is None else seen.detail
    if node and tensor.startswith(node):
        # Exporters name tensors after nodes; the common part would only take up space.
        tensor = "…" + tensor.removeprefix(node)
    return (
        "(graph input)" if node is None else shorten(node, 40),
        shorten(tensor, 24),
        shorten(op, 16),
        number(value),
        str(seen.nonfinite) if seen is not None and seen.nonfinite else "",
        percent(detail.overflow) if detail else "",
        percent(detail.flush) if detail else "",
        sample,
    )


def _largest(constant: AdjustedConstant) -> float:
    return max(-constant.minimum, constant.maximum)


def _sample(seen: Observation | InnerObservation, samples: Sequence[str]) -> str:
    index = seen.worst_sample
    return shorten(samples[index], 20) if 0 <= index < len(samples) else ""
