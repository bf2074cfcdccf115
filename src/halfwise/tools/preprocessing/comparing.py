"""Compare one input of two pipelines: how it is stored, and its values.

Each step makes A like B in what it explains; the next one sees the rest. Where something is left
that no step explains, only how arrays are stored is named: the rest would be a guess.
"""

from collections.abc import Sequence
from itertools import permutations, product
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter

from halfwise.errors import CaseError
from halfwise.tools.preprocessing.changes import (
    KNOWN,
    Array,
    Change,
    Difference,
    Layout,
    layout_of,
    pairs,
    relaid,
    reordered,
    run,
    scaled,
    transformation,
    written,
)

Arrays = Sequence[NDArray[Any]]

_LOSSY = ("resampling", "fit", "shape", "values")
"""Differences that no code undoes, or only about."""
_MOST_FITTED = 6
"""Samples on which a difference is found; the residual uses all."""
_EXPLAINED = 1e-3
"""Deviation from a line over that of values that are no image, up to which it explains them."""
_ROUNDED = 2.0
"""Levels of 255 that rounding explains: two roundings in another order."""
_FINE, _SLACK, _ROUGH = 2e-4, 0.004, 0.012
"""Slack in gain, and in offset over 255 levels: only float rounding, bytes (a level is 0.0039),
other kernels."""
_FLOAT = 0.06
"""Levels that FP16 after ImageNet's normalisation is off by at most; FP32 by a thousandth of it."""
_LEAST = 24.0
"""Levels between the darkest and the lightest pixel of a normalisation that may be."""
_BETTER = 0.36
"""Ratio of squared misfits that another channel order must reach; grey images fit any order and
stay at 1."""
_BLUR = 2.5
"""Standard deviation of blurs in pixels."""
_DETAIL = 0.25
"""Share of what is left that a blur keeps, up to which it is fine detail: what kernels change."""
_FLAT = 1e-9
_ALIKE = 0.95
"""Correlation of blurred images of the same view in other colours."""


class Compared(Struct, frozen=True):
    """How two pipelines differ on one input.

    Attributes:
        differences: In the order in which pipelines apply them; empty if there are none.
        code: Python that makes a sample of B of one of A, with NumPy only; "" if nothing is to do.
        exact: Whether only rounding is left.
    """

    differences: tuple[Difference, ...]
    code: str
    exact: bool


def compare_arrays(a: Arrays, b: Arrays) -> Compared:
    """Return how two pipelines differ on one input.

    Args:
        a: Samples of A: finite numbers of any shape, which may vary between samples; or text,
            compared for equality.
        b: The same samples of B.

    Raises:
        CaseError: Samples of one pipeline are images of several layouts.
    """
    first, other = a[0], b[0]
    stored = Change.of("dtype", first.dtype, other.dtype)
    one, two = _layout(a, "A"), _layout(b, "B")
    if one and two:
        stored += relaid(one, two)
        change, level = _compare_images(a, b, (one, two))
        lines = (*one.read, *change.lines, *two.write)
    else:
        change, level = _compare_plain(a, b)
        lines = change.lines
    code = written(lines, other.dtype) if stored.differences or change.lines else ""
    largest = _residual(a, b, code)
    if largest > _ROUNDED * level and not any(d.kind in _LOSSY for d in change.differences):
        change += Change.of("values")
    return Compared((stored + change).differences, code, exact=largest <= 1.01 * level)


def _layout(samples: Arrays, who: str) -> Layout | None:
    """Return the layout of the first sample, which all have, but for reshaped ones."""
    first = layout_of(samples[0])
    for i, sample in enumerate(samples) if first else ():
        each = layout_of(sample)
        if first and (each is None or (each.order, each.lead) != (first.order, first.lead)):
            raise CaseError(
                f"Sample {i} of {who} has the shape {sample.shape}; expected {first}, like the "
                "first sample.",
                "Give all samples in one layout.",
            )
    return first


def _residual(a: Arrays, b: Arrays, code: str) -> float:
    """Return the largest |A transformed − B|, 1 for text that differs; inf if a shape differs."""
    make, largest = transformation(code) if code else np.asarray, 0.0
    for x, y in zip(a, b, strict=True):
        made = make(x)
        if made.shape != y.shape:
            return np.inf
        rest = np.abs(made.astype(float) - y) if y.dtype.kind in "biuf" else made != y
        largest = max(largest, float(rest.max(initial=0)))
    return largest


def _compare_plain(a: Arrays, b: Arrays) -> tuple[Change, float]:
    """Return how numbers that are no image differ (shapes, one gain and offset), and a level."""
    sizes = [Change.of("shape", x.shape, y.shape) for x, y in zip(a, b, strict=True)]
    unlike = next((each for each in sizes if each.differences), Change())
    if unlike.differences or {a[0].dtype.kind, b[0].dtype.kind} - {*"biuf"} or not b[0].size:
        # Text is equal or not, which the residual says.
        return unlike, 1 / 255
    left, right = (np.concatenate([np.ravel(x) for x in side]).astype(float) for side in (a, b))
    gain, offset, misfit = _line(left, right)
    explained = misfit < _EXPLAINED * (right.std() or 1.0)
    change = scaled(np.array([gain]), np.array([offset])) if explained else Change()
    return change, float(np.ptp(right)) / 255 or 1.0


def _compare_images(a: Arrays, b: Arrays, layouts: tuple[Layout, Layout]) -> tuple[Change, float]:
    """Compare images by values, then fine detail.

    Returns:
        The change to [channels, rows, columns], and one of 255 levels in B's unit.
    """
    chosen = sorted({*np.linspace(0, len(b) - 1, min(len(b), _MOST_FITTED)).astype(int)})
    left, right = (
        [run(layout.read, side[i]) for i in chosen]
        for side, layout in zip((a, b), layouts, strict=True)
    )
    if any(x.shape[1:] != y.shape[1:] for x, y in zip(left, right, strict=True)):
        return Change.of("fit"), float(max(map(np.ptp, right))) / 255 or 1.0
    soft = [[blurred(x) for x in side] for side in (left, right)]
    tone, level = _tone(left, right, *soft)
    rest = [(y - run(tone.lines, x)) / level for x, y in zip(left, right, strict=True)]
    if _misfit(rest) <= _ROUNDED:
        return tone, level
    # Two channels may look the same in other colours.
    same = any(
        correlation([x[i] for x in soft[0]], [y[j] for y in soft[1]]) >= _ALIKE
        for i, j in product(range(len(left[0])), range(len(right[0])))
    )
    kept = sum(np.mean(blurred(x) ** 2) for x in rest)
    if same and kept <= _DETAIL * sum(np.mean(x**2) for x in rest):
        return tone + Change.of("resampling"), level
    return Change.of("values" if same else "fit"), level


def blurred(image: Array) -> Array:
    """Return f64[..., h, w] without fine detail: the contrast of different kernels is the same."""
    return np.asarray(gaussian_filter(image, _BLUR, mode="nearest", axes=(-2, -1)))


def correlation(a: Arrays, b: Arrays) -> float:
    """Return the mean correlation in [0, 1] of pairs; one may be the negative of the other.

    An image of one value correlates with another of one value only.
    """
    each = []
    for pair in zip(a, b, strict=True):
        # Blurring one value leaves rounding.
        one, other = (x - x.mean() if np.ptp(x) > _FLAT * np.abs(x).max() else 0 * x for x in pair)
        size = float(np.sqrt((one**2).sum() * (other**2).sum()))
        each.append(abs(np.vdot(one, other)) / size if size else one.any() == other.any())
    return float(np.mean(each))


def _tone(a: Arrays, b: Arrays, soft_a: Arrays, soft_b: Arrays) -> tuple[Change, float]:
    """Return how values of images differ that show the same, and one of 255 levels in B's unit.

    Channels, gain and offset are those of the blurred images, which other kernels leave.
    """
    some, other = _pooled(a), _pooled(b)
    channels, gain, offset = _photometry(_pooled(soft_a), _pooled(soft_b))
    likely = [n for n in KNOWN if n.admits(other.min(), other.max(), len(other), _LEAST)]
    level = float(likely[0].line(len(other))[0].max() if likely else np.ptp(other) / 255) or 1.0
    misfit = _misfit([other - some[channels] * gain[:, None] - offset[:, None]]) / level
    slack = _FINE if misfit < _FLOAT else _SLACK if misfit <= _ROUNDED else _ROUGH
    change = reordered(channels, len(some))
    if max(2 * np.abs(gain - 1).max(), np.abs(offset).max() / (255 * level)) <= slack:
        return change, level
    alike = len(some) == len(other)
    usual = pairs(channels, (some.min(), some.max()), _LEAST) if alike else []
    near = (pair.change for pair in usual if pair.distance(gain, offset) <= slack)
    return change + next(near, scaled(gain, offset)), level


def _misfit(rest: Arrays) -> float:
    """Return the size that 999 of 1,000 values do not exceed."""
    return float(np.percentile(np.abs(np.concatenate([x.ravel() for x in rest])), 99.9))


def _pooled(images: Arrays) -> Array:
    """Return each second row and column of all images, f64[channels, pixels]."""
    return np.concatenate([x[:, ::2, ::2].reshape(len(x), -1) for x in images], axis=1)


def _photometry(a: Array, b: Array) -> tuple[list[int], Array, Array]:
    """Return the channel of A for each of B, and its gain and offset; pixels f64[channels, n]."""
    fits = np.array([[_line(x, y) for x in a] for y in b])
    apart = (fits[..., 2] / [[y.std() or 1.0] for y in b]) ** 2
    straight, some = tuple(range(len(b))), range(len(a))
    orders = permutations(some) if len(a) == len(b) else product(some, repeat=len(b))

    def misfit(order: tuple[int, ...]) -> float:
        return float(apart[straight, order].sum()) * (_BETTER if order == straight else 1)

    channels = min(orders, key=misfit)
    gain, offset, _ = fits[straight, channels].T
    return list(channels), gain, offset


def _line(x: Array, y: Array) -> tuple[float, float, float]:
    """Return gain, offset and RMS residual from `x` to `y`, f64[n].

    The gain is the ratio of deviations, which images that do not lie quite alike keep. Both are
    those of percentiles 2 to 98, which a few outliers do not change.
    """
    steps = np.linspace(0.02, 0.98, 97)
    one, other = np.quantile(x, steps), np.quantile(y, steps)
    if not one.std() or not other.std():
        one, other = x, y
    gain = float(other.std() / (one.std() or np.inf)) or 1.0
    gain *= 1 if np.vdot(x - x.mean(), y) >= 0 else -1
    offset = float(other.mean() - gain * one.mean())
    return gain, offset, float(np.sqrt(np.mean((y - gain * x - offset) ** 2)))
