"""Turn a run's results on several devices into parts of its report."""

from collections.abc import Iterator, Sequence

from halfwise.records import EngineResult, EngineRung, Engines
from halfwise.reporting.engines import engine_parts, largest, made
from halfwise.reporting.parts import Column, Lines, Table, lines_of, present
from halfwise.reporting.rungs import cause_line, rung_line, rung_name
from halfwise.reporting.tasks import heading_of, values_of
from halfwise.wording import number, sentence, shorten


def device_parts(devices: Sequence[Engines]) -> tuple[Lines | Table, ...]:
    """Return the report's parts on engines: everything for one device, or several side by side."""
    if len(devices) < 2:
        return tuple(part for engines in devices for part in engine_parts(engines))
    return present(*(_told(engines) for engines in devices), _table(devices))


def _told(engines: Engines) -> Lines | None:
    return lines_of(f"On {engines.worker.name}", _lines(engines))


def _lines(engines: Engines) -> Iterator[str]:
    yield from made(engines)
    if engines.shares:
        yield f"Of the same kind as {engines.shares}: both built for one another."
    if engines.lost:
        yield f"Lost before its engine was judged: {engines.lost}"
    yield from map(rung_line, engines.rungs)
    yield from (f"{sentence(cause_line(cause))}" for cause in engines.causes)


def _table(devices: Sequence[Engines]) -> Table:
    rows = [_row(engines) for engines in devices]
    metrics = (r.verdict.metric for e in devices for r in e.results if r.verdict is not None)
    metric = next((heading_of(found) for found in metrics if found is not None), "")
    figures = ("max error", metric, "ms", "FP32 nodes")
    columns = (
        Column("device"),
        Column("passed"),
        Column("rung"),
        *(Column(figure, "right") for figure in figures),
        Column("engine"),
    )
    title = "One plan on each device, on held-out samples"
    return Table(title, columns, tuple(rows)).without_empty_columns()


def _row(engines: Engines) -> tuple[str, ...]:
    name = shorten(engines.worker.name, 20)
    if engines.lost:
        return (name, "lost", *[""] * 6)
    row = shown_row(engines)
    verdict = engines.verdict
    passed = "no result" if verdict is None else "yes" if verdict.passed else "no"
    if row is None or row.verdict is None:
        return (name, passed, *[""] * 6)
    metric = "" if row.verdict.metric is None else "; ".join(values_of(row.verdict.metric))
    rung: EngineRung | None = row.rung
    return (
        name,
        passed,
        "" if rung is None else rung_name(rung),
        number(largest(row.verdict, "max_abs")),
        metric,
        "" if row.latency is None else number(row.latency.median_ms),
        str(row.kept),
        "" if engines.delivered is None else shorten(engines.delivered.path),
    )


def shown_row(engines: Engines) -> EngineResult | None:
    """Return the row of the delivered engine, else of the last that ran; None if there is none."""
    ran = [row for row in engines.results if row.verdict is not None]
    return engines.row or (ran[-1] if ran else None)
