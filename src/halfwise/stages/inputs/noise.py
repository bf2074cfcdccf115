"""Recognises inputs that were made up instead of recorded.

What rounding breaks depends on the values that real data reaches inside the model, and noise does
not reach them.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfwise.case import Samples
from halfwise.stages.inputs.spec import WARNING, InputSpec

_MOST_SAMPLES = 16
_FEWEST_ELEMENTS = 256
# Per sample; 2^18 leave standard errors far below every slack, and take milliseconds.
_MOST_ELEMENTS = 2**18
_SLACK = 0.05
_KURTOSIS_SLACK = 0.3
_BINS = 16
# 99.9 % quantile of χ² with one degree of freedom less than bins.
_CHI_SQUARE = 37.7
_CONSTANT = "made up: all its elements are equal"


def noise_warnings(samples: Samples, specs: Sequence[InputSpec]) -> tuple[str, ...]:
    """Say which inputs look made up.

    At most 16 samples, evenly spread, are pooled, at most 2^18 elements of each. Inputs with fewer
    than 256 elements in all of them are passed over: what is looked for would drown in the
    standard errors.

    * Constant: all elements of a float input are equal. Integers and Booleans count only where
      all such inputs are constant, because a mask of ones beside real tokens is usual.
    * Standard normal: mean 0, standard deviation 1, kurtosis 3, and neighbours along no axis
      correlate. Allowed is the larger of a slack (0.05; 0.3 for kurtosis) and three standard
      errors (1/√n, 1/√2n, √(24/n), 1/√pairs).
    * Uniform in [0, 1], [−1, 1] or [0, 255]: the χ² of a histogram of 16 bins is below its 99.9 %
      quantile, 37.7, and neighbours along no axis correlate.

    The correlation is what separates noise from normalised data: neighbours in images, spectra
    and series correlate by 0.2 to 0.99 along some axis. The thresholds miss one or two in a
    hundred noise inputs.

    Args:
        samples: Samples that fit `specs`.
        specs: The model's inputs.

    Returns:
        One warning for each suspicious input.

    Raises:
        CaseError: A sample turns out to be bad when it is loaded.
    """
    spread = np.linspace(0, len(samples) - 1, min(len(samples), _MOST_SAMPLES))
    chosen = [samples[int(i)] for i in spread]
    pooled = {spec.name: [sample[spec.name] for sample in chosen] for spec in specs}
    floats = {s.name: pooled[s.name] for s in specs if s.dtype.kind in "fV"}
    discrete = {s.name: pooled[s.name] for s in specs if s.dtype.kind in "iub"}
    looks = {name: look for name, arrays in floats.items() if (look := _look(arrays))}
    looks |= _constant_integers(discrete)
    return tuple(
        f"{WARNING}input '{name}' looks {look}; what rounding breaks on real data may be another "
        "matter, so give real inputs, unless this is what the model gets in use"
        for name, look in looks.items()
    )


def _constant_integers(discrete: Mapping[str, Sequence[NDArray[Any]]]) -> dict[str, str]:
    if sum(a.size for arrays in discrete.values() for a in arrays) < _FEWEST_ELEMENTS:
        return {}
    if not all(_is_constant(arrays) for arrays in discrete.values()):
        return {}
    return dict.fromkeys(discrete, _CONSTANT)


def _look(arrays: Sequence[NDArray[Any]]) -> str:
    """Return what a float input looks like, or "" where it looks real."""
    if sum(array.size for array in arrays) < _FEWEST_ELEMENTS:
        return ""
    if _is_constant(arrays):
        return _CONSTANT
    cropped = [_crop(array).astype(np.float64) for array in arrays]
    values = np.concatenate([array.ravel() for array in cropped])
    kind = _distribution(values)
    if not kind or _correlates(cropped, float(values.mean()), float(values.var())):
        return ""
    return (
        f"like {kind} noise (mean {values.mean():.2f}, standard deviation {values.std():.2f}, "
        "neighbours do not correlate)"
    )


def _distribution(values: NDArray[np.float64]) -> str:
    n = values.size
    mean, std = float(values.mean()), float(values.std())
    # Constant but for what was cropped away.
    if std == 0.0:
        return ""
    kurtosis = float((((values - mean) / std) ** 4).mean())
    if (
        abs(mean) < max(_SLACK, 3 / np.sqrt(n))
        and abs(std - 1) < max(_SLACK, 3 / np.sqrt(2 * n))
        and abs(kurtosis - 3) < max(_KURTOSIS_SLACK, 3 * np.sqrt(24 / n))
    ):
        return "standard normal"
    low, high = float(values.min()), float(values.max())
    for start, stop in ((0.0, 1.0), (-1.0, 1.0), (0.0, 255.0)):
        if start <= low and high <= stop:
            counts, _ = np.histogram(values, _BINS, (start, stop))
            expected = n / _BINS
            if float(((counts - expected) ** 2).sum()) / expected < _CHI_SQUARE:
                return "uniform"
    return ""


def _correlates(arrays: Sequence[NDArray[np.float64]], mean: float, variance: float) -> bool:
    """Return whether neighbours along any axis correlate; axes are counted from the last."""
    centred = [array - mean for array in arrays]
    for axis in range(1, max(array.ndim for array in arrays) + 1):
        total, pairs = 0.0, 0
        for array in centred:
            if array.ndim >= axis:
                moved = np.moveaxis(array, -axis, 0)
                products = moved[:-1] * moved[1:]
                total += float(products.sum())
                pairs += products.size
        if pairs and abs(total / pairs / variance) > max(_SLACK, 3 / np.sqrt(pairs)):
            return True
    return False


def _is_constant(arrays: Sequence[NDArray[Any]]) -> bool:
    filled = [array for array in arrays if array.size]
    return all(bool((array == filled[0].flat[0]).all()) for array in filled)


def _crop(array: NDArray[Any]) -> NDArray[Any]:
    while array.size > _MOST_ELEMENTS:
        longest = int(np.argmax(array.shape))
        array = array[(slice(None),) * longest + (slice(array.shape[longest] // 2),)]
    return array
