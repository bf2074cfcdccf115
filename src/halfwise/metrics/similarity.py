"""Metrics of vectors and signals. The worst one counts, because a mean would hide a broken one."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfwise.metrics.built_in import SI_SDR_CAP_DB
from halfwise.metrics.evidence import without_trailing_ones
from halfwise.metrics.measures import Outputs
from halfwise.metrics.targets import at_least_one, by_target, float_outputs

Floats = NDArray[np.float64]
_FAINT = 1e-6
"""Power relative to the loudest signal below which a signal counts as faded."""


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
        reference: Float outputs [*channels, time]; the target if there are no labels.
        candidate: The same outputs, any float type.
        labels: Per sample the target signals, as for `psnr`, or None.

    Raises:
        CaseError: There is no float output, every target is silent, or a label does not fit.
    """
    return _worst("si-sdr", _ratios, reference, candidate, labels, highest=SI_SDR_CAP_DB)


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
    return _worst("cosine", _likenesses, reference, candidate, labels, highest=1.0)


def snr(
    reference: Sequence[Outputs],
    candidate: Sequence[Outputs],
    labels: Sequence[Any] | None,
) -> float:
    """Return the smallest signal-to-noise ratio of all signals in dB, ≤ 100.

    10 log10(Σ s² / Σ (s - c)²) of the target s and the candidate c: unlike `si_sdr` it sees a wrong
    loudness. A signal is one element along the first axis of a float output, or all of an output
    with one axis. If its power is more than 60 dB below the loudest of the output, that level
    counts instead: there a sound is taken to have died away (ISO 3382's reverberation time).
    Non-finite target elements are left out; a candidate that is not finite, or has another shape,
    gives -inf.

    Args:
        reference: Float outputs [*shape]: waveforms, spectra; the target if there are no labels.
        candidate: The same outputs, any float type.
        labels: Per sample the target signals, as for `psnr`, or None.

    Raises:
        CaseError: There is no float output, every target is silent, or a label does not fit.
    """
    largest: dict[str, float] = {}
    for name, target, _ in by_target(reference, reference, labels, float_outputs):
        largest[name] = max(largest.get(name, 0.0), float(np.abs(_finite(target)).max(initial=0)))
    at_least_one("snr", sum(value > 0 for value in largest.values()))
    loudest: dict[str, float] = {}
    noises: dict[str, list[tuple[Floats, Floats]]] = {}
    for name, target, found in by_target(reference, candidate, labels, float_outputs):
        if not (target.size and largest[name]):
            continue
        signals = _signals(_finite(target)) / largest[name]
        power = (signals**2).mean(axis=1)
        noise = np.full(len(power), np.inf)
        if found.shape == target.shape:
            with np.errstate(invalid="ignore", over="ignore"):
                given = np.where(np.isfinite(target), found, 0).astype(np.float64)
                noise = ((_signals(given) / largest[name] - signals) ** 2).mean(axis=1)
        loudest[name] = max(loudest.get(name, 0.0), float(power.max()))
        noises.setdefault(name, []).append((power, noise))
    ratios = [
        _decibels(*pair, _FAINT * loudest[n]) for n, pairs in noises.items() for pair in pairs
    ]
    return float(np.concatenate(ratios).min())


def signals_in(reference: Sequence[Outputs], labels: Sequence[Any] | None) -> int:
    """Return how many signals `snr` compares; the arguments are the same."""
    targets = by_target(reference, reference, labels, float_outputs)
    return sum(len(_signals(target)) for _, target, _ in targets if target.size)


def _signals(array: Floats) -> Floats:
    return array.reshape(len(array) if array.ndim > 1 else 1, -1)


def _finite(array: Floats) -> Floats:
    return np.where(np.isfinite(array), array, 0)


def _decibels(power: Floats, noise: Floats, least: float) -> Floats:
    with np.errstate(divide="ignore"):
        ratio = 10 * np.log10(np.maximum(power, least) / noise)
    # The noise of a non-finite candidate is NaN or inf.
    return np.where(np.isfinite(noise), np.minimum(ratio, SI_SDR_CAP_DB), -np.inf)


def _worst(
    name: str,
    measure: Callable[[Floats, Floats], Floats],
    reference: Sequence[Outputs],
    candidate: Sequence[Outputs],
    labels: Sequence[Any] | None,
    *,
    highest: float,
) -> float:
    """Return the smallest `measure` over the vectors whose target is not zero."""
    worst, count = highest, 0
    for _, target, found in by_target(reference, candidate, labels, float_outputs):
        rows = _rows(target)
        known = _known(rows)
        count += int(known.sum())
        if found.shape != target.shape:
            worst = -np.inf
        elif known.any():
            values = measure(rows[known], _rows(found.astype(np.float64))[known])
            # NaN ranks lowest.
            worst = min(worst, float(np.where(np.isnan(values), -np.inf, values).min()))
    at_least_one(name, count)
    return worst


def vectors_in(reference: Sequence[Outputs], labels: Sequence[Any] | None) -> int:
    """Return how many vectors or signals are compared; arguments as for `cosine`."""
    targets = by_target(reference, reference, labels, float_outputs)
    return sum(int(_known(_rows(target)).sum()) for _, target, _ in targets)


def _known(rows: Floats) -> NDArray[np.bool_]:
    return np.asarray(np.isfinite(rows).all(axis=1) & rows.any(axis=1))


def _rows(array: NDArray[Any]) -> NDArray[Any]:
    array = without_trailing_ones(array)
    return array.reshape(-1, array.shape[-1]) if array.ndim else array.reshape(1, 1)


def _cosines(target: Floats, found: Floats) -> Floats:
    """Return the cosine of each pair of rows; NaN if the candidate is not finite."""
    with np.errstate(invalid="ignore"):
        target, found = _up_to_one(target), _up_to_one(found)
        length = np.linalg.norm(target, axis=1) * np.linalg.norm(found, axis=1)
        dot = (target * found).sum(axis=1)
        cosines = np.divide(dot, length, out=0 * dot, where=length != 0)
    return np.asarray(np.clip(cosines, -1, 1))


def _likenesses(target: Floats, found: Floats) -> Floats:
    """Return 1 - d²/2 of each pair of rows, or its cosine if less; NaN as for `_cosines`."""
    largest = np.abs(target).max(axis=1, keepdims=True)
    with np.errstate(invalid="ignore", over="ignore"):
        one, other = target / largest, found / largest
        distance = ((one - other) ** 2).sum(axis=1) / (one**2).sum(axis=1)
        return np.asarray(np.minimum(_cosines(target, found), 1 - distance / 2))


def _ratios(target: Floats, found: Floats) -> Floats:
    """Return the ratio of each pair of rows in dB; NaN if the candidate is not finite."""
    with np.errstate(invalid="ignore", divide="ignore"):
        target, found = _up_to_one(target), _up_to_one(found)
        scale = (found * target).sum(axis=1) / (target * target).sum(axis=1)
        part = scale[:, None] * target
        signal, noise = (part**2).sum(axis=1), ((part - found) ** 2).sum(axis=1)
        ratio = 10 * np.log10(signal / noise)
    ratio[(noise == 0) & (signal > 0)] = SI_SDR_CAP_DB
    return np.asarray(np.minimum(ratio, SI_SDR_CAP_DB))


def _up_to_one(rows: Floats) -> Floats:
    """Return rows over their largest magnitude, so that no square overflows; zeros unchanged."""
    largest = np.abs(rows).max(axis=1, keepdims=True)
    return np.asarray(np.divide(rows, largest, out=0 * rows, where=largest != 0))
