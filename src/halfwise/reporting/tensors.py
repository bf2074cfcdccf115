"""Turn observations into a report: tensors that are large or not finite, and a cache's ranges."""

from collections.abc import Sequence

from halfwise.records import (
    AdjustedConstant,
    InnerObservation,
    Observation,
    Observations,
)
from halfwise.reporting.parts import Column, Report, Table, present
from halfwise.wording import count, number, percent, shorten


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
