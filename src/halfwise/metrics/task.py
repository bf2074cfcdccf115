"""Built-in task metrics: what the user cares about, as one number; higher is better.

Every metric is called as `metric(reference, candidate, labels)`, each a sequence over the same
samples: outputs of the FP32 model, outputs of the model under judgement, and labels or None. The
reference's own value is `metric(reference, reference, labels)`.

A candidate's NaN, infinities or wrong shape lower the value and raise nothing; outputs or labels
that do not suit a metric raise `CaseError`. Arithmetic is float64.
"""

from collections.abc import Sequence
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from halfwise.metrics.built_in import PSNR_CAP_DB
from halfwise.metrics.difference import dot
from halfwise.metrics.labelling import mean_iou, token_agreement
from halfwise.metrics.measures import Outputs
from halfwise.metrics.similarity import cosine, si_sdr, snr
from halfwise.metrics.targets import (
    Metric,
    at_least_one,
    by_sample,
    by_target,
    class_labels,
    class_output,
    class_rows,
    float_outputs,
    flow_outputs,
    images,
    map_outputs,
)

_STEP = 1 / 256
"""Relative to the range of an image: one step of 8 bits."""


def metric_loss(
    metric: Metric,
    references: Sequence[Outputs],
    candidates: Sequence[Outputs],
    labels: Sequence[Any] | None,
) -> float:
    """Return how far `metric` falls from the reference's own value; NaN if it has none."""
    own = metric(references, references, labels)
    return own - metric(references, candidates, labels)


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
    for expected, found, label in by_sample(reference, candidate, labels):
        name = class_output(expected)
        scores = class_rows(name, expected[name])
        truth = np.argmax(scores, axis=-1) if label is None else class_labels(label, scores, name)
        rows += len(scores)
        if found[name].shape == expected[name].shape:
            guess = class_rows(name, found[name])
            wrong = np.isnan(guess).any(axis=-1)
            right += int(np.count_nonzero((np.argmax(guess, axis=-1) == truth) & ~wrong))
    return right / at_least_one("top1", rows)


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
    shares = []
    for _, target, found in by_target(reference, candidate, labels, float_outputs):
        truth, guess = target > 0.5, found > 0.5
        if guess.shape != truth.shape:
            shares += [0.0] if truth.any() or guess.any() else []
            continue
        for ours, theirs in zip(images(truth), images(guess), strict=True):
            union = np.count_nonzero(ours | theirs)
            shares += [np.count_nonzero(ours & theirs) / union] if union else []
    return fmean(shares) if shares else 1.0


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
        reference: Float outputs [*shape], at least one of them a map: two axes of 8 or more.
        candidate: The same outputs, any float type.
        labels: Per sample the target, as for `mask_iou`, or None.

    Raises:
        CaseError: There is no map or no finite target element, or a label does not fit.
    """
    found_of: dict[str, list[float]] = {}
    peaks = target_peaks(reference, labels)
    for name, target, found in by_target(reference, candidate, labels, map_outputs):
        fits = found.shape == target.shape
        for index, wanted in enumerate(images(target)):
            known = np.isfinite(wanted)
            if not known.any():
                continue
            values = wanted[known]
            given = images(found)[index] if fits else np.zeros(0)
            error = _squared_error(values, given, known)
            own = float(np.ptp(values))
            peak = own if own >= peaks[name] * _STEP else peaks[name]
            found_of.setdefault(name, []).append(_psnr(peak, error / values.size))
    at_least_one("psnr", len(found_of))
    return min(min(each) if labels is None else fmean(each) for each in found_of.values())


def target_peaks(reference: Sequence[Outputs], labels: Sequence[Any] | None) -> dict[str, float]:
    """Return max - min of every float output over all samples, as `psnr` is called.

    0 for a constant target; outputs without a finite target element are left out.
    """
    lowest: dict[str, float] = {}
    highest: dict[str, float] = {}
    for name, target, _ in by_target(reference, reference, labels, map_outputs):
        values = target[np.isfinite(target)]
        if values.size:
            lowest[name] = min(lowest.get(name, np.inf), float(values.min()))
            highest[name] = max(highest.get(name, -np.inf), float(values.max()))
    return {name: highest[name] - low for name, low in lowest.items()}


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
    for name, target, found in by_target(reference, candidate, labels, flow_outputs):
        known = np.asarray(np.isfinite(target).all(axis=-3))
        pixels[name] = pixels.get(name, 0) + int(known.sum())
        distance[name] = distance.get(name, 0.0) + _distance(target, found, known)
    at_least_one("epe", sum(pixels.values()))
    return min(-distance[name] / pixels[name] for name in pixels if pixels[name])


_METRICS: dict[str, Metric] = {
    "top1": top1,
    "token-agreement": token_agreement,
    "mask-iou": mask_iou,
    "mean-iou": mean_iou,
    "cosine": cosine,
    "si-sdr": si_sdr,
    "snr": snr,
    "psnr": psnr,
    "epe": epe,
}


def resolve(name: str) -> Metric | None:
    """Return the built-in metric of that name; None if there is none."""
    return _METRICS.get(name)


class Guessing(NamedTuple):
    """Result of guessing classes.

    Attributes:
        share: Share of right guesses on average, in (0, 0.5].
        rows: Number of guesses.
    """

    share: float
    rows: int


def guessing(name: str | None, references: Sequence[Outputs]) -> Guessing | None:
    """Return the result of guessing for `top1`; None for any other metric.

    Args:
        name: The metric.
        references: FP32 outputs by sample, at least one; as for `top1`.
    """
    if name != "top1":
        return None
    output = class_output(references[0])
    rows = [class_rows(output, outputs[output]) for outputs in references]
    return Guessing(1 / rows[0].shape[1], sum(map(len, rows)))


def _squared_error(
    target: NDArray[np.float64], found: NDArray[Any], known: NDArray[np.bool_]
) -> float:
    """Return Σ (found - target)² where `known`; inf if `found` is not finite or misshapen."""
    if found.shape != known.shape:
        return float("inf")
    error = found.astype(np.float64)[known] - target
    return dot(error, error) if np.isfinite(error).all() else float("inf")


def _distance(target: NDArray[np.float64], found: NDArray[Any], known: NDArray[np.bool_]) -> float:
    """Return Σ of end-point errors where `known`; inf if `found` is not finite or misshapen."""
    if found.shape != target.shape:
        return float("inf")
    with np.errstate(invalid="ignore"):
        error = found.astype(np.float64) - target
        length = np.hypot(error[..., 0, :, :], error[..., 1, :, :])[known]
    return float(length.sum()) if np.isfinite(length).all() else float("inf")


def _psnr(peak: float, mean_square: float) -> float:
    if mean_square == np.inf:
        return -np.inf
    if peak == 0 or mean_square == 0:
        return PSNR_CAP_DB
    return float(min(PSNR_CAP_DB, 10 * np.log10(peak * peak / mean_square)))
