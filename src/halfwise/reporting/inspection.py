"""Engines that were inspected, built or judged again, and tensors that were observed."""

from collections.abc import Iterator, Sequence

from halfwise.records import (
    AdjustedConstant,
    EngineBuild,
    EngineFile,
    EngineTensor,
    GivenEngine,
    InnerObservation,
    Inspection,
    LogFinding,
    Observation,
    Observations,
    WorkerInfo,
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
)
from halfwise.wording import (
    MOST_ROWS,
    clean,
    count,
    dimensions,
    listed,
    number,
    percent,
    sentence,
    shorten,
    size_of,
)


def built(made: EngineBuild) -> Report:
    """Return the report on an engine that was built as requested."""
    build, config = made.build, made.build.config
    assert build.engine is not None
    lowest = config.low.upper() if config.low else "FP32"
    request = f"weak typing, down to {lowest}" if config.typing == "weak" else "strong typing"
    request += f", {count(len(config.keep), 'node')} constrained to FP32" if config.keep else ""
    request += f", TF32 {'on' if config.tf32 else 'off'}"
    look = looked_into(made.inspection)
    layers = f"{count(len(build.layers), 'layer')}, {made.inspection.layers} after fusion"
    lines = (
        sentence(f"{made.model}: {request}."),
        f"Built in {number(build.seconds)} s: {layers}.",
    )
    parts = (
        Lines("Build", lines),
        *look.parts,
        lines_of("Constraints without a layer", made.unmatched),
        lines_of(
            "What the builder said",
            first_of(list(_said(made.findings)), "more; --json has all", MOST_ROWS),
        ),
    )
    return Report(
        title=look.title,
        passed=False if look.passed is False else None,
        about=look.about,
        parts=present(*parts),
    )


def looked_into(inspection: Inspection) -> Report:
    """Return the report on an engine: its inputs and outputs, precision and speed."""
    about = f"{_file(inspection.engine)}, {_where(inspection.worker)}"
    head = (
        _tensors(inspection.tensors),
        lines_of("Speed", () if inspection.latency is None else speed_lines(inspection.latency)),
        lines_of("About this inspection", (*inspection.notes, *_override(inspection.worker))),
    )
    shown = present(*head)
    if inspection.proof is None:
        return Report(f"{count(inspection.layers, 'layer')}; not inspected", None, about, shown)
    report = inspected(inspection.proof, about)
    return Report(report.title, report.passed, report.about, (*shown, *report.parts))


def _override(worker: WorkerInfo) -> tuple[str, ...]:
    return (worker.tf32_remark,) if worker.tf32_remark else ()


def given_parts(engine: GivenEngine) -> tuple[Lines | Table, ...]:
    """Return the parts of a verdict on the user's own engine, in reading order."""
    shapes = sorted(engine.shapes, key=lambda s: s.verdict is not None)
    parts = (
        Lines(
            "Engine",
            (f"{_file(engine.engine)}, {_where(engine.worker)}.", *_override(engine.worker)),
        ),
        lines_of("Shapes of the profiles", map(shape_line, shapes)),
        lines_of("Speed", speed_lines(engine.latency)),
        *(() if engine.proof is None else proof_parts(engine.proof)),
    )
    return present(*parts)


def _file(engine: EngineFile) -> str:
    return f"{clean(engine.path)}, {size_of(engine.bytes)}"


def _where(worker: WorkerInfo) -> str:
    return sentence(f"TensorRT {worker.tensorrt} on {worker.gpu}")


def _tensors(tensors: tuple[EngineTensor, ...]) -> Table | None:
    rows: list[tuple[str, ...]] = [
        (
            "input" if tensor.is_input else "output",
            clean(tensor.name),
            tensor.dtype,
            "values" if tensor.shape_tensor and tensor.is_input else dimensions(tensor.shape),
            *_limits(tensor),
        )
        for tensor in tensors
    ]
    titles = ("type", "shape", "min", "opt", "max")
    columns = (Column(""), Column("name", width=28), *map(Column, titles))
    table = Table("Inputs and outputs", columns, tuple(rows), most=MOST_ROWS)
    return table.without_empty_columns() if rows else None


def _limits(tensor: EngineTensor) -> tuple[str, str, str]:
    """Return min, opt and max, several profiles side by side; empty for a fixed shape."""
    limits = tensor.limits
    if not tensor.shape_tensor and -1 not in tensor.shape:
        return "", "", ""
    low, opt, high = (
        [dimensions(getattr(one, at)) for one in limits] for at in ("min", "opt", "max")
    )
    return "; ".join(low), "; ".join(opt), "; ".join(high)


def _said(findings: tuple[LogFinding, ...]) -> Iterator[str]:
    for finding in findings:
        if finding.severity != "info":
            nodes = f" At {listed(finding.nodes)}." if finding.nodes else ""
            yield f"{finding.severity}: {finding.sentence}{nodes} {finding.hint}".strip()


def observed(observations: Observations, limit: float) -> Report:
    """Return what reaches `limit`, largest first: tensors (also non-finite ones), insides of ops.

    Constants are listed if the low format cannot hold them.
    """
    tensors = [o for o in observations.tensors if o.absmax >= limit or o.nonfinite]
    tensors.sort(key=lambda o: (o.nonfinite > 0, o.absmax), reverse=True)
    inner = [i for i in observations.inner if i.kind in ("square", "sum") and i.value >= limit]
    inner.sort(key=lambda i: i.value, reverse=True)
    constants = [c for c in observations.constants if _largest(c) >= limit]
    constants.sort(key=_largest, reverse=True)
    rows = [_tensor_row(o, observations.samples) for o in tensors]
    rows += [_inner_row(i, observations.samples) for i in inner]
    rows += map(_constant_row, constants)
    figures = ("absmax", "NaN, inf", "overflow", "flush")
    columns = (
        *map(Column, ("node", "tensor", "op")),
        *(Column(figure, "right") for figure in figures),
        Column("worst sample"),
    )
    title = (
        f"{len(tensors)} of {count(len(observations.tensors), 'tensor')} reach {number(limit)} "
        "or hold NaN or infinite values"
    )
    about = (
        f"{count(len(observations.samples), 'sample')}; squares or sums inside ops that reach it: "
        f"{len(inner)}; constants beyond the low format's range: {len(constants)}"
    )
    shares = [o.detail.samples for o in tensors if o.detail is not None]
    if shares and min(shares) < len(observations.samples):
        about += (
            f"; overflow and flush are shares of the elements of {count(min(shares), 'sample')}"
        )
    table = Table("Largest first", columns, tuple(rows)).without_empty_columns() if rows else None
    return Report(title, None, about, present(table))


def _tensor_row(seen: Observation, samples: Sequence[str]) -> tuple[str, ...]:
    node, detail = seen.producer, seen.detail
    name = str(seen.tensor)
    if node is not None and name.startswith(node):
        # Exporters name tensors after nodes; the common part would only take up space.
        name = "…" + name.removeprefix(node)
    return (
        "(graph input)" if node is None else shorten(node, 40),
        shorten(name, 24),
        shorten(seen.op, 16),
        number(seen.absmax),
        str(seen.nonfinite) if seen.nonfinite else "",
        percent(detail.overflow) if detail else "",
        percent(detail.flush) if detail else "",
        _sample(seen.worst_sample, samples),
    )


def _inner_row(seen: InnerObservation, samples: Sequence[str]) -> tuple[str, ...]:
    return (
        shorten(seen.node, 40),
        f"inside: {seen.kind}",
        shorten(seen.op, 16),
        number(seen.value),
        "",
        "",
        "",
        _sample(seen.worst_sample, samples),
    )


def _constant_row(constant: AdjustedConstant) -> tuple[str, ...]:
    readers = constant.consumers
    return (
        shorten(readers[0], 40) if readers else "",
        shorten(constant.name, 24),
        "(constant)",
        number(_largest(constant)),
        "",
        "",
        "",
        "",
    )


def _largest(constant: AdjustedConstant) -> float:
    return max(-constant.minimum, constant.maximum)


def _sample(index: int, samples: Sequence[str]) -> str:
    return shorten(samples[index], 20) if 0 <= index < len(samples) else ""
