"""Heat maps: what counts is where they peak, and how high.

A pose model has one map per joint, CenterNet one per class; a program reads the places of the peaks
and their heights, and nothing else.

- A peak is the largest value within 2 pixels, of at least 0.3 times FP32's largest height in the
  output: 0.3 is what pose demos show (mmpose's `kpt_thr`), as `boxes.SCORE` is for boxes.
- Two maps agree at a peak of either if the other's height there is within 10 % of it, and within
  3 % of it as high as anywhere within 2 pixels: a Gaussian of 3 pixels is 5 % lower one pixel away.
- Logits become probabilities (sigmoid) first. Maps of heights may have noise below 0, but not -1.
"""

from collections.abc import Iterator, Sequence
from math import fsum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfwise.metrics.measures import Outputs
from halfwise.metrics.targets import (
    SIDE,
    Score,
    at_least_one,
    by_target,
    class_axis,
    ends_of,
    float_outputs,
    lacking,
    sigmoid,
)

VISIBLE = 0.3
"""Least height of a peak, relative to the largest."""
_AROUND = 2
"""Within how many pixels a peak is the largest value."""
_HEIGHT = 0.1
"""Largest change of a height, relative to it."""
_FLAT = 0.03
"""How much lower, relative to its height, a map may be at a peak than at its own: flat tops have no
place that could be told."""
LOGITS = -1.0
"""Maps with values below this are logits."""
Floats = NDArray[np.float64]


def peaks(
    reference: Sequence[Outputs],
    candidate: Sequence[Outputs],
    labels: Sequence[Any] | None,
) -> float:
    """Return the share of peaks of either side at which both agree, averaged over images.

    Images without a peak on either side are left out; 1 if all are. NaN and other shapes agree
    nowhere. The worst of several outputs counts.

    Args:
        reference: Float outputs [N, maps, height, width], [N, height, width, maps] (`class_axis`)
            or without N; the target if there are no labels.
        candidate: The same outputs, any float type.
        labels: Per sample the target maps, as for `psnr`, or None.

    Raises:
        CaseError: No output has this form, there is no peak, or a label does not fit.
    """
    ends, count = ends_of(reference, labels, heat_outputs), 0
    shares: dict[str, list[float]] = {name: [] for name in ends}
    for name, target, actual in by_target(reference, candidate, labels, heat_outputs):
        least, logits = _least(*ends[name]), ends[name][0] < LOGITS
        wanted = _heights(maps_of(target), logits=logits)
        tops = _tops(wanted, least)
        count += int(tops.sum())
        if actual.shape != target.shape:
            shares[name] += [0.0] * int(tops.any(axis=(1, 2, 3)).sum())
            continue
        given = _heights(maps_of(actual), logits=logits)
        for ours, theirs in zip(wanted, given, strict=True):
            agreeing = [*_agreeing(ours, theirs, least), *_agreeing(theirs, ours, least)]
            shares[name] += [fsum(agreeing) / len(agreeing)] if agreeing else []
    at_least_one("peaks", sum(high > 0 for _, high in ends.values()))
    return Score(min(fsum(each) / len(each) if each else 1.0 for each in shares.values()), count)


def heat_outputs(outputs: Outputs) -> tuple[str, ...]:
    """Return the names of the float outputs with maps; CaseError without any."""
    names = tuple(
        name
        for name in float_outputs(outputs)
        if outputs[name].ndim in (3, 4) and min(maps_of(outputs[name]).shape[2:]) >= SIDE
    )
    if not names:
        raise lacking("peaks needs heat maps [N, maps, height, width]", outputs)
    return names


def maps_of(array: NDArray[Any]) -> NDArray[Any]:
    """Return [N, maps, height, width] of an array with three or four axes."""
    array = array if array.ndim > 3 else array[None]
    return np.moveaxis(array, class_axis(array.shape), 1)


def heights(arrays: Sequence[NDArray[Any]]) -> list[Floats]:
    """Return the heights of the maps of one output, of samples that are all finite."""
    logits = min(float(array.min()) for array in arrays) < LOGITS
    return [_heights(maps_of(array), logits=logits) for array in arrays]


def _least(low: float, high: float) -> float:
    """Return the least height of a peak, given the smallest and the largest value."""
    return VISIBLE * float(_heights(np.array(high), logits=low < LOGITS))


def _heights(values: NDArray[Any], *, logits: bool) -> Floats:
    """Return heights: values as they are, or the sigmoid of logits; NaN stays."""
    values = values.astype(np.float64)
    return sigmoid(values) if logits else values


def _agreeing(ours: Floats, theirs: Floats, least: float) -> Iterator[bool]:
    """Yield, for each peak of `ours` f64[maps, height, width], whether `theirs` agrees."""
    tops = _tops(ours, least)
    high, near, around = ours[tops], theirs[tops], _highest(theirs, _AROUND)[tops]
    with np.errstate(invalid="ignore"):
        alike = (np.abs(near - high) <= _HEIGHT * high) & (near >= around - _FLAT * high)
    yield from map(bool, alike)


def _tops(heights: Floats, least: float) -> NDArray[np.bool_]:
    return np.asarray((heights >= least) & (heights > 0) & (heights == _highest(heights, _AROUND)))


def _highest(heights: Floats, reach: int) -> Floats:
    """Return the largest value within `reach` pixels, along both last axes; NaN if one is NaN."""
    for axis in (-2, -1):
        length, wide = heights.shape[axis], [(0, 0)] * heights.ndim
        wide[axis] = (reach, reach)
        padded = np.pad(heights, wide, constant_values=-np.inf)
        parts = (padded.take(range(i, i + length), axis=axis) for i in range(2 * reach + 1))
        heights = np.max(np.stack(list(parts)), axis=0)
    return heights
