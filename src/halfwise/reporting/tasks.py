"""Words on the metrics of several outputs that one verdict joins."""

from collections.abc import Iterator, Mapping

from halfwise.metrics import rises, usual
from halfwise.metrics.recognised import REL_MAX
from halfwise.records import Criterion, MetricResult, TaskScore
from halfwise.wording import listed, number, sentence, verb

_MOST_OUTPUTS = 3


def allowed_together(criterion: Criterion) -> str:
    """Return what each of the recognised outputs is held to, and the others, in one clause."""
    each = (
        f"{one.metric} of {listed(one.outputs, _MOST_OUTPUTS)} {_limit(one.metric, one.required)}"
        for one in criterion.recognised
    )
    return sentence(f"{', '.join(each)}, other outputs by the default tolerance")


def part_lines(models: Mapping[str, MetricResult]) -> Iterator[str]:
    """Yield a line for each part of a metric.

    Args:
        models: Results of one metric on the same samples, by what each model is called.
    """
    for parts in zip(*(result.parts for result in models.values()), strict=True):
        values = (f"{_value(part)} {name}" for name, part in zip(models, parts, strict=True))
        yield f"{_of(parts[0])}: {', '.join(values)}; {_limit(parts[0].metric, parts[0].required)}."


def wrong_parts(result: MetricResult) -> Iterator[str]:
    """Yield a sentence for each part of a metric that fails."""
    for part in result.parts:
        if not part.value >= part.required:
            limit = _limit(part.metric, part.required)
            yield f"{_of(part)} is {_value(part)}; {limit} is allowed."


def rests_on(score: TaskScore) -> str:
    """Return what a score rests on, such as `on 3 boxes`; "" where that is not known."""
    if score.evidence is None or score.unit is None:
        return ""
    one = {"boxes": "box"}.get(score.unit, score.unit.removesuffix("s"))
    return f"on {score.evidence} {verb(score.evidence, one, score.unit)}"


def _of(part: TaskScore) -> str:
    what = "Largest error" if part.metric == REL_MAX else sentence(part.metric)
    return f"{what} of {listed(part.outputs, _MOST_OUTPUTS)}"


def _value(part: TaskScore) -> str:
    return number(usual(part.metric, part.value), 6)


def _limit(metric: str, required: float) -> str:
    return f"{'≤' if rises(metric) else '≥'} {number(usual(metric, required))}"
