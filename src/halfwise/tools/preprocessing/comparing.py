"""Compare one input of two pipelines: how it is stored, where images lie, and their values.

Each step makes A like B in what it explains; the next one sees the rest. Where something is left
that no step explains, only how arrays are stored is named: the rest would be a guess.
"""

from collections.abc import Sequence
from itertools import permutations, product
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter

from halfwise.errors import CaseError
from halfwise.records import InputComparison
from halfwise.tools.preprocessing.changes import (
    KNOWN,
    TURNS,
    Array,
    Change,
    Layout,
    Lines,
    Size,
    cropped,
    layout_of,
    overlap,
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
_TURNED = 0.03
"""Gain in mean correlation required of a turn; photos gain 0.2 to 1."""
_SHIFTED = 0.5
"""Ratio of what correlation lacks to 1 that a shift must reach."""
_BLUR = 2.5
"""Standard deviation of blurs in pixels."""
_DETAIL = 0.25
"""Share of what is left that a blur keeps, up to which it is fine detail: what kernels change."""
_FLAT = 1e-9
_ALIKE = 0.95
"""Correlation of blurred images of the same view in other colours."""


def compare_arrays(
    a: Arrays,
    b: Arrays,
    *,
    name: str = "input",
    name_b: str | None = None,
) -> InputComparison:
    """Return how two pipelines differ on one input.

    Args:
        a: Samples of A: finite numbers of any shape, which may vary between samples; or text,
            compared for equality.
        b: The same samples of B.
        name: Name of the input in A.
        name_b: Name in B, if it differs.

    Raises:
        CaseError: Samples of one pipeline are images of several layouts.
    """
    first, other = a[0], b[0]
    stored = Change.of("dtype", first.dtype, other.dtype)
    one, two = _layout(a, "A"), _layout(b, "B")
    if one and two:
        stored += relaid(one, two)
        change, level, shown = _compare_images(a, b, (one, two))
        lines, shown = (*one.read, *change.lines, *two.write), (*two.read, *shown)
    else:
        change, level = _compare_plain(a, b)
        lines, shown = change.lines, ()
    code = written(lines, other.dtype) if stored.differences or change.lines else ""
    largest = _residual(a, b, code, shown)
    if largest > _ROUNDED * level and not any(d.kind in _LOSSY for d in change.differences):
        change += Change.of("values")
    return InputComparison(
        name=name,
        name_b=name_b or name,
        samples=len(b),
        shape_a=first.shape,
        shape_b=other.shape,
        dtype_a=first.dtype.name,
        dtype_b=other.dtype.name,
        differences=(stored + change).differences,
        residual_max=largest,
        level=level,
        exact=largest <= 1.01 * level,
        code=code,
    )


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


def _residual(a: Arrays, b: Arrays, code: str, shown: Lines) -> float:
    """Return the largest |A transformed − B| in what lines show of B; inf if a shape differs.

    Text differs by 1.
    """
    make, largest = transformation(code) if code else np.asarray, 0.0
    for x, y in zip(a, b, strict=True):
        made = make(x)
        if made.shape != y.shape:
            return np.inf
        rest = np.abs(made.astype(float) - y) if y.dtype.kind in "biuf" else made != y
        largest = max(largest, float(run(shown, rest).max(initial=0)))
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


def _compare_images(
    a: Arrays, b: Arrays, layouts: tuple[Layout, Layout]
) -> tuple[Change, float, Lines]:
    """Compare images by turn and shift, values, fine detail.

    Returns:
        The change to [channels, rows, columns], one of 255 levels in B's unit, and the lines to
        what A shows too of such an image of B.
    """
    chosen = sorted({*np.linspace(0, len(b) - 1, min(len(b), _MOST_FITTED)).astype(int)})
    left, right = (
        [run(layout.read, side[i]) for i in chosen]
        for side, layout in zip((a, b), layouts, strict=True)
    )
    place, shown = aligned(left, right)
    view = [run((*place.lines, *shown), x) for x in left], [run(shown, y) for y in right]
    soft = [[blurred(x) for x in side] for side in view]
    tone, level = _tone(*view, *soft)
    rest = [(y - run(tone.lines, x)) / level for x, y in zip(*view, strict=True)]
    if _misfit(rest) <= _ROUNDED:
        return place + tone, level, shown
    # Two channels may look the same in other colours.
    same = any(
        correlation([x[i] for x in soft[0]], [y[j] for y in soft[1]]) >= _ALIKE
        for i, j in product(range(len(left[0])), range(len(right[0])))
    )
    kept = sum(np.mean(blurred(x) ** 2) for x in rest)
    if same and kept <= _DETAIL * sum(np.mean(x**2) for x in rest):
        return place + tone + Change.of("resampling"), level, shown
    sizes = {x.shape[1:] for x in (*left, *right)}
    return Change.of("values" if same and len(sizes) == 1 else "fit"), level, ()


def grey(image: Array) -> Array:
    """Return the mean of all channels, each scaled to mean 0 and deviation 1; f64[h, w]."""
    return np.asarray(np.mean([(x - x.mean()) / (x.std() or 1.0) for x in image], axis=0))


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


def aligned(a: Arrays, b: Arrays) -> tuple[Change, Lines]:
    """Return where images f64[c, h, w] look most alike: at a turn, then a shift.

    Returns:
        The change from A's images, and the lines to what A's show too of B's, mostly all.
    """
    soft, target = ([blurred(grey(x))[::2, ::2] for x in side] for side in (a, b))

    def likeness(turn: Change) -> float:
        turned = [run(turn.lines, x) for x in soft]
        return _likeness(turned, target, _centred(turned, target)) - _TURNED * bool(turn.lines)

    change = max((Change(), *TURNS.values()), key=likeness)
    one, other = [grey(run(change.lines, x)) for x in a], [grey(y) for y in b]
    shift, moved = _centred(one, other), displacement(one, other)
    if 1 - _likeness(one, other, moved) < _SHIFTED * (1 - _likeness(one, other, shift)):
        shift = moved
    place = shift, one[0].shape, other[0].shape
    return change + cropped(*place), (overlap(*place),)


def _centred(a: Arrays, b: Arrays) -> Size:
    """Return the shift at which the first images have the same middle."""
    return tuple((n - m) // 2 for n, m in zip(a[0].shape, b[0].shape, strict=True))


def _likeness(a: Arrays, b: Arrays, shift: Size) -> float:
    """Return the correlation of f64[h, w] at a shift; 0 unless half of the smaller is in both."""
    sizes = a[0].shape, b[0].shape
    back = overlap([-step for step in shift], *sizes[::-1])
    one, other = [run((back,), x) for x in a], [run((overlap(shift, *sizes),), y) for y in b]
    parts = zip(one, other, a, b, strict=True)
    alike = all(x.shape == y.shape and 2 * x.size >= min(n.size, m.size) for x, y, n, m in parts)
    return correlation(one, other) if alike else 0.0


def displacement(a: Arrays, b: Arrays) -> Size:
    """Return (rows, columns) so that b[i] ≈ a[i + shift], f64[h, w] each, by phase correlation.

    Kuglin and Hines 1975, "The phase correlation image alignment method", with Hann windows; the
    surfaces of all samples are added.
    """
    shape = np.max([x.shape for x in (*a, *b)], axis=0)
    surface = np.zeros(shape)
    for pair in zip(a, b, strict=True):
        one, other = (np.fft.fft2(x * np.outer(*map(np.hanning, x.shape)), shape) for x in pair)
        cross = one * np.conj(other)
        surface += np.fft.ifft2(cross / np.maximum(np.abs(cross), 1e-12)).real
    peak = np.unravel_index(int(surface.argmax()), surface.shape)
    return tuple(int(p - n * (2 * p > n)) for p, n in zip(peak, shape, strict=True))


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
