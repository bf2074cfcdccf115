"""What a metric compares: the outputs that it takes, their targets, and the candidate's."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from halfwise.errors import CaseError
from halfwise.metrics.difference import is_discrete
from halfwise.metrics.measures import Outputs
from halfwise.metrics.slices import FLOOR
from halfwise.records.judged import Unit
from halfwise.wording import count

CAP_DB = 100.0
"""PSNR and SNR of what is equal: infinite by definition, but differences must stay
finite."""
_ERRORS = ("epe", "rel-max")
WORST = "worst-"
"""Before the name of a metric: its value for the worst sample alone."""


def rises(name: str) -> bool:
    """Return whether the metric, as its field defines it, rises as outputs get worse."""
    return name.removeprefix(WORST) in _ERRORS


def usual(name: str, value: float) -> float:
    """Return a metric's value as its field states it: negated for a metric that `rises`.

    Zero is 0.0, never -0.0, NaN stays NaN, and infinities change sign like other values.
    """
    return (0.0 - value if rises(name) else value) + 0.0


class DefaultDrop(NamedTuple):
    """How far a metric may fall by default, and why.

    Attributes:
        drop: In the metric's own unit, > 0.
        source: Its origin, in a few words.
    """

    drop: float
    source: str


_POINT = DefaultDrop(0.01, "MLPerf's 99 % of FP32")
_PLACE = DefaultDrop(0.15, "a line of a pixel's width fills a fifth of a place")
_PIXELS = DefaultDrop(0.1, "a fifth of Middlebury's R0.5")


class _Convention(NamedTuple):
    """Defaults of a built-in metric.

    Attributes:
        best: Its value for the FP32 outputs if they are the truth.
        near_fp32: Allowed drop from that.
        labelled: Allowed drop from FP32's value if labels are the truth.
        is_share: Whether it is within [0, 1].
    """

    best: float
    near_fp32: DefaultDrop
    labelled: DefaultDrop
    is_share: bool = False


_SHARE = _Convention(1.0, _POINT, _POINT, is_share=True)
_TENTH = DefaultDrop(0.1, "the literature claims no smaller difference")
_SURE = DefaultDrop(0.1, "trained networks are 4 to 17 % off: Guo et al. 2017")
_TURN = DefaultDrop(0.001, "what FP16 exports of embedding models are held to")
_SIGNAL = _Convention(
    CAP_DB,
    DefaultDrop(CAP_DB - 30.0, "30 dB against FP32's own signal, 0.1 dB of the truth"),
    _TENTH,
)
_CONVENTIONS: dict[str, _Convention] = {
    "top1": _SHARE,
    "confidence": _Convention(1.0, _SURE, _SURE, is_share=True),
    "token-agreement": _SHARE,
    "mask-iou": _SHARE,
    "mean-iou": _SHARE,
    "detection-f1": _SHARE,
    "map": _SHARE,
    "cells": _SHARE,
    "places": _Convention(1.0, _PLACE, _PLACE, is_share=True),
    "peaks": _SHARE,
    "keypoints": _SHARE,
    "cosine": _Convention(1.0, _TURN, _TURN),
    "snr": _SIGNAL,
    "psnr": _Convention(
        CAP_DB,
        DefaultDrop(CAP_DB - 40.0, "40 dB against FP32's own output, taken as invisible"),
        _TENTH,
    ),
    "epe": _Convention(0.0, _PIXELS, _PIXELS),
}

_ALONE = DefaultDrop(0.5, "no sample may be lost")
_BLOCK = DefaultDrop(CAP_DB - 30.0, "8-bit images are coded at 30 to 50 dB")
_EACH = DefaultDrop(0.05, "no sample may lose one in twenty")
OF_WORST: dict[str, DefaultDrop] = {
    "token-agreement": _ALONE,
    "mask-iou": _ALONE,
    "mean-iou": _ALONE,
    "detection-f1": DefaultDrop(0.25, "no sample may lose one box in four, beside one"),
    "cells": _EACH,
    "peaks": _EACH,
    "keypoints": _EACH,
    "epe": DefaultDrop(0.5, "Middlebury's smallest error"),
    "psnr": _BLOCK,
}
"""How far a metric may fall on one sample, where it is a mean over all that would hide one."""

UNITS: dict[str, Unit] = {
    "top1": "rows",
    "confidence": "rows",
    "token-agreement": "tokens",
    "mask-iou": "mask pixels",
    "mean-iou": "pixels",
    "detection-f1": "boxes",
    "map": "boxes",
    "cells": "cells",
    "keypoints": "keypoints",
    "cosine": "vectors",
    "snr": "signals",
    "peaks": "peaks",
    "psnr": "values",
    "epe": "pixels",
}
"""What each metric counts."""
BUILT_IN = tuple(_CONVENTIONS)
"""Names of the built-in metrics."""
SHARES = tuple(name for name, holds in _CONVENTIONS.items() if holds.is_share)
"""Built-in metrics with values in [0, 1]."""


def default_drop(metric: str, *, labelled: bool) -> DefaultDrop | None:
    """Return the drop of a built-in metric; None for others, whose scale only the user knows.

    Args:
        metric: Its name.
        labelled: Whether it uses labels; otherwise the FP32 outputs are the truth.
    """
    if metric.startswith(WORST):
        return OF_WORST[metric.removeprefix(WORST)]
    holds = _CONVENTIONS.get(metric)
    return holds and (holds.labelled if labelled else holds.near_fp32)


def required(metric: str) -> float:
    """Return the smallest passing value of a built-in metric if FP32's outputs are the truth."""
    drop = default_drop(metric, labelled=False)
    assert drop is not None
    return _CONVENTIONS[metric.removeprefix(WORST)].best - drop.drop


def check_labels(metric: str | None, labels: Sequence[Any]) -> None:
    """Check that labels of a built-in metric are numbers; the metric checks these with the outputs.

    Args:
        metric: Its name; metrics that are not built in accept any labels.
        labels: One per sample.

    Raises:
        CaseError: a label is text or None.
    """
    if metric not in BUILT_IN:
        return
    for index, label in enumerate(labels):
        for value in label.values() if isinstance(label, Mapping) else (label,):
            if isinstance(value, str) or value is None:
                raise CaseError(
                    f"The metric {metric} takes numbers as labels, but label {index} is {value!r}.",
                    "For top1, give the number of the class, from 0; for other metrics, arrays of "
                    "the output's shape.",
                )


_CLASS_OUTPUTS = ("logits", "prob", "score", "output")
SIDE = 8
"""Least height and width of a map."""
OWN_METRIC = "Write your own metric and give it as --metric file.py:function."

Metric = Callable[[Sequence[Outputs], Sequence[Outputs], Sequence[Any] | None], float]
"""Called with outputs of the reference, of a candidate, and labels; higher is better."""


class Score(float):
    """The value of a built-in metric.

    Attributes:
        evidence: How many units of the truth are behind it, see `UNITS`.
    """

    evidence: int

    def __new__(cls, value: float, evidence: int) -> "Score":
        """Return the value with what it rests on."""
        score = super().__new__(cls, value)
        score.evidence = evidence
        return score


def evidence_of(name: str, value: float) -> tuple[int | None, Unit | None]:
    """Return what a metric counts in the truth, and of what; None if its value does not tell."""
    return (value.evidence, UNITS[name]) if isinstance(value, Score) else (None, None)


def by_sample(
    reference: Sequence[Outputs],
    candidate: Sequence[Outputs],
    labels: Sequence[Any] | None,
) -> Iterator[tuple[Outputs, Outputs, Any]]:
    """Yield the reference's and the candidate's outputs of every sample, and its label or None.

    Raises:
        CaseError: there are not as many labels as samples.
    """
    if labels is not None and len(labels) != len(reference):
        raise CaseError(
            f"There are {len(labels)} labels for {len(reference)} samples.",
            "Give one label per sample, in the order of the samples.",
        )
    truths = [None] * len(reference) if labels is None else labels
    return zip(reference, candidate, truths, strict=True)


def without_trailing_ones(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array without trailing axes of length 1 beyond two."""
    while array.ndim > 2 and array.shape[-1] == 1:
        array = array[..., 0]
    return array


def class_axis(shape: tuple[int, ...]) -> int:
    """Return the axis of the classes of a map with four axes.

    3 for [N, height, width, classes] if both sides are more than twice the number of classes;
    otherwise 1, as in [N, classes, height, width]. A map with classes first is mistaken only if it
    has more than twice as many classes as columns, and more than twice as many rows.
    """
    return 3 if 2 * shape[3] < min(shape[1:3]) else 1


def images(array: NDArray[Any]) -> NDArray[Any]:
    """Return an output as [images, ...]: four or more axes are a batch, fewer are one image."""
    return array if array.ndim > 3 else array[None]


def by_target(
    reference: Sequence[Outputs],
    candidate: Sequence[Outputs],
    labels: Sequence[Any] | None,
    outputs: Callable[[Outputs], Sequence[str]],
) -> Iterator[tuple[str, NDArray[np.float64], NDArray[Any]]]:
    """Yield the name, the target and the candidate's array of every output of every sample."""
    for expected, actual, label in by_sample(reference, candidate, labels):
        names = outputs(expected)
        for name in names:
            yield name, target_of(expected[name], label, name, names), actual[name]


def ends_of(
    reference: Sequence[Outputs],
    labels: Sequence[Any] | None,
    outputs: Callable[[Outputs], Sequence[str]],
) -> dict[str, tuple[float, float]]:
    """Return the smallest and the largest finite target of each output; inf, -inf without any."""
    ends: dict[str, tuple[float, float]] = {}
    for name, target, _ in by_target(reference, reference, labels, outputs):
        values, (low, high) = target[np.isfinite(target)], ends.get(name, (np.inf, -np.inf))
        ends[name] = (
            min(low, float(values.min(initial=np.inf))),
            max(high, float(values.max(initial=-np.inf))),
        )
    return ends


def at_least_one(metric: str, count: int) -> int:
    """Return `count`; raise CaseError unless it is above 0."""
    if not count:
        raise CaseError(f"The metric {metric} has nothing to compare: the outputs are empty.")
    return count


def float_outputs(outputs: Outputs) -> tuple[str, ...]:
    """Return the names of the float outputs; CaseError without any."""
    names = tuple(name for name, array in outputs.items() if not is_discrete(array.dtype))
    if not names:
        raise lacking("needs a float output", outputs)
    return names


def map_outputs(outputs: Outputs) -> tuple[str, ...]:
    """Return the names of the float outputs, or without any those of 8-bit images.

    CaseError if none has two axes of 8 or more.
    """
    floats = tuple(name for name, array in outputs.items() if not is_discrete(array.dtype))
    names = floats or tuple(name for name, a in outputs.items() if a.dtype == np.uint8)
    if not any(sum(length >= SIDE for length in outputs[name].shape) > 1 for name in names):
        raise lacking("psnr needs an image or a map [..., height, width]", outputs)
    return names


def flow_outputs(outputs: Outputs) -> tuple[str, ...]:
    """Return the names of the outputs [*, 2, height, width]; CaseError without any."""
    names = tuple(
        name
        for name in float_outputs(outputs)
        if outputs[name].ndim >= 3 and outputs[name].shape[-3] == 2
    )
    if not names:
        raise lacking("epe needs a flow output [..., 2, height, width]", outputs)
    return names


def token_outputs(outputs: Outputs) -> tuple[str, ...]:
    """Return the names of integer outputs, or else of sequence scores; CaseError if there are none.

    Scores are the class output if it is [*, tokens, vocabulary], with three or more axes.
    """
    integers = tuple(name for name, array in outputs.items() if array.dtype.kind in "iu")
    if integers:
        return integers
    name = class_output(outputs)
    if outputs[name].ndim < 3 or outputs[name].shape[-1] == 1:
        needs = "token-agreement needs integers or scores [..., tokens, vocabulary]"
        raise lacking(needs, outputs)
    return (name,)


def class_output(outputs: Outputs) -> str:
    """Return the name of the class output, chosen as in `top1`; CaseError if there is none."""
    names = float_outputs(outputs)
    if len(names) == 1:
        return names[0]
    for word in _CLASS_OUTPUTS:
        exact = [name for name in names if name.lower() == word]
        matches = exact or [name for name in names if word in name.lower()]
        if len(matches) == 1:
            return matches[0]
    raise CaseError(
        f"The metric top1 cannot tell which output holds the classes: {shapes_of(outputs)}.",
        OWN_METRIC,
    )


def class_rows(name: str, array: NDArray[Any]) -> NDArray[np.float64]:
    """Return f64[rows, classes] of a class output [*rows, classes, 1, …]."""
    shape = without_trailing_ones(array).shape
    if not shape or shape[-1] < 2:
        raise CaseError(
            f"The metric top1 needs at least two classes along the last axis, but output {name!r} "
            f"has shape {list(array.shape)}.",
            OWN_METRIC,
        )
    return array.reshape(-1, shape[-1]).astype(np.float64)


def softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the softmax of logits along the last axis; NaN in rows with NaN or +inf."""
    with np.errstate(invalid="ignore"):
        powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
        return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


def sigmoid(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the sigmoid of each logit; NaN of NaN."""
    with np.errstate(over="ignore"):
        return np.asarray(1 / (1 + np.exp(-logits)))


def class_labels(label: object, scores: NDArray[np.float64], name: str) -> NDArray[Any]:
    """Return the classes [rows] that a label of output `name` holds.

    Args:
        label: A number or numbers.
        scores: [rows, classes].
        name: The output.

    Raises:
        CaseError: they are not one number for each row, or not in [0, classes).
    """
    classes, (rows, width) = np.ravel(np.asarray(label)), scores.shape
    if classes.size != rows or classes.dtype.kind not in "iuf":
        raise CaseError(
            f"The metric top1 needs {count(rows, 'class number')} for a sample of output {name!r}, "
            f"but the label holds {classes.size} of type {classes.dtype}.",
            "Give one integer class per row of the class output.",
        )
    fits = (classes >= 0) & (classes < width) & (classes == np.floor(classes))
    if not fits.all():
        raise CaseError(
            f"A label is class {classes[~fits][0]}, but output {name!r} has {width} classes: 0 to "
            f"{width - 1}.",
            "Count classes from 0, and remove samples without a class.",
        )
    return classes


def target_of(
    output: NDArray[Any], label: object, name: str, names: Sequence[str]
) -> NDArray[np.float64]:
    """Return the label of output `name` in the output's shape; without a label, the output itself.

    Raises:
        CaseError: the label is of another shape or type, or does not name its outputs.
    """
    if label is None:
        return output.astype(np.float64)
    if isinstance(label, Mapping) and name in label:
        label = label[name]
    elif isinstance(label, Mapping) or len(names) > 1:
        raise CaseError(
            f"A label must give a target for each of the outputs {', '.join(names)}.",
            "Give one array for a single output, or a mapping of output names to arrays.",
        )
    array = np.asarray(label)
    if array.dtype.kind not in "biuf" or _lengths(array.shape) != _lengths(output.shape):
        raise CaseError(
            f"The label for output {name!r} has shape {list(array.shape)} and type {array.dtype}, "
            f"but the output has shape {list(output.shape)}."
        )
    return array.reshape(output.shape).astype(np.float64)


def _lengths(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(length for length in shape if length != 1)


def lacking(needs: str, outputs: Outputs) -> CaseError:
    """Return the error that no output is what a metric needs, such as "needs a float output"."""
    text = f"The metric {needs}, but the model has only {shapes_of(outputs)}."
    return CaseError(text, OWN_METRIC)


def shapes_of(outputs: Outputs) -> str:
    """Return the outputs with their types and shapes, for messages."""
    return ", ".join(
        f"{name} ({array.dtype} {list(array.shape)})" for name, array in outputs.items()
    )


Floats = NDArray[np.float64]


def cosine(
    reference: Sequence[Outputs],
    candidate: Sequence[Outputs],
    labels: Sequence[Any] | None,
) -> float:
    """Return the smallest cosine similarity of all vectors, in [-1, 1].

    A vector runs along the last axis of a float output; beyond two, trailing axes of length 1 are
    dropped. Zero vectors have no direction: a zero target is left out, and a zero candidate counts
    as 0. A candidate that is not finite, or has another shape, gives -inf.

    Args:
        reference: Float outputs [*vectors, dimensions]; the target if there are no labels.
        candidate: The same outputs, any float type.
        labels: Per sample the target vectors, as for `psnr`, or None.

    Raises:
        CaseError: There is no float output, every target is zero, or a label does not fit.
    """
    return _worst(_cosines, reference, candidate, labels)


def cosine_and_length(
    reference: Sequence[Outputs],
    candidate: Sequence[Outputs],
    labels: Sequence[Any] | None,
) -> float:
    """Return the smallest cosine similarity of all vectors, lowered if their lengths differ.

    The smaller of the cosine and 1 - d²/2, with d the distance of a pair over the target's length;
    both agree for equal lengths. A vector that feeds other layers can have the right direction and
    still be wrong. Arguments and errors as for `cosine`; -inf to 1.
    """
    return _worst(_likenesses, reference, candidate, labels)


def snr(
    reference: Sequence[Outputs],
    candidate: Sequence[Outputs],
    labels: Sequence[Any] | None,
) -> float:
    """Return the smallest signal-to-noise ratio of all signals in dB, ≤ 100.

    10 log10(Σ s² / Σ (s - c)²) of the target s and the candidate c. A signal is one element along
    the first axis of a float output, or all of an output with one axis. If its power is more than
    60 dB below the loudest of the output, that level counts instead: there a sound is taken to have
    died away (ISO 3382's reverberation time). Non-finite target elements are left out; a candidate
    that is not finite, or has another shape, gives -inf.

    Args:
        reference: Float outputs [*shape]: waveforms, spectra; the target if there are no labels.
        candidate: The same outputs, any float type.
        labels: Per sample the target signals, as for `psnr`, or None.

    Raises:
        CaseError: There is no float output, every target is silent, or a label does not fit.
    """
    powers: dict[str, list[tuple[Floats, Floats]]] = {}
    for name, target, actual in by_target(reference, candidate, labels, float_outputs):
        if not target.size:
            continue
        signals = _signals(np.where(np.isfinite(target), target, 0))
        noise = np.full(len(signals), np.inf)
        if actual.shape == target.shape:
            with np.errstate(invalid="ignore", over="ignore"):
                finite = np.where(np.isfinite(target), actual, 0).astype(np.float64)
                noise = ((_signals(finite) - signals) ** 2).mean(axis=1)
        powers.setdefault(name, []).append(((signals**2).mean(axis=1), noise))
    loudest = {name: max(float(p.max()) for p, _ in pairs) for name, pairs in powers.items()}
    at_least_one("snr", sum(power > 0 for power in loudest.values()))
    ratios = [
        _decibels(*pair, FLOOR**2 * loudest[n])
        for n, pairs in powers.items()
        for pair in pairs
        if loudest[n]
    ]
    every = np.concatenate(ratios)
    return Score(float(every.min()), every.size)


def _signals(array: Floats) -> Floats:
    return array.reshape(len(array) if array.ndim > 1 else 1, -1)


def _decibels(power: Floats, noise: Floats, least: float) -> Floats:
    with np.errstate(divide="ignore"):
        ratio = 10 * np.log10(np.maximum(power, least) / noise)
    # The noise of a non-finite candidate is NaN or inf.
    return np.where(np.isfinite(noise), np.minimum(ratio, CAP_DB), -np.inf)


def _worst(
    measure: Callable[[Floats, Floats], Floats],
    reference: Sequence[Outputs],
    candidate: Sequence[Outputs],
    labels: Sequence[Any] | None,
) -> float:
    """Return the smallest `measure`, at most 1, over the vectors whose target is not zero."""
    worst, count = 1.0, 0
    for _, target, actual in by_target(reference, candidate, labels, float_outputs):
        rows = _rows(target)
        valid = np.isfinite(rows).all(axis=1) & rows.any(axis=1)
        count += int(valid.sum())
        if actual.shape != target.shape:
            worst = -np.inf
        elif valid.any():
            values = measure(rows[valid], _rows(actual.astype(np.float64))[valid])
            # NaN ranks lowest.
            worst = min(worst, float(np.where(np.isnan(values), -np.inf, values).min()))
    return Score(worst, at_least_one("cosine", count))


def _rows(array: NDArray[Any]) -> NDArray[Any]:
    array = without_trailing_ones(array)
    return array.reshape(-1, array.shape[-1]) if array.ndim else array.reshape(1, 1)


def _cosines(target: Floats, actual: Floats) -> Floats:
    """Return the cosine of each pair of rows; NaN if the candidate is not finite."""
    with np.errstate(invalid="ignore", over="ignore"):
        length = np.linalg.norm(target, axis=1) * np.linalg.norm(actual, axis=1)
        dot = (target * actual).sum(axis=1)
        cosines = np.divide(dot, length, out=0 * dot, where=length != 0)
    return np.asarray(np.clip(cosines, -1, 1))


def _likenesses(target: Floats, actual: Floats) -> Floats:
    """Return 1 - d²/2 of each pair of rows, or its cosine if less; NaN as for `_cosines`."""
    with np.errstate(invalid="ignore", over="ignore"):
        distance = ((target - actual) ** 2).sum(axis=1) / (target**2).sum(axis=1)
        return np.asarray(np.minimum(_cosines(target, actual), 1 - distance / 2))
