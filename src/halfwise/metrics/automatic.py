"""`--metric auto`: each output is judged by the metric of its recognised kind.

If one thing is recognised and no output is left over, its metric is used, as if the user had named
it. Otherwise everything must pass: each metric within its default drop, and unrecognised outputs
within the default tolerance.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

from halfwise.errors import UsageError
from halfwise.metrics.built_in import default_drop, required
from halfwise.metrics.evidence import Inputs
from halfwise.metrics.measures import Outputs
from halfwise.metrics.recognised import (
    BY_LAYOUT,
    metric_of,
    others_of,
    recognise,
    shortfall,
    untested_part,
)
from halfwise.metrics.targets import Metric, shapes_of
from halfwise.metrics.untested import untested_metric, untested_outputs
from halfwise.records import Criterion, Recognised, Unjudged
from halfwise.wording import listed

AUTO = "auto"
"""The metric that depends on the recognised outputs."""


def has_to_see(criterion: Criterion) -> bool:
    """Return whether the metric depends on FP32's outputs and has not been settled yet."""
    return criterion.metric in (AUTO, *BY_LAYOUT) and not criterion.recognised


def settle(
    criterion: Criterion, references: Sequence[Outputs], inputs: Inputs, *, labelled: bool
) -> Criterion:
    """Return the criterion with "auto" resolved and the outputs that its metric judges.

    Args:
        criterion: Its metric is "auto", or one that needs the layout of boxes.
        references: FP32 outputs by sample; the first eight are examined.
        inputs: Shape of every input, on the first sample.
        labelled: Whether there are labels.

    Raises:
        UsageError: nothing is recognised, or no boxes for a metric of boxes; or labels are given
            for boxes, or for several outputs at once.
    """
    found = recognise(references, inputs)
    if criterion.metric != AUTO:
        name = str(criterion.metric)
        boxes = [one for one in found if one.boxes is not None]
        if not boxes:
            raise UsageError(
                f"The metric {name} cannot read boxes from the outputs without guesswork: "
                f"{shapes_of(references[0])}.",
                "Give your own metric: --metric file.py:function.",
            )
        one = boxes[0].model_copy(update={"metric": name, "required": required(name)})
        _demand_unlabelled([one], labelled=labelled)
        return criterion.model_copy(update={"recognised": (one,)})
    if not found:
        raise UsageError(
            f"--metric auto recognises none of the outputs: {shapes_of(references[0])}.",
            "Name a metric, give your own as --metric file.py:function, or leave --metric out "
            "for the default tolerance.",
        )
    _demand_unlabelled(found, labelled=labelled)
    update: dict[str, Any] = {
        "recognised": found,
        "metric_drop": 1.0,
        "drop_source": "each by its own default",
    }
    if len(found) == 1 and not others_of(found, references[0]):
        usual = default_drop(found[0].metric, labelled=labelled)
        assert usual is not None
        update |= {"metric": found[0].metric, "metric_drop": usual.drop}
        update |= {"drop_source": usual.source}
    return criterion.model_copy(update=update)


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
    found = [
        one
        for part in criterion.recognised
        for one in untested_part(part, references, labels, drop)
    ]
    rest = others_of(criterion.recognised, references[0])
    only = [{name: outputs[name] for name in rest} for outputs in references]
    beside = criterion.metric == AUTO and rest
    return (*found, *(untested_outputs(Criterion(), only) if beside else ()))


def _together(
    recognised: Sequence[Recognised],
    reference: Sequence[Outputs],
    candidate: Sequence[Outputs],
    labels: Sequence[Any] | None,
) -> float:
    return 1.0 - shortfall(recognised, reference, candidate, labels)


def _demand_unlabelled(found: Sequence[Recognised], *, labelled: bool) -> None:
    """Raise UsageError for labels that no metric takes, or that could belong to several outputs."""
    if not labelled:
        return
    if len(found) > 1:
        told = ", ".join(f"{one.kind} in {listed(one.outputs)}" for one in found)
        raise UsageError(
            f"--metric auto recognises several outputs ({told}), but labels fit only one.",
            "Name the metric that the labels are for, or leave them out.",
        )
    if found[0].boxes is not None:
        raise UsageError(
            f"The metric {found[0].metric} takes no labels: FP32's detections are the truth.",
            "Leave the labels out, or give your own metric: --metric file.py:function.",
        )
