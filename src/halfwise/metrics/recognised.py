"""Recognised outputs: the metric that asks what they are used for, and how a candidate does by it.

An output that only its shape speaks for is not recognised: a metric that fits it by chance would
accept what is wrong. What is required is that of FP32 itself less the metric's default drop.
"""

from collections.abc import Sequence
from math import isfinite
from typing import Any

from halfwise.errors import CaseError
from halfwise.metrics.built_in import default_drop, required
from halfwise.metrics.kinds import METRIC_OF, Inputs, looks
from halfwise.metrics.measures import Outputs
from halfwise.metrics.task import resolve
from halfwise.metrics.untested import untested_metric
from halfwise.records import Criterion, Recognised, TaskScore


def recognise(references: Sequence[Outputs], inputs: Inputs) -> tuple[Recognised, ...]:
    """Return the outputs whose kind the evidence shows, in their order; empty where none is.

    Args:
        references: FP32 outputs by sample; the first eight are looked at. May be empty.
        inputs: Shape of every input, on the first sample.
    """
    return tuple(
        Recognised(
            kind=look.kind,
            metric=metric,
            outputs=look.outputs,
            required=required(metric),
            shape=look.shape,
            evidence=look.evidence,
        )
        for look in looks(references, inputs)
        if look.shown and (metric := METRIC_OF[look.kind])
    )


def task_scores(
    recognised: Sequence[Recognised],
    references: Sequence[Outputs],
    candidates: Sequence[Outputs],
    labels: Sequence[Any] | None = None,
) -> tuple[TaskScore, ...]:
    """Return how a candidate does by the metric of each recognised output.

    Args:
        recognised: What was recognised, of these samples or of others of the same model.
        references: FP32 outputs by sample, at least one.
        candidates: The candidate's outputs of the same samples; NaN and other shapes are wrong.
        labels: The truth, one label per sample, of the one recognised output. Of several outputs,
            and where labels do not fit, FP32's own outputs are the truth.

    Returns:
        In the order of `recognised`. With labels, what is required is FP32's own value less the
        default drop.
    """
    of_one = labels if len(recognised) == 1 else None
    return tuple(_score(one, references, candidates, of_one) for one in recognised)


def _score(
    one: Recognised,
    references: Sequence[Outputs],
    candidates: Sequence[Outputs],
    labels: Sequence[Any] | None,
) -> TaskScore:
    metric, usual = resolve(one.metric), default_drop(one.metric, labelled=labels is not None)
    assert metric is not None
    assert usual is not None
    wanted, found = (_only(one.outputs, of) for of in (references, candidates))
    try:
        own, value = metric(wanted, wanted, labels), metric(wanted, found, labels)
    except CaseError:
        if labels is None:
            raise
        return _score(one, references, candidates, None)
    criterion = Criterion(metric=one.metric, metric_drop=usual.drop)
    untested = bool(untested_metric(criterion, metric, wanted, labels))
    return TaskScore(
        metric=one.metric,
        outputs=one.outputs,
        value=value,
        required=own - usual.drop,
        passed=isfinite(value) and value >= own - usual.drop and not untested,
        untested=untested,
    )


def _only(names: Sequence[str], outputs: Sequence[Outputs]) -> list[Outputs]:
    return [{name: of[name] for name in names} for of in outputs]
