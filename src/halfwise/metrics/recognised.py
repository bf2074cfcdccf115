"""Recognised outputs: the metric that fits their use, and how a candidate scores by it.

An output with only its shape as evidence is not recognised: a metric that fits by chance would
accept wrong results. The required value is FP32's own less the metric's default drop. Unrecognised
outputs must keep within the default tolerance.
"""

from collections.abc import Callable, Sequence
from functools import partial
from math import inf, isfinite, isnan
from typing import Any

from halfwise.errors import CaseError
from halfwise.metrics.built_in import default_drop, required
from halfwise.metrics.detection import f1, finds_nothing, mean_ap
from halfwise.metrics.evidence import Inputs
from halfwise.metrics.excess import Excess
from halfwise.metrics.kinds import METRIC_OF, looks
from halfwise.metrics.labelling import classes_in
from halfwise.metrics.measures import DEFAULT_REL_MAX, Outputs, totals
from halfwise.metrics.similarity import cosine_and_length
from halfwise.metrics.support import Support, support, support_of_boxes
from halfwise.metrics.targets import Metric
from halfwise.metrics.task import resolve
from halfwise.metrics.untested import untested_metric
from halfwise.records import Boxes, Criterion, Recognised, TaskScore, Unjudged

REL_MAX = "rel-max"
"""Name of the measure for unrecognised outputs: the default tolerance."""
_OF_BOXES: dict[
    str, Callable[[Sequence[Outputs], Sequence[Outputs], Sequence[str], Boxes], float]
] = {"detection-f1": f1, "map": mean_ap}
BY_LAYOUT = tuple(_OF_BOXES)
"""Built-in metrics that need the layout of outputs."""


def recognise(references: Sequence[Outputs], inputs: Inputs) -> tuple[Recognised, ...]:
    """Return the outputs whose kind the evidence shows, boxes first; may be empty.

    Args:
        references: FP32 outputs by sample; the first eight are examined. May be empty.
        inputs: Shape of every input, on the first sample.
    """
    return tuple(
        Recognised(
            kind=look.kind,
            metric=METRIC_OF[look.kind],
            outputs=look.outputs,
            required=required(METRIC_OF[look.kind]),
            shape=look.shape,
            evidence=look.evidence,
            boxes=look.boxes,
        )
        for look in looks(references, inputs)
        if look.shown
    )


def is_tested(references: Sequence[Outputs], inputs: Inputs) -> bool:
    """Return whether outputs are recognised, and these samples test each of them."""
    found = recognise(references, inputs)
    return bool(found) and not any(untested_part(one, references, None) for one in found)


def metric_of(one: Recognised) -> Metric:
    """Return the metric of recognised outputs, which reads only these.

    A detection metric raises CaseError if there are labels.
    """
    if one.boxes is not None:
        return partial(_of_boxes, one, one.boxes)
    # An embedding may feed other layers, where its length counts.
    metric = cosine_and_length if one.metric == "cosine" else resolve(one.metric)
    assert metric is not None

    def restricted(
        reference: Sequence[Outputs], candidate: Sequence[Outputs], labels: Sequence[Any] | None
    ) -> float:
        return metric(_only(one.outputs, reference), _only(one.outputs, candidate), labels)

    return restricted


def _of_boxes(
    one: Recognised,
    how: Boxes,
    reference: Sequence[Outputs],
    candidate: Sequence[Outputs],
    labels: Sequence[Any] | None,
) -> float:
    if labels is not None:
        raise CaseError(
            f"The metric {one.metric} takes no labels: FP32's detections are the truth.",
            "Leave the labels out, or give your own metric: --metric file.py:function.",
        )
    wanted, found = _only(one.outputs, reference), _only(one.outputs, candidate)
    return _OF_BOXES[one.metric](wanted, found, one.outputs, how)


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

    Boxes are untested if FP32 detects none on any sample, and a segmentation if it has a single
    class; for others see `untested_metric`.

    Args:
        one: The outputs.
        references: FP32 outputs by sample, at least one.
        labels: One label per sample, or None.
        drop: How far the metric may fall; None for its default.
    """
    if _is_absent(one, references):
        return (Unjudged(kind="absent", name=one.metric),)
    if one.boxes is not None:
        return ()
    allowed = _drop(one, labels) if drop is None else drop
    criterion = Criterion(metric=one.metric, metric_drop=allowed)
    return untested_metric(criterion, resolve(one.metric), _only(one.outputs, references), labels)


def _is_absent(one: Recognised, references: Sequence[Outputs]) -> bool:
    """Return whether FP32 detects no box, or has one class for all pixels of all samples."""
    if one.boxes is not None:
        return finds_nothing(references, one.outputs, one.boxes)
    return one.kind == "segmentation" and classes_in(_only(one.outputs, references)) < 2


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
        labels: The truth for a single recognised output, one label per sample. For several outputs,
            or if labels do not fit, FP32's own outputs are the truth.

    Returns:
        Scores in the order of `recognised`; none if that is empty. With labels, the required value
        is FP32's own less the default drop. Other outputs, if any, come last as "rel-max": minus
        the largest error, as `Criterion` measures it by default.
    """
    found = []
    for one in recognised:
        truth = labels if len(recognised) == 1 else None
        try:
            score = _score(one, references, candidates, truth)
        except CaseError:
            truth = None
            score = _score(one, references, candidates, truth)
        if untested_part(one, references, truth):
            score = score.model_copy(update={"passed": False, "untested": True})
        found.append(score.model_copy(update=_support(one, references, truth)._asdict()))
    others = others_of(recognised, references[0]) if found else ()
    return (*found, *([_tolerance(others, references, candidates)] if others else ()))


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
        # If no drop is allowed, any drop exceeds it.
        used.append(1 + off / drop if drop else (inf if off > 0 else 1.0))
    if others := others_of(recognised, references[0]):
        used.append(-_tolerance(others, references, candidates).value / DEFAULT_REL_MAX)
    return max(inf if isnan(part) else part for part in used)


def support_of(
    criterion: Criterion, references: Sequence[Outputs], labels: Sequence[Any] | None
) -> Support:
    """Return what a criterion's single metric counts in the truth; nothing if it is not built in.

    Arguments after the first as for `task_scores`.
    """
    if criterion.recognised:
        return _support(criterion.recognised[0], references, labels)
    return support(criterion.metric or "", references, labels)


def _support(
    one: Recognised, references: Sequence[Outputs], labels: Sequence[Any] | None
) -> Support:
    if one.boxes is not None:
        return support_of_boxes(one, references)
    return support(one.metric, _only(one.outputs, references), labels)


def falling(one: Recognised, drop: float) -> Recognised:
    """Return recognised outputs whose metric may fall by `drop` instead of its default."""
    least = one.required + _drop(one, None) - drop
    return one.model_copy(update={"drop": drop, "required": least})


def _drop(one: Recognised, labels: Sequence[Any] | None) -> float:
    if one.drop is not None:
        return one.drop
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
    own, value = (metric(references, of, labels) for of in (references, candidates))
    least = own - _drop(one, labels)
    passed = isfinite(value) and value >= least
    return TaskScore(
        metric=one.metric, outputs=one.outputs, value=value, required=least, passed=passed
    )


def _tolerance(
    names: tuple[str, ...], references: Sequence[Outputs], candidates: Sequence[Outputs]
) -> TaskScore:
    wanted, found = _only(names, references), _only(names, candidates)
    excess = Excess(Criterion(), totals(wanted))
    for expected, given in zip(wanted, found, strict=True):
        excess.update(expected, given)
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
