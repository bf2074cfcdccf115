"""Hints for users who kept the default tolerance although the outputs call for another criterion.

The default compares every number. That is wrong if the outputs are a decision (classes, masks,
boxes), if a few numbers may legitimately differ (integers), or if a constant would pass. The
meaning of an output is guessed from its shape and values, so every hint states its evidence.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from halfwise.metrics.boxes import finds_nothing
from halfwise.metrics.difference import is_discrete
from halfwise.metrics.evidence import Inputs, Look
from halfwise.metrics.kinds import METRIC_OF, first_of, looks
from halfwise.metrics.measures import DEFAULT_REL_MAX, OutputMeasure, Outputs, is_default, totals
from halfwise.metrics.recognised import recognise
from halfwise.metrics.slices import runs
from halfwise.records import Criterion, Evidence, Kind, Recognised
from halfwise.wording import listed, number, percent, verb

KINDS: dict[Kind, str] = {
    "boxes": "boxes",
    "class-scores": "class scores",
    "embedding": "embeddings",
    "flow": "optical flow",
    "heat-map": "heat maps",
    "image": "an image",
    "mask": "a mask",
    "segmentation": "a segmentation",
    "spectrum": "a spectrum",
    "tokens": "tokens",
    "waveform": "a waveform",
}
"""Words for each kind."""
_ADVICE: dict[Kind, str] = {
    "class-scores": "if only the predicted class matters, judge {it}",
    "embedding": "if only the direction matters, judge {it}",
    "flow": "if so, judge {it} in pixels",
    "mask": "if only inside or outside matters, judge {it}",
    "segmentation": "if only the class of each pixel matters, judge {it}",
    "tokens": "if only the chosen tokens matter, judge {it}",
}
_FLOW_LAST = "file.py:function; epe takes NCHW"
SEEN: dict[Evidence, str] = {
    "rows-sum": "rows sum to 1",
    "log-sum": "exponentials of rows sum to 1",
    "one-channel": "one channel within [0, 1]",
    "two-valued": "almost nothing in between",
    "two-channels": "two channels",
    "channels-last": "channels last",
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
    "bins": "bins of a spectrum, as the input",
    "around-zero": "around zero",
    "length-of-input": "as long as an input",
    "within-image": "within the image",
}
"""Words for each kind of evidence."""


def criterion_hints(
    criterion: Criterion, references: Sequence[Outputs], inputs: Inputs | None = None
) -> tuple[str, ...]:
    """Return one sentence for every output, or set of outputs, that the default may misjudge.

    Integers and Booleans come first (judged by agreement), then what the float outputs look like
    (see `kinds.looks`), shown or not. Outputs with the same hint share a sentence.

    Args:
        criterion: As the user gave it, before `effective`.
        references: FP32 outputs by sample; the first eight are examined. May be empty.
        inputs: Shapes of the inputs, on the first sample.

    Returns:
        Sentences in output order. With a metric, there are none; with thresholds other than
        `rel_max`, one for each output whose slices have several scales.
    """
    if not len(references):
        return ()
    if not is_default(criterion):
        return _scale_hints(criterion, references)
    integers = (n for n, array in references[0].items() if is_discrete(array.dtype))
    found = [
        f"Output {name!r} is not floating point, so at least {number(criterion.agreement, 4)} of "
        "its elements must equal the reference's; change the fraction with --agreement."
        for name in integers
    ]
    seen = looks(references, inputs)
    boxes = [look for look in seen if look.kind == "boxes"]
    found += [_boxes_hint(look, references) for look in boxes]
    told = [
        look
        for look in seen
        if look.kind != "boxes" and not is_discrete(references[0][look.outputs[0]].dtype)
    ]
    return (*found, *_merged(told))


def verdict_hints(
    criterion: Criterion, references: Sequence[Outputs], inputs: Inputs | None = None
) -> tuple[str, ...]:
    """Return `unvarying_hint` and `criterion_hints`."""
    hints = criterion_hints(criterion, references, inputs)
    return (*unvarying_hint(criterion, references), *hints)


def fitting_metric(
    criterion: Criterion, references: Sequence[Outputs], inputs: Inputs | None = None
) -> str | None:
    """Return the built-in metric of the first output whose kind the evidence shows.

    None if the user gave a metric, if no kind is shown, or if FP32 finds nothing to judge.
    """
    if criterion.metric is not None:
        return None
    shown = recognise(references, inputs or {})
    return next((one.metric for one in shown if not _finds_nothing(one, references)), None)


def _finds_nothing(look: Look | Recognised, references: Sequence[Outputs]) -> bool:
    how = look.boxes
    return how is not None and finds_nothing(first_of(references), look.outputs, how)


def _boxes_hint(look: Look, references: Sequence[Outputs]) -> str:
    metric = "with --metric detection-f1"
    if not look.shown:
        metric = "by your own detection metric with --metric file.py:function"
    if _finds_nothing(look, references):
        metric = f"on samples with something to detect, as FP32 detects nothing here, {metric}"
    advice = f"whose order and near-ties may change harmlessly: judge them {metric}."
    if len(look.outputs) > 1:
        names = " and ".join(map(repr, look.outputs[:2]))
        return f"Outputs {names} look like boxes and scores, {advice}"
    (name,) = look.outputs
    total = totals([{name: outputs[name]} for outputs in first_of(references)])[name]
    boxes = f"Output {name!r} looks like boxes joined with scores ({list(look.shape)})"
    share, largest = percent(DEFAULT_REL_MAX), number(total.absmax, 4)
    apart = [group for group in total.groups if group.axis is not None]
    if not apart:
        return (
            f"{boxes}: the default tolerance, {share} of an output's largest value, follows the "
            f"boxes (up to {largest}), so every score may be off by about "
            f"{number(DEFAULT_REL_MAX * total.absmax)}. Judge them {metric}, "
            "or limit both errors with --max-abs."
        )
    return (
        f"{boxes}: the default tolerance, {share} of the largest value, follows the scores (up to "
        f"{number(apart[0].largest)}) for scores and the boxes (up to {largest}) for boxes, "
        f"{advice}"
    )


def _scale_hints(criterion: Criterion, references: Sequence[Outputs]) -> tuple[str, ...]:
    """Return a sentence for each output whose small values escape the thresholds."""
    if criterion.metric is not None or criterion.rel_max is not None:
        return ()
    options = {"--snr-db": criterion.snr_db, "--cosine": criterion.cosine}
    given = [option for option, value in options.items() if value is not None]
    if not given:
        return ()
    found = []
    for name, total in totals(first_of(references)).items():
        small = [g for g in total.groups if g.axis is not None and g.largest < total.absmax]
        if small:
            least = min(small, key=lambda group: group.largest)
            where = f"slices {runs(least.ranges(), 4)} of axis {least.axis}"
            found.append(
                f"Output {name!r} has values of several scales ({where} up to "
                f"{number(least.largest)}, others up to {number(total.absmax, 4)}), and the "
                f"largest decide {' and '.join(given)}: give --rel-max too, which holds each "
                "slice to its own scale."
            )
    return tuple(found)


def _merged(found: Sequence[Look]) -> Iterator[str]:
    """Yield one sentence for all outputs with the same hint."""
    groups: dict[Look, list[str]] = {}
    for look in found:
        groups.setdefault(look._replace(outputs=()), []).extend(map(repr, look.outputs))
    for look, names in groups.items():
        outputs = f"{verb(len(names), 'Output', 'Outputs')} {listed(names)}"
        looks_like = verb(len(names), "looks like", "look like")
        if not look.shown and (look.kind == "flow" or not look.evidence):
            looks_like = verb(len(names), "has the shape of", "have the shape of")
        each = ", each" if len(names) > 1 else ""
        seen = ", ".join((str(list(look.shape)), *(SEEN[one] for one in look.evidence)))
        advice = _ADVICE.get(look.kind, "judge {it}").format(it=verb(len(names), "it", "them"))
        advice += f" with --metric {METRIC_OF[look.kind] if look.fits else _FLOW_LAST}"
        yield f"{outputs} {looks_like} {_called(look)} ({seen}{each}): {advice}."


def _called(look: Look) -> str:
    if "channels-last" in look.evidence:
        return f"{KINDS[look.kind]} in NHWC"
    return "class probabilities" if "rows-sum" in look.evidence else KINDS[look.kind]


def unvarying_hint(criterion: Criterion, references: Sequence[Outputs]) -> tuple[str, ...]:
    """Return one sentence if outputs that are the same for all samples would pass.

    If so, the samples prove little.

    The constant is the mean of each output over the samples; for integers, Booleans and strings,
    the first sample's value.

    Args:
        criterion: What is acceptable.
        references: FP32 outputs by sample.

    Returns:
        Nothing with a metric, for fewer than two samples, if shapes differ, or if all outputs are
        empty.
    """
    if criterion.metric is not None or len(references) < 2:
        return ()
    first = references[0]
    if not any(array.size for array in first.values()):
        return ()
    sums = {n: np.zeros(a.shape) for n, a in first.items() if not is_discrete(a.dtype)}
    for outputs in references:
        if any(outputs[name].shape != array.shape for name, array in first.items()):
            return ()
        for name in sums:
            # Infinities of both signs add up to NaN.
            with np.errstate(invalid="ignore", over="ignore"):
                sums[name] += outputs[name]
    constant = {n: sums[n] / len(references) if n in sums else a for n, a in first.items()}
    measures = {name: OutputMeasure(total) for name, total in totals(references).items()}
    for outputs in references:
        for name, measure in measures.items():
            measure.update(outputs[name], constant[name], "")
    errors = {name: measure.result(criterion) for name, measure in measures.items()}
    if not errors or not all(error.passed for error in errors.values()):
        return ()
    most = max(errors.values(), key=lambda error: error.rel_max)
    tighter = " with a tighter tolerance, such as --snr-db," if is_default(criterion) else ""
    return (
        f"The outputs of the samples differ by less than the tolerance, at most "
        f"{number(most.rel_max)} of the largest value from their mean: a constant would pass "
        f"too. Judge them{tighter} or with a metric.",
    )
