"""Metrics of vectors and signals, whose worst one counts: a mean would hide one that is broken."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfwise.metrics.built_in import SI_SDR_CAP_DB, at_least_one, float_outputs
from halfwise.metrics.measures import Outputs
from halfwise.metrics.targets import by_target

Floats = NDArray[np.float64]


def cosine(
    reference: Sequence[Outputs],
    candidate: Sequence[Outputs],
    labels: Sequence[Any] | None,
) -> float:
    """Return the smallest cosine similarity of all vectors, in [-1, 1].

    A vector runs along the last axis of a float output; beyond two, trailing axes of length 1 are
    dropped. Vectors of zeros have no direction and are left out where the target is one; of a
    candidate they count as 0. A candidate that is not finite, or has another shape, gives -inf.

    Args:
        reference: Float outputs [*vectors, dimensions]; the target where there are no labels.
        candidate: The same outputs, any float type.
        labels: Per sample the target vectors, as for `psnr`, or None.

    Raises:
        CaseError: There is no float output, every target is zero, or a label does not fit.
    """
    return _worst("cosine", _cosines, reference, candidate, labels, highest=1.0)


def si_sdr(
    reference: Sequence[Outputs],
    candidate: Sequence[Outputs],
    labels: Sequence[Any] | None,
) -> float:
    """Return the smallest scale-invariant signal-to-distortion ratio of all signals in dB, ≤ 100.

    With the target s and the candidate c, a = c·s / s·s: 10 log10(|a s|² / |a s - c|²), as Le Roux
    et al. define it ("SDR - half-baked or well done?", 2019), without removing means. A signal runs
    along the last axis of a float output; beyond two, trailing axes of length 1 are dropped. Silent
    targets are left out. A candidate that is silent or not finite, or has another shape, gives
    -inf.

    Args:
        reference: Float outputs [*channels, time]; the target where there are no labels.
        candidate: The same outputs, any float type.
        labels: Per sample the target signals, as for `psnr`, or None.

    Raises:
        CaseError: There is no float output, every target is silent, or a label does not fit.
    """
    return _worst("si-sdr", _ratios, reference, candidate, labels, highest=SI_SDR_CAP_DB)


def _worst(
    name: str,
    measure: Callable[[Floats, Floats], Floats],
    reference: Sequence[Outputs],
    candidate: Sequence[Outputs],
    labels: Sequence[Any] | None,
    *,
    highest: float,
) -> float:
    """Return the smallest value of `measure` of the vectors whose target is not zero."""
    worst, count = highest, 0
    for _, target, found in by_target(reference, candidate, labels, float_outputs):
        rows = _rows(target)
        known = _known(rows)
        count += int(known.sum())
        if found.shape != target.shape:
            worst = -np.inf
        elif known.any():
            values = measure(rows[known], _rows(found.astype(np.float64))[known])
            # NaN is lower than anything.
            worst = min(worst, float(np.where(np.isnan(values), -np.inf, values).min()))
    at_least_one(name, count)
    return worst


def vectors_in(reference: Sequence[Outputs], labels: Sequence[Any] | None) -> int:
    """Return how many vectors, or signals, are compared; arguments as of `cosine`."""
    targets = by_target(reference, reference, labels, float_outputs)
    return sum(int(_known(_rows(target)).sum()) for _, target, _ in targets)


def _known(rows: Floats) -> NDArray[np.bool_]:
    return np.asarray(np.isfinite(rows).all(axis=1) & rows.any(axis=1))


def _rows(array: NDArray[Any]) -> NDArray[Any]:
    while array.ndim > 2 and array.shape[-1] == 1:
        array = array[..., 0]
    return array.reshape(-1, array.shape[-1]) if array.ndim else array.reshape(1, 1)


def _cosines(target: Floats, found: Floats) -> Floats:
    """Return the cosine of each pair of rows; NaN where the candidate is not finite."""
    with np.errstate(invalid="ignore"):
        target, found = _up_to_one(target), _up_to_one(found)
        length = np.linalg.norm(target, axis=1) * np.linalg.norm(found, axis=1)
        dot = (target * found).sum(axis=1)
        cosines = np.divide(dot, length, out=0 * dot, where=length != 0)
    return np.asarray(np.clip(cosines, -1, 1))


def _ratios(target: Floats, found: Floats) -> Floats:
    """Return the ratio of each pair of rows in dB; NaN where the candidate is not finite."""
    with np.errstate(invalid="ignore", divide="ignore"):
        target, found = _up_to_one(target), _up_to_one(found)
        scale = (found * target).sum(axis=1) / (target * target).sum(axis=1)
        part = scale[:, None] * target
        signal, noise = (part**2).sum(axis=1), ((part - found) ** 2).sum(axis=1)
        ratio = 10 * np.log10(signal / noise)
    ratio[(noise == 0) & (signal > 0)] = SI_SDR_CAP_DB
    return np.asarray(np.minimum(ratio, SI_SDR_CAP_DB))


def _up_to_one(rows: Floats) -> Floats:
    """Return rows over their largest magnitude, so that no square overflows; zeros as they are."""
    largest = np.abs(rows).max(axis=1, keepdims=True)
    return np.asarray(np.divide(rows, largest, out=0 * rows, where=largest != 0))
