"""Turn observations into a report on the tensors that are large or not finite."""

from collections.abc import Sequence

from halfwise.records import NodeName, Observation, Observations
from halfwise.render.parts import Column, Report, Table
from halfwise.render.wording import count, number, shorten


def observed(observations: Observations, limit: float) -> Report:
    """Return the tensors that reach `limit` or hold non-finite values, largest first."""
    tensors = [o for o in observations.tensors if o.absmax >= limit or o.nonfinite]
    tensors.sort(key=lambda o: (o.nonfinite > 0, o.absmax), reverse=True)
    inner = [i for i in observations.inner if i.kind in ("square", "sum") and i.value >= limit]
    inner.sort(key=lambda i: i.value, reverse=True)
    ops = {i.node: i.op for i in observations.inner}
    rows = [_tensor_row(o, ops, observations.samples) for o in tensors]
    rows += [
        (f"inside: {i.kind}", shorten(i.node, 30), shorten(i.op, 16), number(i.value), "", "", "",
         _sample(i.worst_sample, observations.samples))
        for i in inner
    ]  # fmt: skip
    figures = ("absmax", "NaN, inf", "overflow", "flush")
    columns = (
        *map(Column, ("tensor", "producer", "op")),
        *(Column(figure, "right") for figure in figures),
        Column("worst sample"),
    )
    title = (
        f"{len(tensors)} of {count(len(observations.tensors), 'tensor')} reach {number(limit)} or "
        f"hold NaN or infinite values"
    )
    about = f"{count(len(observations.samples), 'sample')}; {len(inner)} larger values inside ops"
    table = Table("Tensors", columns, tuple(rows)).without_empty_columns()
    return Report(title, None, about, (table,) if rows else ())


def _tensor_row(
    seen: Observation, ops: dict[NodeName, str], samples: Sequence[str]
) -> tuple[str, ...]:
    detail = seen.detail
    producer = "(graph input)" if seen.producer is None else shorten(seen.producer, 30)
    return (
        shorten(seen.tensor, 30),
        producer,
        shorten(ops.get(seen.producer, ""), 16) if seen.producer else "",
        number(seen.absmax),
        str(seen.nonfinite) if seen.nonfinite else "",
        f"{detail.overflow:.2%}" if detail else "",
        f"{detail.flush:.2%}" if detail else "",
        _sample(seen.worst_sample, samples),
    )


def _sample(index: int, samples: Sequence[str]) -> str:
    return shorten(samples[index], 20) if 0 <= index < len(samples) else ""
