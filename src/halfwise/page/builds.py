"""The builds: what emulation predicted for each engine, its results, and its builder's messages."""

from collections.abc import Iterator, Sequence

from halfwise.page.data import Data
from halfwise.page.plans import passes
from halfwise.records import BuildOutcome, Engines, LogFinding
from halfwise.reporting.rungs import move_line

LOG = ("severity", "what it means", "what to do", "at", "times", "builds")
"""Columns of `log_rows`."""


def build_rows(engines: Engines, factor: float) -> Iterator[Data]:
    """Yield each build with a prediction by emulation or a measurement.

    Errors are relative to the allowed error: `told` holds those that emulations predict, `least` to
    `most` is the range that low precision explains, `measured` is the engine's.

    Args:
        engines: The engines of one device.
        factor: Share of the tolerance that the search may use; the records' errors are relative
            to it.
    """
    rounds = {made.build: made for made in engines.rounds}
    results = {row.build.number: row for row in engines.results}
    for build in sorted({*rounds, *results}):
        made, row = rounds.get(build), results.get(build)
        excess = row.excess if row is not None else None
        band = (made and made.band) or (row and row.band) or None
        told = () if made is None else (made.predicted, made.predicted_fused)
        measured = made.measured if made is not None and excess is None else excess
        if (band, measured) == (None, None) and all(error is None for error in told):
            continue
        what = "" if made is None else made.step if made.move is None else move_line(made.move)
        latency = None if row is None else row.latency
        yield {
            "build": build,
            "what": what or ("" if row is None else row.name),
            "kept": len(made.keep) if made is not None else row.kept if row is not None else 0,
            "told": sorted({error * factor for error in told if error is not None}),
            "least": None if band is None else band.least * factor,
            "most": None if band is None else band.most * factor,
            "measured": None if measured is None else measured * factor,
            "ms": latency.median_ms if latency else made.median_ms if made else None,
            "fails": not passes(made, row),
            "delivered": row is not None and row is engines.row,
        }


def log_rows(builds: Sequence[BuildOutcome]) -> list[list[Data]]:
    """Return the builder's messages, most severe first; each finding once, with its builds.

    Messages of one kind that differ only in their figures are one finding.
    """
    if not any(build.log for build in builds):
        return []
    from halfwise.tensorrt.log import explain  # noqa: PLC0415 (slow, and few runs have logs)

    found: dict[tuple[str, str], list[tuple[int, LogFinding]]] = {}
    for build in builds:
        for finding in explain(build.log):
            what = finding.sentence if finding.kind == "unknown" else finding.kind
            found.setdefault((finding.severity, what), []).append((build.number, finding))
    order = ("error", "warning", "info")
    rows = sorted(found.items(), key=lambda item: order.index(item[0][0]))
    return [[severity, *_told(told)] for (severity, _), told in rows]


def _told(told: Sequence[tuple[int, LogFinding]]) -> Iterator[Data]:
    findings = [finding for _, finding in told]
    first = findings[0]
    differs = len({finding.sentence for finding in findings}) > 1
    yield f"{first.sentence}{' The figures of other builds differ.' if differs else ''}"
    yield first.hint
    yield list(dict.fromkeys(node for finding in findings for node in finding.nodes))
    yield sum(finding.count for finding in findings)
    yield ", ".join(str(number) for number, _ in told)
