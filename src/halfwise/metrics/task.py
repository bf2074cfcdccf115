"""Built-in task metrics: what the user cares about, as one number; higher is better.

Every metric is called as `metric(reference, candidate, labels)`, each a sequence over the same
samples: outputs of the FP32 model, outputs of the model under judgement, and labels or None. The
reference's own value is `metric(reference, reference, labels)`.

A candidate's NaN, infinities or wrong shape lower the value and raise nothing; outputs or labels
that do not suit a metric raise `CaseError`. Arithmetic is float64.
"""

from collections.abc import Sequence
from math import fsum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfwise.errors import CaseError
from halfwise.metrics.difference import is_discrete
from halfwise.metrics.evidence import sums_to_one
from halfwise.metrics.measures import Outputs
from halfwise.metrics.peaks import peaks
from halfwise.metrics.targets import (
    CAP_DB,
    OWN_METRIC,
    Metric,
    Score,
    at_least_one,
    by_sample,
    by_target,
    class_axis,
    class_labels,
    class_output,
    class_rows,
    cosine,
    ends_of,
    float_outputs,
    flow_outputs,
    images,
    map_outputs,
    sigmoid,
    snr,
    softmax,
    token_outputs,
)

Classes = NDArray[np.int64]
_NONE = -1
"""The class of a place that has none, because it is not finite or missing."""


def token_agreement(
    reference: Sequence[Outputs],
    candidate: Sequence[Outputs],
    labels: Sequence[Any] | None,
) -> float:
    """Return the fraction of tokens that are right, in [0, 1].

    Tokens are the elements of every integer output; without one, the indices of the largest scores
    along the last axis of the class output (see `top1`), the first among equals. If sequences
    differ in length, places that only one of them has are wrong; so is a place with NaN. A token
    that makes up more than half of the right ones, for example CTC's blank or padding, proves
    nothing where both sides have it: such places do not count. 1 if no place counts.

    Args:
        reference: Integer outputs [*, tokens] or scores [*, tokens, vocabulary].
        candidate: The same outputs, of any number of tokens.
        labels: Per sample the right tokens, in the shape of the reference's; places with a label
            below 0 are left out. Or None.

    Raises:
        CaseError: No output holds tokens, there are none at all, or a label has another shape.
    """
    right = count = places = tokens = 0
    for truth, guess in _pairs(reference, candidate, labels):
        filler = _is_filler(truth)
        counted = ~((truth == guess) & filler)
        tokens += int((~filler).sum())
        right += int(((truth == guess) & counted & (truth != _NONE)).sum())
        count += int(counted.sum())
        places += truth.size
    at_least_one("token-agreement", places)
    return Score(right / count if count else 1.0, tokens)


def mean_iou(
    reference: Sequence[Outputs],
    candidate: Sequence[Outputs],
    labels: Sequence[Any] | None,
) -> float:
    """Return the intersection over union of pixels, averaged over classes, then images, in [0, 1].

    The class of a pixel is the index of the largest score of the class output [N, classes, height,
    width] or [N, height, width, classes] (`class_axis`; see `top1` for which output that is), or
    the element of an integer output. The average is over the classes in an image's target, then
    over images, so the loss of a small region in one image shows. Without labels, images of one
    class that keep it are left out; 1 if all are. A pixel with NaN has no class, and neither has
    any pixel of a candidate of another shape.

    Args:
        reference: One output as above; the target where there are no labels.
        candidate: The same output.
        labels: Per sample the class of each pixel, [N, height, width] up to axes of length 1; those
            outside 0 to classes - 1 are left out. Or None.

    Raises:
        CaseError: No output has this form, or a label is missing or of another shape.
    """
    shares, classes, pixels = list[float](), set[int](), 0
    for expected, actual, label in by_sample(reference, candidate, labels):
        name = _pixel_output(expected)
        shape = expected[name].shape
        axis = class_axis(shape) if len(shape) == 4 else 1
        truth, guess = _pixels(expected[name], axis), _pixels(actual[name], axis)
        if guess.shape != truth.shape:
            guess = np.full(truth.shape, _NONE)
        if label is not None:
            most = np.inf if is_discrete(expected[name].dtype) else shape[axis]
            truth = _labels("mean-iou", label, truth.shape, name)
            truth = np.where(truth < most, truth, _NONE)
        for wanted, guessed in zip(truth, guess, strict=True):
            valid = wanted >= 0 if label is not None else ...
            ours, theirs = wanted[valid], guessed[valid]
            kinds = [int(kind) for kind in np.unique(ours) if kind != _NONE]
            classes.update(kinds)
            pixels += ours.size
            if kinds and (len(kinds) > 1 or label is not None or (ours != theirs).any()):
                shares.append(
                    fsum(_overlap(ours == kind, theirs == kind) for kind in kinds) / len(kinds)
                )
    # Where all pixels have one class, none tells anything.
    several = at_least_one("mean-iou", len(classes)) > 1
    return Score(fsum(shares) / len(shares) if shares else 1.0, pixels if several else 0)


def _overlap(ours: NDArray[np.bool_], theirs: NDArray[np.bool_]) -> float:
    return int(np.count_nonzero(ours & theirs)) / int(np.count_nonzero(ours | theirs))


def _pairs(
    reference: Sequence[Outputs], candidate: Sequence[Outputs], labels: Sequence[Any] | None
) -> list[tuple[Classes, Classes]]:
    """Return the right and the actual class of each output at all places of all samples."""
    pairs: dict[str, list[tuple[Classes, Classes]]] = {}
    for expected, actual, label in by_sample(reference, candidate, labels):
        for name in token_outputs(expected):
            truth, guess = _tokens(expected[name]), _tokens(actual[name])
            if label is not None:
                truth = _labels("token-agreement", label, truth.shape, name)
            if guess.ndim != truth.ndim:
                guess = np.full(truth.shape, _NONE)
            truth, guess = _of_one_length(truth, guess)
            valid = truth >= 0 if label is not None else ...
            pairs.setdefault(name, []).append((truth[valid].ravel(), guess[valid].ravel()))
    return [
        (np.concatenate([t for t, _ in each]), np.concatenate([g for _, g in each]))
        for each in pairs.values()
    ]


def _is_filler(truth: Classes) -> NDArray[np.bool_]:
    """Return where the token is the majority token."""
    tokens, counts = np.unique(truth[truth != _NONE], return_counts=True)
    return np.isin(truth, tokens[counts > counts.sum() / 2])


def _tokens(array: NDArray[Any]) -> Classes:
    return _largest(array, -1) if not is_discrete(array.dtype) else array.astype(np.int64)


def _pixels(array: NDArray[Any], axis: int) -> Classes:
    if is_discrete(array.dtype):
        return array.astype(np.int64)
    return _largest(array, axis) if array.ndim == 4 else np.full(array.shape, _NONE)


def _largest(scores: NDArray[Any], axis: int) -> Classes:
    if not scores.ndim or not scores.shape[axis]:
        return np.full(scores.shape[:-1], _NONE)
    # The largest of values with a NaN is NaN, which is no class.
    bad = np.isnan(scores.max(axis=axis))
    return np.asarray(np.where(bad, _NONE, scores.argmax(axis=axis)), np.int64)


def _pixel_output(outputs: Outputs) -> str:
    maps = [n for n, a in outputs.items() if a.dtype.kind in "iu" and a.ndim >= 3]
    if len(maps) == 1:
        return maps[0]
    name = class_output(outputs)
    shape = outputs[name].shape
    if len(shape) != 4 or shape[class_axis(shape)] < 2:
        raise CaseError(
            f"The metric mean-iou needs scores [N, classes, height, width] or [N, height, width, "
            f"classes] with at least two classes, but output {name!r} has shape {list(shape)}.",
            OWN_METRIC,
        )
    return name


def _of_one_length(truth: Classes, guess: Classes) -> tuple[Classes, Classes]:
    """Return both padded to the larger size along each axis, with places of no class."""
    shape = np.maximum(truth.shape, guess.shape).astype(int)
    padded = [np.full(shape, _NONE) for _ in range(2)]
    for whole, part in zip(padded, (truth, guess), strict=True):
        whole[tuple(slice(length) for length in part.shape)] = part
    return padded[0], padded[1]


def _labels(metric: str, label: object, shape: tuple[int, ...], name: str) -> Classes:
    classes = np.asarray(label)
    if classes.dtype.kind not in "biuf" or classes.size != np.prod(shape):
        raise CaseError(
            f"The metric {metric} needs one class for each place of output {name!r}, shape "
            f"{list(shape)}, but the label has shape {list(classes.shape)} and type "
            f"{classes.dtype}.",
            "Give one integer per place; negative ones are ignored.",
        )
    return classes.reshape(shape).astype(np.int64)


_STEP = 1 / 256
"""Relative to the range of an image: one step of 8 bits."""


def metric_loss(
    metric: Metric,
    references: Sequence[Outputs],
    candidates: Sequence[Outputs],
    labels: Sequence[Any] | None,
) -> float:
    """Return how far `metric` falls from the reference's own value; NaN if it has none."""
    best = metric(references, references, labels)
    return best - metric(references, candidates, labels)


def top1(
    reference: Sequence[Outputs],
    candidate: Sequence[Outputs],
    labels: Sequence[Any] | None,
) -> float:
    """Return the fraction of rows whose largest class is the right one, in [0, 1].

    A row is one vector along the last axis of the class output: the only float output, otherwise
    the only one with "logits", "prob", "score" or "output" in its name, in that order. Trailing
    axes of length 1 beyond two are dropped ([1, 1000, 1, 1] has 1000 classes). Of equal classes,
    the first is the largest. A candidate row with a NaN is wrong, and so is every row of a
    candidate with another shape.

    Args:
        reference: Float outputs [*rows, classes], classes ≥ 2; the truth if there are no labels.
        candidate: The same outputs, any float type.
        labels: Per sample the right class of each row, as integers in row order, or None.

    Raises:
        CaseError: The class output is ambiguous, has fewer than two classes or no rows, or labels
            do not match the rows.
    """
    right = rows = 0
    for expected, actual, label in by_sample(reference, candidate, labels):
        name = class_output(expected)
        scores = class_rows(name, expected[name])
        truth = np.argmax(scores, axis=-1) if label is None else class_labels(label, scores, name)
        rows += len(scores)
        if actual[name].shape == expected[name].shape:
            guess = class_rows(name, actual[name])
            wrong = np.isnan(guess).any(axis=-1)
            right += int(np.count_nonzero((np.argmax(guess, axis=-1) == truth) & ~wrong))
    return Score(right / at_least_one("top1", rows), rows)


def confidence(
    reference: Sequence[Outputs],
    candidate: Sequence[Outputs],
    _labels: Sequence[Any] | None,
) -> float:
    """Return 1 less the largest change of a probability over the largest of its row, in [0, 1].

    Among many classes all may be improbable. Rows as for `top1`; those of which one does not sum to
    1 within [0, 1] are logits, of which both softmax and sigmoid count: classes may exclude each
    other or not. FP32's own probabilities are the truth, also with labels; rows in which it has
    NaN, +inf or nothing but -inf have none and are left out. A candidate row with a NaN changes by
    1, and so does every row of a candidate with another shape.

    Raises:
        CaseError: The class output is ambiguous, has fewer than two classes or no rows.
    """
    changes, rows = [0.0], 0
    for expected, actual, _ in by_sample(reference, candidate, None):
        name = class_output(expected)
        scores = class_rows(name, expected[name])
        rows += len(scores)
        if actual[name] is expected[name]:  # for the reference's own value: nothing changes
            continue
        if actual[name].shape != expected[name].shape:
            changes.append(1.0)
            continue
        known = np.isfinite(scores.max(axis=-1))
        scores, guess = scores[known], class_rows(name, actual[name])[known]
        pairs = [(scores, guess)]
        if not sums_to_one(scores, -1):
            pairs = [(f(scores), f(guess)) for f in (softmax, sigmoid)]
        for pair in pairs:
            largest = pair[0].max(axis=-1, keepdims=True)
            change = np.abs(pair[0] - pair[1]) / np.where(largest > 0, largest, 1)
            changes.append(min(1.0, float(np.nan_to_num(change, nan=1.0).max(initial=0.0))))
    return Score(1.0 - max(changes), at_least_one("confidence", rows))


def mask_iou(
    reference: Sequence[Outputs],
    candidate: Sequence[Outputs],
    labels: Sequence[Any] | None,
) -> float:
    """Return the intersection over union of masks (probability > 0.5), averaged, in [0, 1].

    A mask is one float output of one sample; with four or more axes, each index of the first is one
    mask. The average is over masks, as MLPerf's DICE is over cases, so losing a small mask counts
    as much as losing a large one. A mask that is empty on both sides is ignored; one that is empty
    only in the target counts 0; if all are ignored the result is 1. NaN is outside the mask. A
    candidate with another shape intersects nothing.

    Args:
        reference: Float outputs [*shape] of probabilities; the truth if there are no labels.
        candidate: The same outputs, any float type.
        labels: Per sample a mask (> 0.5 is inside: Booleans, 0/1, 0/255 or probabilities) of the
            output's shape up to axes of length 1; with several float outputs a mapping from output
            name to mask. Or None.

    Raises:
        CaseError: There is no float output, or a label is missing or of another shape.
    """
    shares, pixels = list[float](), 0
    for _, target, actual in by_target(reference, candidate, labels, float_outputs):
        truth, guess = target > 0.5, actual > 0.5
        pixels += int(np.count_nonzero(truth))
        if guess.shape != truth.shape:
            shares += [0.0] if truth.any() or guess.any() else []
            continue
        for ours, theirs in zip(images(truth), images(guess), strict=True):
            union = np.count_nonzero(ours | theirs)
            shares += [np.count_nonzero(ours & theirs) / union] if union else []
    return Score(fsum(shares) / len(shares) if shares else 1.0, pixels)


_PLACE = 5
"""Side of a place in pixels. One pixel that changes is chance; where a fifth of 25 do, a thin line
or a small region is gone."""
_BORDER = 0.3
"""Change of a pixel to another class, of whole numbers: borders of FP16 move by a pixel, so half of
a place must change for 0.15."""
_BLOCK = 8
"""Side of a block of an image, as of JPEG."""
_FAR = 50.0
"""Flow in pixels of which half a pixel, the allowed error of a place, is the default tolerance: the
recognised question is not stricter than 1 % of the largest value."""


def places(
    reference: Sequence[Outputs],
    candidate: Sequence[Outputs],
    _labels: Sequence[Any] | None,
) -> float:
    """Return 1 less the largest mean change in a place of 5 × 5 pixels, in [0, 1].

    A mean over an image hides what is small. A pixel changes by |Δp| of one channel, by half of
    Σ |Δp| of several, whose softmax is taken unless they sum to 1, and by `_BORDER` if it is of
    another class. FP32's outputs are the truth, also with labels. Non-finite pixels of FP32 are
    left out; a candidate that is not finite elsewhere, or has another shape, changes by 1.

    Args:
        reference: Float outputs [N, channels, height, width], or channels last (`class_axis`), and
            classes i[N, height, width]; outputs of other forms are left out.
        candidate: The same outputs.

    Raises:
        CaseError: there is no such output.
    """
    changes = list[float]()
    for expected, actual, _ in by_sample(reference, candidate, None):
        for name, array in expected.items():
            if array.ndim == (3 if is_discrete(array.dtype) else 4) and array.size:
                changed = _changes(array, actual[name])
                changes.append(float(local_means(changed).max()) if changed.any() else 0.0)
    at_least_one("places", len(changes))
    # Means from cumulative sums may exceed 1 by rounding.
    return max(0.0, 1.0 - max(changes))


def local_means(values: NDArray[np.float64], most: int = _PLACE) -> NDArray[np.float64]:
    """Return the means of all places of f64[N, height, width]; smaller images are one place."""
    for axis in (1, 2):
        side = min(most, values.shape[axis])
        sums = np.cumsum(np.insert(values, 0, 0, axis=axis), axis=axis)
        first, last = np.arange(values.shape[axis] - side + 1), np.arange(side, sums.shape[axis])
        values = (sums.take(last, axis=axis) - sums.take(first, axis=axis)) / side
    return values


def _changes(expected: NDArray[Any], actual: NDArray[Any]) -> NDArray[np.float64]:
    """Return how much each pixel changes, f64[N, height, width] in [0, 1]."""
    if is_discrete(expected.dtype):
        fits = actual.shape == expected.shape
        return _BORDER * (actual != expected) if fits else np.ones(expected.shape)
    axis = class_axis(expected.shape)
    wanted = np.moveaxis(expected.astype(np.float64), axis, -1)
    if actual.shape != expected.shape:
        return np.ones(wanted.shape[:-1])
    given, channels = np.moveaxis(actual.astype(np.float64), axis, -1), wanted.shape[-1]
    known = np.isfinite(wanted).all(axis=-1)
    if channels == 1:
        change = np.abs(given - wanted)[..., 0]
    elif sums_to_one(wanted, -1):
        change = np.abs(given - wanted).sum(axis=-1) / 2
    else:
        with np.errstate(invalid="ignore"):
            change = np.abs(softmax(given) - softmax(wanted)).sum(axis=-1) / 2
    change = np.where(known, change, 0)
    return np.asarray(np.where(np.isnan(change), 1, np.minimum(change, 1)))


def psnr(
    reference: Sequence[Outputs],
    candidate: Sequence[Outputs],
    labels: Sequence[Any] | None,
) -> float:
    """Return the peak signal-to-noise ratio in dB, 10 log10(peak² / MSE), at most 100.

    An image is one sample of a float output, or with four or more axes each index of the first.
    Without labels the worst image counts; with labels the average over images, as papers report it.
    The worst of several outputs counts. The peak is max - min of the image's target (the label, or
    else the reference) over its finite elements, so that no bright image hides the loss of a dark
    one. An image that varies by less than 1/256 of the output, a step of 8 bits, uses the output's
    peak. Non-finite elements of the target are left out. A candidate that is not finite where the
    target is, or that has another shape, gives -inf. An output whose target is constant has no peak
    and is left out: if all are, the value is the cap.

    Without labels `psnr(reference, reference, None)` is the cap, 100 dB: for "PSNR ≥ 40 dB", allow
    a drop of 60 (`--metric psnr --metric-drop 60`).

    Args:
        reference: Float outputs [*shape], at least one of them a map: two axes of 8 or more; or, in
            a model without float outputs, u8 ones.
        candidate: The same outputs, any float type or u8.
        labels: Per sample the target, as for `mask_iou`, or None.

    Raises:
        CaseError: There is no map or no finite target element, or a label does not fit.
    """
    found_of: dict[str, list[float]] = {}
    peaks, known = target_peaks(reference, labels), 0
    for name, target, actual in by_target(reference, candidate, labels, map_outputs):
        squares = images(_squares(target, actual))
        for image, square in zip(images(target), squares, strict=True):
            if values := image[np.isfinite(image)].size:
                known += values
                peak = _peak(image, peaks[name])
                found_of.setdefault(name, []).append(_psnr(peak, float(square.sum()) / values))
    at_least_one("psnr", len(found_of))
    worst = min(
        min(each) if labels is None else fsum(each) / len(each) for each in found_of.values()
    )
    return Score(worst, known)


def target_peaks(reference: Sequence[Outputs], labels: Sequence[Any] | None) -> dict[str, float]:
    """Return max - min of every float output over all samples, as `psnr` is called.

    0 for a constant target; outputs without a finite target element are left out.
    """
    ends = ends_of(reference, labels, map_outputs).items()
    return {name: high - low for name, (low, high) in ends if low <= high}


def epe(
    reference: Sequence[Outputs],
    candidate: Sequence[Outputs],
    labels: Sequence[Any] | None,
) -> float:
    """Return minus the mean end-point error of optical flow, in pixels, ≤ 0.

    The error of a pixel is √(Δu² + Δv²). Flow is every float output [*, 2, height, width]; the mean
    runs over all pixels of all samples of one output, and the worst output counts. Pixels where the
    target is not finite are left out. A candidate that is not finite at any other pixel, or that
    has another shape, gives -inf.

    Args:
        reference: Flow [*, 2, height, width]; the target if there are no labels.
        candidate: The same outputs, any float type.
        labels: Per sample the true flow (NaN if unknown), as for `mask_iou`, or None.

    Raises:
        CaseError: No output is a flow, no target pixel is finite, or a label does not fit.
    """
    distance: dict[str, float] = {}
    pixels: dict[str, int] = {}
    for name, target, actual in by_target(reference, candidate, labels, flow_outputs):
        valid = np.isfinite(target).all(axis=-3)
        pixels[name] = pixels.get(name, 0) + int(valid.sum())
        distance[name] = distance.get(name, 0.0) + float(_shifts(target, actual).sum())
    count = at_least_one("epe", sum(pixels.values()))
    return Score(min(-distance[name] / pixels[name] for name in pixels if pixels[name]), count)


_METRICS: dict[str, Metric] = {
    "top1": top1,
    "confidence": confidence,
    "token-agreement": token_agreement,
    "mask-iou": mask_iou,
    "mean-iou": mean_iou,
    "cosine": cosine,
    "snr": snr,
    "peaks": peaks,
    "places": places,
    "psnr": psnr,
    "epe": epe,
}


def resolve(name: str) -> Metric | None:
    """Return the built-in metric of that name; None if there is none."""
    return _METRICS.get(name)


def guessing(outputs: Outputs) -> float:
    """Return the share of classes that guesses get right on average, (0, 0.5]; see `top1`."""
    name = class_output(outputs)
    return 1 / int(class_rows(name, outputs[name]).shape[1])


def worst_place(
    reference: Sequence[Outputs],
    candidate: Sequence[Outputs],
    labels: Sequence[Any] | None,
) -> float:
    """Return minus the largest mean end-point error in a place of 5 × 5 pixels; see `epe`.

    Of a sample whose flow exceeds `_FAR`, errors are scaled as if that were its largest value.
    """
    worst = 0.0
    for _, target, actual in by_target(reference, candidate, labels, flow_outputs):
        largest = np.abs(target[np.isfinite(target)]).max(initial=_FAR)
        off = _shifts(target, actual).reshape(-1, *target.shape[-2:]) * (_FAR / largest)
        worst = max(worst, _most_local(off, _PLACE))
    return -worst


def worst_block(
    reference: Sequence[Outputs],
    candidate: Sequence[Outputs],
    labels: Sequence[Any] | None,
) -> float:
    """Return `psnr` of the worst block of 8 × 8 pixels, of outputs with four axes."""
    peaks, worst = target_peaks(reference, labels), CAP_DB
    for name, target, actual in by_target(reference, candidate, labels, map_outputs):
        if target.ndim == 4 and target.size:
            squares = _squares(target, actual).mean(axis=class_axis(target.shape))
            for image, square in zip(target, squares, strict=True):
                peak = _peak(image, peaks.get(name, 0.0))
                worst = min(worst, _psnr(peak, _most_local(square[None], _BLOCK)))
    return worst


def _apart(target: NDArray[np.float64], actual: NDArray[Any]) -> NDArray[np.float64]:
    """Return |actual - target|: 0 where the target is not finite, inf where only `actual` is not.

    inf everywhere if the shapes differ.
    """
    if actual.shape != target.shape:
        return np.full(target.shape, np.inf)
    with np.errstate(invalid="ignore"):
        apart = np.abs(actual.astype(np.float64) - target)
    apart = np.where(np.isnan(apart), np.inf, apart)
    return np.where(np.isfinite(target), apart, 0)


def _squares(target: NDArray[np.float64], actual: NDArray[Any]) -> NDArray[np.float64]:
    with np.errstate(over="ignore"):
        return np.square(_apart(target, actual))


def _shifts(target: NDArray[np.float64], actual: NDArray[Any]) -> NDArray[np.float64]:
    """Return the end-point error of each pixel of a flow [*, 2, height, width]; 0 if unknown."""
    off = np.hypot(*np.moveaxis(_apart(target, actual), -3, 0))
    return np.where(np.isfinite(target).all(axis=-3), off, 0)


def _most_local(errors: NDArray[np.float64], side: int) -> float:
    """Return the largest mean of a place of f64[N, height, width]; inf if one is not finite."""
    finite = np.isfinite(errors).all()
    return float(local_means(errors, side).max(initial=0)) if finite else np.inf


def _peak(image: NDArray[np.float64], whole: float) -> float:
    """Return what an image's error is relative to; see `psnr`."""
    values = image[np.isfinite(image)]
    span = float(np.ptp(values)) if values.size else 0.0
    return span if span >= whole * _STEP else whole


def _psnr(peak: float, mean_square: float) -> float:
    if mean_square == np.inf:
        return -np.inf
    if peak == 0 or mean_square == 0:
        return CAP_DB
    return float(min(CAP_DB, 10 * np.log10(peak * peak / mean_square)))
