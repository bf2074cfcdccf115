"""Words on the metrics of several outputs in one verdict."""

from collections.abc import Iterator, Mapping, Sequence

from halfwise.metrics import rises, usual
from halfwise.metrics.recognised import REL_MAX
from halfwise.records import Criterion, MetricResult, TaskScore
from halfwise.wording import listed, number, sentence, shorten, verb

_MOST_OUTPUTS = 3


def allowed_together(criterion: Criterion) -> str:
    """Return what each recognised output, and the others, must meet, in one clause."""
    each = (
        f"{one.metric} of {listed(one.outputs, _MOST_OUTPUTS)} {_limit(one.metric, one.required)}"
        for one in criterion.recognised
    )
    return sentence(f"{', '.join(each)}, default tolerance for other outputs")


def part_lines(models: Mapping[str, MetricResult]) -> Iterator[str]:
    """Yield a line for each part of a metric.

    Args:
        models: Results of one metric on the same samples, by model name.
    """
    for parts in zip(*(result.parts for result in models.values()), strict=True):
        values = (f"{_value(part)} {name}" for name, part in zip(models, parts, strict=True))
        limit = _limit(parts[0].metric, parts[0].required)
        tested = "" if parts[0].metric == REL_MAX else rests_on(parts[0])
        told = ", ".join([*values, tested] if tested else values)
        yield f"{_of(parts[0])}: {told}; {limit}."


def wrong_parts(result: MetricResult) -> Iterator[str]:
    """Yield a sentence for each part of a metric that fails."""
    for part in result.parts:
        if not part.value >= part.required:
            limit = _required(part.metric, part.required)
            least = (
                f"at most {limit} is allowed"
                if rises(part.metric)
                else f"at least {limit} is required"
            )
            yield f"{_of(part)} is {_value(part)}; {least}."


def metrics_of(result: MetricResult) -> str:
    """Return a result's metrics: `top1 and the largest error of other outputs`, or `top1`."""
    names = {REL_MAX: "the largest error of other outputs"}
    told = [names.get(name, sentence(name)) for name in result.metrics]
    return " and ".join(filter(None, (", ".join(told[:-1]), told[-1])))


def figures(result: MetricResult) -> str:
    """Return a result's values, such as `top1 0.98`; of several metrics, each with its outputs."""
    if not result.parts:
        value = number(usual(result.name, result.candidate))
        return f"{sentence(result.name)} {value}"
    each = (
        f"{_of(part, start=False)} {number(usual(part.metric, part.value))}"
        for part in result.parts
    )
    return ", ".join(each)


def heading_of(result: MetricResult) -> str:
    """Return the heading of a column of `values_of`."""
    return "; ".join(shorten(part.metric, 16) for part in result.parts) or shorten(result.name, 16)


def values_of(result: MetricResult) -> Iterator[str]:
    """Yield the value of each part of a metric, or its only value."""
    for part in result.parts:
        yield _value(part)
    if not result.parts:
        yield number(usual(result.name, result.candidate), 6)


def rests_on(score: TaskScore | MetricResult) -> str:
    """Return what a score rests on, such as `on 3 boxes`; "" if unknown."""
    return "" if score.evidence is None else counted(score.evidence, score.unit or "")


def counted(evidence: int, unit: str) -> str:
    """Return what a score rests on, given its support; "" for an unknown unit."""
    one = {"boxes": "box"}.get(unit, unit.removesuffix("s"))
    return f"on {evidence} {verb(evidence, one, unit)}" if unit else ""


FEW = 10
"""Number of boxes, rows and the like below which a score is weak evidence: if ten are all right, up
to one in four others may be wrong (95 %)."""


def weakest(scores: Sequence[TaskScore]) -> TaskScore | None:
    """Return the score that rests on least, if that is fewer than `FEW`; else None."""
    few = [score for score in scores if score.evidence is not None and score.evidence < FEW]
    return min(few, key=lambda score: score.evidence or 0, default=None)


def below_one(score: MetricResult) -> str:
    """Return a clause if one more wrong row or token would be too many; else ""."""
    if not score.evidence or score.unit not in ("rows", "tokens"):
        return ""
    step, one = 1 / score.evidence, score.unit.removesuffix("s")
    return "" if score.allowed_drop >= step else f", less than one {one} ({number(step)})"


def _of(part: TaskScore, *, start: bool = True) -> str:
    error = "Largest error" if start else "largest error"
    what = error if part.metric == REL_MAX else sentence(part.metric)
    return f"{what} of {listed(part.outputs, _MOST_OUTPUTS)}"


def _value(part: TaskScore) -> str:
    return number(usual(part.metric, part.value), 6)


def _limit(metric: str, required: float) -> str:
    return f"{'≤' if rises(metric) else '≥'} {_required(metric, required)}"


def _required(metric: str, required: float) -> str:
    """Return what is required, with more digits where three would say 1."""
    limit = usual(metric, required)
    return number(limit, 6 if 0.9995 <= limit < 1 else 3)
