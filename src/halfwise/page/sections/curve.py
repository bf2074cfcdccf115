"""The cost and results of every plan, and the classic rows below."""

from collections.abc import Iterator, Sequence

from halfwise.metrics import AUTO, rises, usual
from halfwise.page.classic import EMULATED, REFERENCE, Classic, classic_rows
from halfwise.page.columns import front_coded
from halfwise.page.data import Data
from halfwise.page.plans import Names, groups
from halfwise.page.section import Section
from halfwise.page.stored import Stored
from halfwise.records import Criterion, Run
from halfwise.reporting.verdict import allowed
from halfwise.wording import ratio, size_of


def curve(stored: Stored) -> Section | None:
    """Return the section of the plans and of each precision; None if nothing was judged."""
    run, names = stored.run, Names()
    found, rows = list(groups(run, names)), classic_rows(run)
    if not found and not rows:
        return None
    compared = any(group["kind"] != "full" for group in found)
    over = (run.curve and run.curve.criterion) or run.criterion
    plans: Data = {
        "groups": found,
        "names": front_coded(names.all()),
        "metrics": list(_metrics(run)),
        "allowed": allowed(over),
        "loss": None if over.metric is None else _lost(over),
        "low": "" if run.plan is None else run.plan.low.upper(),
    }
    return Section(
        "curve",
        "What precision costs",
        {"plans": plans if compared else None, "classic": _classic(rows)},
        scripts=("columns", "scatter"),
        libraries=("uplot",),
    )


def _lost(criterion: Criterion) -> Data:
    """Return what decides if a metric does: errors are 1 plus its loss beyond `allowed`."""
    whose = "loss of the metrics / allowed" if criterion.metric == AUTO else None
    return {
        "title": whose or f"loss of {criterion.metric}",
        "allowed": criterion.metric_drop,
    }


def _metrics(run: Run) -> Iterator[Data]:
    """Yield the task metrics of plans, with their better direction and required value."""
    if run.curve is None:
        return
    required: dict[str, float] = {}
    for score in run.curve.reference:
        required[score.metric] = max(score.required, required.get(score.metric, score.required))
    for name, limit in required.items():
        yield {"name": name, "falls": rises(name), "required": usual(name, limit)}


_SMALLER = {"mean error": "mean_abs", "median error": "median_abs"}
_MINOR = ("known from", "kept", "p99 ms", "size", "GPU memory", *_SMALLER)
"""Columns that are left to wide screens."""
_TIMES = {"ms": "median_ms", "p99 ms": "p99_ms"}


def _classic(rows: Sequence[Classic]) -> Data:
    """Return the table of the rows, without empty columns."""
    metrics = list(dict.fromkeys(name for row in rows for name in row.metrics))
    titles = ["model", "known from", "passed", "kept", *metrics, "max error", "cost", *_TIMES]
    titles += ["size", "GPU memory", *_SMALLER]
    cells = [[*_cells(row, metrics)] for row in rows]
    used = [i for i in range(len(titles)) if any(row[i] not in (None, "") for row in cells)]
    if emulated := {row.how for row in rows} <= {REFERENCE, EMULATED}:
        used.remove(1)
    return {
        "title": f"Each precision, {'emulated, ' * emulated}on the judged samples",
        "columns": [{"title": titles[i], "minor": titles[i] in _MINOR} for i in used],
        "rows": [[row[i] for i in used] for row in cells],
    }


def _cells(row: Classic, metrics: Sequence[str]) -> Iterator[Data]:
    yield row.name
    yield row.how
    yield "" if row.passed is None else "yes" if row.passed else "no"
    yield row.kept
    yield from (row.metrics.get(name) for name in metrics)
    yield None if row.errors is None else row.errors.max_abs
    yield None if row.cost is None else {"text": ratio(row.cost), "value": row.cost}
    yield from (None if row.latency is None else getattr(row.latency, t) for t in _TIMES.values())
    yield "" if row.bytes is None else size_of(row.bytes)
    yield "" if row.latency is None else size_of(row.latency.device_bytes)
    yield from (None if row.errors is None else getattr(row.errors, e) for e in _SMALLER.values())
