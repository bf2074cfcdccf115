"""The lines on dynamic axes: at which sizes they were judged, and at which not."""

from collections.abc import Iterator, Sequence

from halfwise.records import DynamicAxis, JudgedBatch, NotBatched, Verdict
from halfwise.wording import count, listed, shorten

_WHY: dict[NotBatched, str] = {
    "sizes": "no batches were put together: {detail}",
    "fails": "no batches were judged: {detail}",
    "metric": "no batches were judged: {detail}, and the metric reads single samples",
    "recorded": "outputs on record tell of no other",
}
_MOST_SIZES = 4


def size_lines(verdict: Verdict) -> Iterator[str]:
    """Yield a line for each dynamic axis."""
    for axis in verdict.axes:
        if len(axis.sizes) > 1:
            batch = verdict.batch if _is_batch(axis, verdict) else None
            yield f"{_name(axis)} is dynamic: judged at {_sizes(axis.sizes)}{_batches(batch)}."
        else:
            why = "" if axis.why is None else f"; {_WHY[axis.why].format(detail=axis.detail)}"
            size = "".join(map(str, axis.sizes))
            yield (
                f"{_name(axis)} is dynamic, and every sample has {size}: other sizes were not "
                f"judged{why}."
            )


def _name(axis: DynamicAxis) -> str:
    inputs = dict.fromkeys(axis.inputs.values())
    where = f"Axis {next(iter(inputs))}" if len(inputs) == 1 else "An axis"
    symbol = "" if axis.symbol is None else f" '{shorten(axis.symbol, 20)}'"
    return f"{where}{symbol} of {listed(list(axis.inputs), 3)}"


def _sizes(sizes: Sequence[int]) -> str:
    if len(sizes) > _MOST_SIZES:
        return f"{len(sizes)} sizes from {sizes[0]} to {sizes[-1]}"
    return f"{', '.join(map(str, sizes[:-1]))} and {sizes[-1]}"


def _is_batch(axis: DynamicAxis, verdict: Verdict) -> bool:
    return verdict.batch is not None and verdict.batch.size == axis.sizes[-1]


def _batches(batch: JudgedBatch | None) -> str:
    if batch is None:
        return ""
    told = f"{count(len(batch.samples), 'sample')} put together"
    if batch.whole:
        told = f"whole batches of {batch.size}, since the model itself mixes their samples"
    advice = "" if batch.passed else "; give inputs that are such batches, and the search sees them"
    return f" ({told}{advice})"
