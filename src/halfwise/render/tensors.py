"""Turn observations into a report on the tensors that are large or not finite."""

from collections.abc import Sequence

from halfwise.records import InnerObservation, NodeName, Observation, Observations
from halfwise.render.parts import Column, Report, Table
from halfwise.render.wording import count, fraction, number, shorten


def observed(observations: Observations, limit: float) -> Report:
    """Return the tensors that reach `limit` or hold non-finite values, largest first."""
    tensors = [o for o in observations.tensors if o.absmax >= limit or o.nonfinite]
    tensors.sort(key=lambda o: (o.nonfinite > 0, o.absmax), reverse=True)
    inner = [i for i in observations.inner if i.kind in ("square", "sum") and i.value >= limit]
    inner.sort(key=lambda i: i.value, reverse=True)
    ops = {i.node: i.op for i in observations.inner}
    rows = [_tensor_row(o, ops, observations.samples) for o in tensors]
    rows += [_inner_row(i, observations.samples) for i in inner]
    figures = ("absmax", "NaN, inf", "overflow", "flush")
    columns = (
        *map(Column, ("node", "tensor", "op")),
        *(Column(figure, "right") for figure in figures),
        Column("worst sample"),
    )
    title = (
        f"{len(tensors)} of {count(len(observations.tensors), 'tensor')} reach {limit:g} or hold "
        "NaN or infinite values"
    )
    about = f"{count(len(observations.samples), 'sample')}; {len(inner)} such values inside ops"
    table = Table("Largest first", columns, tuple(rows)).without_empty_columns()
    return Report(title, None, about, (table,) if rows else ())


def _tensor_row(
    seen: Observation, ops: dict[NodeName, str], samples: Sequence[str]
) -> tuple[str, ...]:
    node, detail = seen.producer, seen.detail
    name = str(seen.tensor)
    if node is not None and name.startswith(node):
        # Exporters name tensors after nodes; the common part would only take room.
        name = "…" + name.removeprefix(node)
    return (
        "(graph input)" if node is None else shorten(node, 40),
        shorten(name, 24),
        shorten(ops.get(node, ""), 16) if node is not None else "",
        number(seen.absmax),
        str(seen.nonfinite) if seen.nonfinite else "",
        fraction(detail.overflow) if detail else "",
        fraction(detail.flush) if detail else "",
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


def _sample(index: int, samples: Sequence[str]) -> str:
    return shorten(samples[index], 20) if 0 <= index < len(samples) else ""
