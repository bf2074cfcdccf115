"""Recognised outputs: the metric that fits their use, and how a candidate scores by it.

An output with only its shape as evidence is not recognised: a metric that fits by chance would
accept wrong results. The required value is FP32's own less the metric's default drop. Unrecognised
outputs must keep within the default tolerance.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from math import inf, isfinite, isnan
from typing import Any

from halfwise.errors import CaseError, UsageError
from halfwise.metrics import boxes, grids, keypoints
from halfwise.metrics.difference import is_discrete
from halfwise.metrics.evidence import Inputs
from halfwise.metrics.kinds import recognise
from halfwise.metrics.measures import DEFAULT_REL_MAX, Excess, Outputs, totals
from halfwise.metrics.targets import (
    BUILT_IN,
    OF_WORST,
    WORST,
    Metric,
    cosine_and_length,
    default_drop,
    evidence_of,
    required,
    shapes_of,
)
from halfwise.metrics.task import metric_loss, resolve, worst_block, worst_place
from halfwise.metrics.untested import untested_metric, untested_outputs
from halfwise.records import Criterion, Evidence, Kind, Recognised, TaskScore, Unjudged, replace
from halfwise.wording import listed

REL_MAX = "rel-max"
"""Name of the measure for unrecognised outputs: the default tolerance."""


BY_LAYOUT: Mapping[str, tuple[Kind, Callable[..., float]]] = {
    "detection-f1": ("boxes", boxes.f1),
    "map": ("boxes", boxes.mean_ap),
    "cells": ("cells", grids.agreement),
    "keypoints": ("keypoints", keypoints.similarity),
}
"""Built-in metrics that need the layout of outputs: of what, and how it is measured."""


_BESIDE = {
    "top1": "confidence",
    "token-agreement": "confidence",
    "detection-f1": "map",
    "mask-iou": "places",
    "mean-iou": "places",
}
"""What a use asks for besides: which class, and how sure; which boxes, and exactly where; which
pixels, and that nothing small is gone."""


def _metrics(metric: str) -> Iterator[str]:
    """Yield the metrics that a use asks for; no single sample may be lost, as a mean may hide."""
    yield metric
    if metric in _BESIDE:
        yield _BESIDE[metric]
    if metric in OF_WORST:
        yield f"{WORST}{metric}"


def by_use(
    references: Sequence[Outputs], inputs: Inputs, suppressed: Collection[str] = ()
) -> tuple[Recognised, ...]:
    """Return the recognised outputs by each metric that their use asks for; see `recognise`.

    Whole numbers have no confidence.
    """
    return tuple(
        replace(one, metric=name, required=required(name))
        for one in recognise(references, inputs, suppressed)
        for name in _metrics(one.metric)
        if name != "confidence" or not is_discrete(references[0][one.outputs[0]].dtype)
    )


def by_outputs(recognised: Sequence[Recognised]) -> dict[tuple[str, ...], list[Recognised]]:
    """Return the recognised outputs by their names."""
    grouped = dict[tuple[str, ...], list[Recognised]]()
    for one in recognised:
        grouped.setdefault(one.outputs, []).append(one)
    return grouped


def metric_of(one: Recognised) -> Metric:
    """Return the metric of recognised outputs, which reads only these.

    To a metric by layout, FP32's detections are the truth, also with labels.
    """
    if one.metric.startswith(WORST):
        base = replace(one, metric=one.metric.removeprefix(WORST))
        return partial(_of_worst, metric_of(base), base)
    if one.metric in BY_LAYOUT:
        return partial(_of_layout, one)
    # An embedding may feed other layers, where its length counts.
    metric = cosine_and_length if one.metric == "cosine" else resolve(one.metric)
    assert metric is not None

    def restricted(
        reference: Sequence[Outputs], candidate: Sequence[Outputs], labels: Sequence[Any] | None
    ) -> float:
        return metric(_only(one.outputs, reference), _only(one.outputs, candidate), labels)

    return restricted


_LOCAL = {"epe": worst_place, "psnr": worst_block}


def _of_worst(
    metric: Metric,
    one: Recognised,
    reference: Sequence[Outputs],
    candidate: Sequence[Outputs],
    _labels: Sequence[Any] | None,
) -> float:
    """Return a metric's value for the worst sample, where FP32's outputs are the truth.

    Of flows and images, that of the worst place; of boxes, that of the worst image, class or size.

    Raises:
        CaseError: it has nothing to compare on any sample.
    """
    if one.metric in _LOCAL:
        reference, candidate = (_only(one.outputs, each) for each in (reference, candidate))
        return _LOCAL[one.metric](reference, candidate, None)
    if one.boxes is not None:
        return min(boxes.shares(reference, candidate, one.outputs, one.boxes), default=1.0)
    values, refused = list[float](), CaseError("The metric has nothing to compare.")
    for wanted, actual in zip(reference, candidate, strict=True):
        try:
            values.append(metric([wanted], [actual], None))
        except CaseError as error:
            refused = error
    if not values:
        raise refused
    return float(min(-inf if isnan(value) else value for value in values))


def _of_layout(
    one: Recognised,
    reference: Sequence[Outputs],
    candidate: Sequence[Outputs],
    _labels: Sequence[Any] | None,
) -> float:
    wanted, actual = _only(one.outputs, reference), _only(one.outputs, candidate)
    how = filter(None, (one.boxes, one.cells))
    _, measure = BY_LAYOUT[one.metric]
    return measure(wanted, actual, one.outputs, *how)


def others_of(recognised: Sequence[Recognised], outputs: Outputs) -> tuple[str, ...]:
    """Return the names of the outputs that are not recognised."""
    taken = {name for one in recognised for name in one.outputs}
    return tuple(name for name in outputs if name not in taken)


def untested_part(
    one: Recognised,
    references: Sequence[Outputs],
    labels: Sequence[Any] | None,
    drop: float | None = None,
) -> tuple[Unjudged, ...]:
    """Return what no sample tests in recognised outputs: the metric, or outputs that it ignores.

    Nothing tests a metric whose value rests on nothing: FP32 detects no box on any sample, a
    segmentation has a single class, all tokens are filler. For others see `untested_metric`.

    Args:
        one: The outputs.
        references: FP32 outputs by sample, at least one.
        labels: One label per sample, or None.
        drop: How far the metric may fall; None for its default.
    """
    if one.metric.startswith(WORST):
        return ()  # the metric itself tells
    evidence, _ = evidence_of(one.metric, metric_of(one)(references, references, None))
    if evidence == 0:
        return (Unjudged(kind="absent", name=one.metric),)
    if one.metric in BY_LAYOUT:
        return ()
    allowed = _drop(one, labels) if drop is None else drop
    criterion = Criterion(metric=one.metric, metric_drop=allowed)
    return untested_metric(criterion, resolve(one.metric), _only(one.outputs, references), labels)


def task_scores(
    recognised: Sequence[Recognised],
    references: Sequence[Outputs],
    candidates: Sequence[Outputs],
    labels: Sequence[Any] | None = None,
) -> tuple[TaskScore, ...]:
    """Return a candidate's score by the metric of each recognised output.

    Args:
        recognised: What was recognised on these or other samples of the same model.
        references: FP32 outputs by sample, at least one.
        candidates: The candidate's outputs on the same samples; NaN and other shapes are wrong.
        labels: The truth where one output is recognised, one label per sample. For several
            outputs, or if labels do not fit, FP32's own outputs are the truth.

    Returns:
        Scores in the order of `recognised`; none if that is empty. With labels, the required value
        is FP32's own less the default drop. Other outputs, if any, come last as "rel-max": minus
        the largest error, as `Criterion` measures it by default.
    """
    parts = []
    for one in recognised:
        truth = labels if len({each.outputs for each in recognised}) == 1 else None
        try:
            score = _score(one, references, candidates, truth)
        except CaseError:
            truth = None
            score = _score(one, references, candidates, truth)
        if untested_part(one, references, truth):
            score = replace(score, passed=False)
        parts.append(score)
    others = others_of(recognised, references[0]) if parts else ()
    return (*parts, *([_tolerance(others, references, candidates)] if others else ()))


def shortfall(
    recognised: Sequence[Recognised],
    references: Sequence[Outputs],
    candidates: Sequence[Outputs],
    labels: Sequence[Any] | None,
) -> float:
    """Return the largest share of its allowance that any output uses; inf for NaN.

    Arguments as for `task_scores`; unrecognised outputs are held to the default tolerance. 1 just
    passes; 0 is as good as the reference.

    Raises:
        CaseError: labels do not fit.
    """
    used = []
    for one in recognised:
        score, drop = _score(one, references, candidates, labels), _drop(one, labels)
        off = score.required - score.value
        used.append(1 + off / drop)
    if others := others_of(recognised, references[0]):
        used.append(-_tolerance(others, references, candidates).value / DEFAULT_REL_MAX)
    return max(0.0, *(inf if isnan(part) else part for part in used))


_OF_ONE = ("confidence", "cosine", "places")
"""Metrics that are those of the worst sample, besides those that begin with `WORST`."""


def shortfall_of_one(recognised: Sequence[Recognised], reference: Outputs, of: Outputs) -> float:
    """Return the largest share of its allowance that one sample uses by itself, ≥ 0.

    Only of metrics that are those of the worst sample; 0 where that has nothing to compare.
    """
    of_one = [o for o in recognised if o.metric in _OF_ONE or o.metric.startswith(WORST)]
    return _most_used(of_one, reference, of, None)


def _most_used(
    recognised: Iterable[Recognised],
    reference: Outputs,
    candidate: Outputs,
    labels: Sequence[Any] | None,
) -> float:
    """Return the largest share of its allowance that a sample uses; 0 if nothing is to compare."""
    used = [0.0]
    for one in recognised:
        with suppress(CaseError):
            used.append(shortfall((one,), _only(one.outputs, [reference]), [candidate], labels))
    return max(used)


def loss_of_one(
    criterion: Criterion,
    metric: Metric,
    reference: Outputs,
    candidate: Outputs,
    labels: Sequence[Any] | None,
) -> float:
    """Return what one sample loses of a metric, over what it may lose alone; above 1 it fails.

    0 if it has nothing to compare, inf for NaN, and for any loss where none is allowed. Of metrics
    that look at means and at the worst sample, the latter counts.

    Args:
        criterion: What is acceptable; its metric is not None.
        metric: The metric.
        reference: FP32 outputs of the sample.
        candidate: The candidate's.
        labels: The label of the sample, alone, or None.

    Raises:
        CaseError: a user's function has no value for one sample.
    """
    if criterion.metric != AUTO:
        try:
            loss = metric_loss(metric, [reference], [candidate], labels)
        except CaseError:
            if criterion.metric not in BUILT_IN:
                raise
            return 0.0
        return _over(inf if isnan(loss) else max(0.0, loss), criterion.metric_drop)
    of_samples = (one for one in criterion.recognised if one.metric.startswith(WORST))
    worst = {(one.outputs, one.metric.removeprefix(WORST)) for one in of_samples}
    others = (one for one in criterion.recognised if (one.outputs, one.metric) not in worst)
    return _most_used(others, reference, candidate, labels)


def _over(loss: float, allowed: float) -> float:
    return loss / allowed if allowed else (inf if loss > 0 else 0.0)


def _drop(one: Recognised, labels: Sequence[Any] | None) -> float:
    usual = default_drop(one.metric, labelled=labels is not None)
    assert usual is not None
    return usual.drop


def _score(
    one: Recognised,
    references: Sequence[Outputs],
    candidates: Sequence[Outputs],
    labels: Sequence[Any] | None,
) -> TaskScore:
    metric = metric_of(one)
    best, value = (metric(references, of, labels) for of in (references, candidates))
    least = best - _drop(one, labels)
    evidence, unit = evidence_of(one.metric, best)
    return TaskScore(
        metric=one.metric,
        outputs=one.outputs,
        value=value,
        required=least,
        passed=isfinite(value) and value >= least,
        evidence=evidence,
        unit=unit,
    )


def _tolerance(
    names: tuple[str, ...], references: Sequence[Outputs], candidates: Sequence[Outputs]
) -> TaskScore:
    wanted, actual = _only(names, references), _only(names, candidates)
    excess = Excess(Criterion(), totals(wanted))
    for expected, output in zip(wanted, actual, strict=True):
        excess.update(expected, output)
    share = excess.final()
    return TaskScore(
        metric=REL_MAX,
        outputs=names,
        value=-share * DEFAULT_REL_MAX,
        required=-DEFAULT_REL_MAX,
        passed=share <= 1,
        evidence=sum(array.size for outputs in wanted for array in outputs.values()),
        unit="values",
    )


def _only(names: Sequence[str], outputs: Sequence[Outputs]) -> list[Outputs]:
    if lacking := [name for name in names if any(name not in of for of in outputs)]:
        raise CaseError(
            f"The metric needs output {lacking[0]!r}, which is missing.",
            "Give all outputs for which the metric was chosen, or name a metric for the others.",
        )
    return [{name: of[name] for name in names} for of in outputs]


AUTO = "auto"
"""The metric that depends on the recognised outputs."""


def has_to_see(criterion: Criterion) -> bool:
    """Return whether the metric depends on FP32's outputs and has not been settled yet."""
    return criterion.metric in (AUTO, *BY_LAYOUT) and not criterion.recognised


def settle(
    criterion: Criterion,
    references: Sequence[Outputs],
    inputs: Inputs,
    suppressed: Collection[str] = (),
    *,
    labelled: bool,
) -> Criterion:
    """Return the criterion with "auto" resolved and the outputs that its metric judges.

    With "auto", outputs that are not recognised, or that these samples do not test by each of their
    metrics, are held to the default tolerance; if that is all of them, the criterion is the
    default.

    Args:
        criterion: Its metric is "auto", or one that needs the layout of boxes.
        references: FP32 outputs by sample; the first eight are examined.
        inputs: Shape of every input, on the first sample.
        suppressed: Outputs with what a suppression of overlapping boxes chose.
        labelled: Whether there are labels.

    Raises:
        UsageError: nothing is recognised that the metric could read; or labels are given for what
            FP32 detects, for several outputs at once, or for none.
    """
    if criterion.metric != AUTO:
        name = str(criterion.metric)
        kind, _ = BY_LAYOUT[name]
        seen = recognise(references, inputs, suppressed)
        found = [one for one in seen if one.kind == kind]
        if not found:
            raise UsageError(
                f"The metric {name} cannot read {KINDS[kind]} from the outputs without guesswork: "
                f"{shapes_of(references[0])}.",
                "Give your own metric: --metric file.py:function.",
            )
        one = replace(found[0], metric=name, required=required(name))
        _demand_unlabelled([one], labelled=labelled)
        return replace(criterion, recognised=(one,))
    recognised = by_use(references, inputs, suppressed)
    untested = {one.outputs for one in recognised if untested_part(one, references, None)}
    dropped = {one.outputs: one for one in recognised if one.outputs in untested}
    recognised = tuple(one for one in recognised if one.outputs not in untested)
    criterion = replace(criterion, untested=tuple(dropped.values()))
    _demand_unlabelled(recognised, labelled=labelled)
    if not recognised:
        return Criterion(failing=criterion.failing, untested=criterion.untested)
    criterion = replace(
        criterion,
        recognised=recognised,
        metric_drop=1.0,
        drop_source="each by its own default",
    )
    if len(recognised) == 1 and not others_of(recognised, references[0]):
        usual = default_drop(recognised[0].metric, labelled=labelled)
        assert usual is not None
        criterion = replace(
            criterion,
            metric=recognised[0].metric,
            metric_drop=usual.drop,
            drop_source=usual.source,
        )
    return criterion


def settled_metric(criterion: Criterion) -> Metric | None:
    """Return the metric of the criterion's recognised outputs; None if it has none.

    For several outputs it is 1 minus the largest share of its allowance that any of them uses, so 0
    just passes; -inf if a candidate is not finite.
    """
    if not criterion.recognised:
        return None
    if criterion.metric == AUTO:
        return partial(_together, criterion.recognised)
    return metric_of(criterion.recognised[0])


def untested_task(
    criterion: Criterion,
    metric: Metric | None,
    references: Sequence[Outputs],
    labels: Sequence[Any] | None,
) -> tuple[Unjudged, ...]:
    """Return what no sample tests in a metric (see `untested_metric`), or in any metric of "auto".

    Args:
        criterion: What is acceptable.
        metric: The metric; None for none.
        references: FP32 outputs by sample; may be empty.
        labels: One label per sample, or None.
    """
    if not criterion.recognised or not references:
        return untested_metric(criterion, metric, references, labels)
    drop = None if criterion.metric == AUTO else criterion.metric_drop
    untested = [
        one
        for part in criterion.recognised
        for one in untested_part(part, references, labels, drop)
    ]
    rest = others_of(criterion.recognised, references[0])
    only = [{name: outputs[name] for name in rest} for outputs in references]
    beside = criterion.metric == AUTO and rest
    return (*untested, *(untested_outputs(Criterion(), only) if beside else ()))


def _together(
    recognised: Sequence[Recognised],
    reference: Sequence[Outputs],
    candidate: Sequence[Outputs],
    labels: Sequence[Any] | None,
) -> float:
    return 1.0 - shortfall(recognised, reference, candidate, labels)


def _demand_unlabelled(recognised: Sequence[Recognised], *, labelled: bool) -> None:
    """Raise UsageError for labels that no metric takes, or that several outputs could have."""
    if not labelled:
        return
    if not recognised:
        raise UsageError(
            "Nothing in the outputs is recognised that labels could judge.",
            "Name the metric that they are for, such as --metric top1, or leave them out.",
        )
    if len({one.outputs for one in recognised}) > 1:
        kinds = ", ".join(
            dict.fromkeys(f"{KINDS[one.kind]} in {listed(one.outputs)}" for one in recognised)
        )
        raise UsageError(
            f"Several outputs are recognised ({kinds}), but labels fit only one.",
            "Name the metric that the labels are for, or leave them out.",
        )
    if recognised[0].metric in BY_LAYOUT:
        raise UsageError(
            f"The metric {recognised[0].metric} takes no labels: FP32's detections are the truth.",
            "Leave the labels out, or give your own metric: --metric file.py:function.",
        )


KINDS: dict[Kind, str] = {
    "boxes": "boxes",
    "cells": "a detector's cells",
    "class-scores": "class scores",
    "embedding": "embeddings",
    "flow": "optical flow",
    "heatmap": "heat maps",
    "image": "an image",
    "keypoints": "keypoints",
    "mask": "a mask",
    "segmentation": "a segmentation",
    "tokens": "tokens",
}
"""Words for each kind."""
SEEN: dict[Evidence, str] = {
    "rows-sum": "rows sum to 1",
    "log-sum": "exponentials of rows sum to 1",
    "one-channel": "one channel within [0, 1]",
    "two-valued": "almost nothing in between",
    "two-channels": "two channels",
    "pair-of-images": "from two images",
    "known-count": "the number of ImageNet's classes",
    "by-name": "by its name",
    "joined-with-scores": "joined with scores",
    "beside-scores": "beside scores",
    "row-per-cell": "as many rows as YOLO has cells",
    "corners-in-order": "corners in order",
    "whole-classes": "classes are whole numbers",
    "unit-length": "rows of length 1",
    "channels-sum": "channels sum to 1",
    "in-regions": "neighbours share a class",
    "one-ahead": "one class far ahead",
    "size-of-input": "of the image's size",
    "times-input": "of the image's size or a multiple",
    "range-of-images": "values of images",
    "smooth": "neighbours are alike",
    "within-image": "within the image",
    "cells-of-image": "as many cells as the image has",
    "few-objects": "few cells with an object",
    "few-peaks": "few peaks and almost nothing around them",
    "peak-each": "at most one peak in each map",
    "number-varies": "their number varies",
    "suppressed": "overlapping ones are dropped",
}
"""Words for each kind of evidence."""
