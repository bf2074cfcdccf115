"""Compare one input of two pipelines: how it is stored, where images lie, and their values.

Each step makes A like B in what it explains; the next one sees the rest. Where something is left
that no step explains, only how arrays are stored is named: the rest would be a guess.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter
from scipy.optimize import linear_sum_assignment

from halfwise.errors import CaseError
from halfwise.records import InputComparison
from halfwise.tools.preprocessing.changes import (
    KNOWN,
    TURNS,
    Array,
    Change,
    Layout,
    Pair,
    layout_of,
    pairs,
    relaid,
    reordered,
    run,
    scaled,
    transformation,
    written,
)
from halfwise.wording import dimensions, percent

Arrays = Sequence[NDArray[Any]]
Images = Sequence[Array]
Shift = tuple[int, ...]
Part = tuple[slice, slice]

_LOSSY = ("kernel", "resampling", "fit", "shape", "values")
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
_MOST_PIXELS = 100_000
_MOST_RESIZED = 3
_TRUSTED, _TIED = 0.15, 0.0015
"""Errors, over an image's deviation, up to which a kernel is believed, and two are equal."""
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


@dataclass(frozen=True)
class _Seen:
    """What differs.

    Attributes:
        change: The differences, and the lines from A to B.
        level: One of 255 levels in B's unit.
        part: Rows and columns of B's images that A shows too.
    """

    change: Change
    level: float = 1 / 255
    part: Part = (slice(None), slice(None))


def compare_arrays(
    a: Arrays,
    b: Arrays,
    *,
    name: str = "input",
    name_b: str | None = None,
    raws: Arrays | None = None,
) -> InputComparison:
    """Return how two pipelines differ on one input.

    Args:
        a: Samples of A: finite numbers of any shape, which may vary between samples; or text,
            compared for equality.
        b: The same samples of B.
        name: Name of the input in A.
        name_b: Name in B, if it differs.
        raws: The raw image behind each sample, [h, w], [h, w, c] or [c, h, w] with values from 0 to
            255. With them, and Pillow, resize kernels are named.

    Raises:
        CaseError: Samples of one pipeline are images of several layouts.
    """
    first, other = a[0], b[0]
    one, two = layout_of(first), layout_of(other)
    seen = _compare_images(a, b, (one, two), raws) if one and two else _compare_plain(a, b)
    change = seen.change
    if first.dtype != other.dtype:
        what = f"B is {other.dtype}, A is {first.dtype}."
        change = Change.of("dtype", what, first.dtype, other.dtype) + change
    changed = change.lines or first.dtype != other.dtype
    code = written(change.lines, other.dtype) if change.differences and changed else ""
    largest = _residual(a, b, seen, code)
    if largest > _ROUNDED * seen.level and not any(d.kind in _LOSSY for d in change.differences):
        what = "Values differ, and no known step explains how."
        change += Change.of("values", what, "", "")
    return InputComparison(
        name=name,
        name_b=name_b or name,
        samples=len(b),
        shape_a=first.shape,
        shape_b=other.shape,
        dtype_a=first.dtype.name,
        dtype_b=other.dtype.name,
        differences=change.differences,
        residual_max=largest,
        level=seen.level,
        exact=largest <= 1.01 * seen.level,
        code=code,
    )


def _residual(a: Arrays, b: Arrays, seen: _Seen, code: str) -> float:
    """Return the largest |A transformed − B| where both show the same; inf if a shape differs."""
    make = transformation(code) if code else np.asarray
    largest = 0.0
    for x, y in zip(a, b, strict=True):
        if y.dtype.kind not in "biuf":
            largest = largest if np.array_equal(x, y) else np.inf
        elif (made := make(x)).shape != y.shape:
            return np.inf
        else:
            rest, layout = np.abs(made.astype(np.float64) - y), layout_of(y)
            shown = run(layout.read, rest)[(..., *seen.part)] if layout else rest
            largest = max(largest, float(shown.max(initial=0)))
    return largest


def _compare_plain(a: Arrays, b: Arrays) -> _Seen:
    """Compare numbers that are no image: shapes, one gain and offset."""
    for x, y in zip(a, b, strict=True):
        if x.shape != y.shape:
            what = f"B is {y.shape}, A is {x.shape}."
            return _Seen(Change.of("shape", what, x.shape, y.shape))
    if {a[0].dtype.kind, b[0].dtype.kind} - {*"biuf"} or not b[0].size:
        # Text is equal or not, which the residual says.
        return _Seen(Change())
    left, right = (np.concatenate([np.ravel(x) for x in side]).astype(float) for side in (a, b))
    gain, offset, misfit = _line(left, right)
    level = float(np.ptp(right)) / 255 or 1.0
    explained = misfit < _EXPLAINED * (right.std() or 1.0)
    return _Seen(scaled(np.array([gain]), np.array([offset])) if explained else Change(), level)


def _compare_images(
    a: Arrays, b: Arrays, layouts: tuple[Layout, Layout], raws: Arrays | None
) -> _Seen:
    """Compare images: axes, turn, shift, values, kernel."""
    stored = _stored(a, b, layouts)
    chosen = sorted({*np.linspace(0, len(b) - 1, min(len(b), _MOST_FITTED)).astype(int)})
    left, right = (
        [run(layout.read, side[i]) for i in chosen]
        for side, layout in zip((a, b), layouts, strict=True)
    )
    view = aligned(left, right)
    tone, level = _tone(view.a, view.b)
    rest = [(y - run(tone.lines, x)) / level for x, y in zip(view.a, view.b, strict=True)]
    change, part, same = view.change + tone, view.part, _same_view(view)
    exact = _misfit(rest) <= _ROUNDED
    if not same or not (exact or _power(map(blurred, rest)) <= _DETAIL * _power(rest)):
        sizes = [dimensions(images[0].shape[1:]) for images in (left, right)]
        change, part = _unlike(*sizes, same=same), _Seen.part
    elif not exact:
        raw = [raws[i] for i in chosen[:_MOST_RESIZED]] if raws else []
        change += _kernel(raw, left, right)
    if stored.differences or change.lines:
        change = Change(lines=layouts[0].read) + change + Change(lines=layouts[1].write)
    return _Seen(stored + change, level, part)


def _unlike(size: str, size_b: str, *, same: bool) -> Change:
    """Return that nothing makes images alike, which show the `same` or not."""
    if same and size == size_b:
        what = "The values differ by more than channel order, a gain and an offset"
        likely = "padding, gamma, other colours, or each image's own mean and deviation would do so"
        return Change.of("values", f"{what}; not taken apart further.", "", "", evidence=likely)
    what = "The images differ in how they are fitted, padded or sized, or show something else"
    next_step = "make resize, crop and padding alike and compare again to see what else differs"
    return Change.of("fit", f"{what}; not taken apart further.", size, size_b, evidence=next_step)


def _same_view(view: "View") -> bool:
    """Return whether two channels look the same without fine detail, in other colours maybe."""
    soft = [[blurred(x) for x in side] for side in (view.a, view.b)]
    return any(
        correlation([x[i] for x in soft[0]], [y[j] for y in soft[1]]) >= _ALIKE
        for i, j in product(range(len(view.a[0])), range(len(view.b[0])))
    )


def _stored(a: Arrays, b: Arrays, layouts: tuple[Layout, Layout]) -> Change:
    """Return how the layouts differ; raise a CaseError unless all samples have the first's."""
    for samples, layout, who in zip((a, b), layouts, "AB", strict=True):
        for i, sample in enumerate(samples):
            other = layout_of(sample) or replace(layout, lead=-1)
            if (other.order, other.lead) != (layout.order, layout.lead):
                raise CaseError(
                    f"Sample {i} of {who} has the shape {sample.shape}; expected {layout}, like "
                    "the first sample.",
                    "Give all samples in one layout.",
                )
    change = Change()
    if layouts[0].lead != layouts[1].lead:
        axes = ["with" if each.lead else "without" for each in layouts]
        what = f"B is {axes[1]} a batch axis, A {axes[0]}."
        change = Change.of("batch-axis", what, a[0].shape, b[0].shape)
    one, other = (replace(layout, lead=0) for layout in layouts)
    return change if one == other else change + relaid(*layouts)


def grey(image: Array) -> Array:
    """Return the mean of all channels, each scaled to mean 0 and deviation 1; f64[h, w]."""
    made: Array = np.mean([(x - x.mean()) / (x.std() or 1.0) for x in image], axis=0)
    return made


def blurred(image: Array) -> Array:
    """Return f64[..., h, w] without fine detail: the contrast of different kernels is the same."""
    made: Array = gaussian_filter(image, (0,) * (image.ndim - 2) + (_BLUR,) * 2, mode="nearest")
    return made


def correlation(a: Images, b: Images) -> float:
    """Return the mean correlation in [0, 1] of pairs; one may be the negative of the other.

    An image of one value correlates with another of one value only.
    """
    each = []
    for pair in zip(a, b, strict=True):
        # Blurring one value leaves rounding.
        one, other = (x - x.mean() if np.ptp(x) > _FLAT * np.abs(x).max() else 0 * x for x in pair)
        size = float(np.sqrt((one**2).sum() * (other**2).sum()))
        equal = float(one.any() == other.any())
        each.append(abs(float((one * other).sum())) / size if size else equal)
    return float(np.mean(each))


@dataclass(frozen=True)
class View:
    """What A and B both show, if B is turned and shifted at most.

    Attributes:
        a: A's, f64[c, h, w] each.
        b: B's, likewise.
        change: The turn and the shift, and the lines to B's images from A's.
        part: The rows and columns of B's images.
    """

    a: Images
    b: Images
    change: Change
    part: Part


def aligned(a: Images, b: Images) -> View:
    """Return the view in which images f64[c, h, w] look most alike, mostly the whole of them."""
    soft, target = ([blurred(grey(x))[::2, ::2] for x in side] for side in (a, b))

    def likeness(turn: Change) -> float:
        turned = [run(turn.lines, x) for x in soft]
        return _likeness(turned, target, _centred(turned, target)) - _TURNED * bool(turn.lines)

    change = max((Change(), *TURNS.values()), key=likeness)
    a = [run(change.lines, x) for x in a]
    one, other = ([grey(x) for x in side] for side in (a, b))
    shift, moved = _centred(one, other), displacement(one, other)
    if 1 - _likeness(one, other, moved) < _SHIFTED * (1 - _likeness(one, other, shift)):
        shift = moved
    if any(shift) or one[0].shape != other[0].shape:
        sizes = zip(("rows", "columns"), shift, one[0].shape, other[0].shape, (1, 2), strict=True)
        lines = [
            f"{name} = np.arange({step}, x.shape[{axis}] {m - n + step:+d})"
            f".clip(0, x.shape[{axis}] - 1)"
            for name, step, n, m, axis in sizes
        ]
        what = f"B begins {shift[0]} rows further down and {shift[1]} columns further right."
        change += Change.of("crop", what, "(0, 0)", shift, *lines, "x = x[:, rows][:, :, columns]")
    return View(*_overlaps(a, b, shift), change, _part(one[0], other[0], shift))


def _centred(a: Images, b: Images) -> Shift:
    """Return the shift at which the first images have the same middle."""
    return tuple((n - m) // 2 for n, m in zip(a[0].shape, b[0].shape, strict=True))


def _part(a: Array, b: Array, shift: Shift) -> Part:
    """Return where `b`, [..., h, w], shows what `a` does if b[i] is a[i + shift]."""
    sizes = zip(shift, a.shape[-2:], b.shape[-2:], strict=True)
    rows, columns = (slice(max(0, -step), min(0, n - step - m) or None) for step, n, m in sizes)
    return rows, columns


def _overlaps(a: Images, b: Images, shift: Shift) -> tuple[Images, Images]:
    """Return the parts of images [..., h, w] where b[i] is a[i + shift]."""
    back = tuple(-step for step in shift)
    one = [x[(..., *_part(y, x, back))] for x, y in zip(a, b, strict=True)]
    return one, [y[(..., *_part(x, y, shift))] for x, y in zip(a, b, strict=True)]


def _likeness(a: Images, b: Images, shift: Shift) -> float:
    """Return the correlation of f64[h, w] at a shift; 0 unless half of the smaller is in both."""
    one, other = _overlaps(a, b, shift)
    sizes = [(x.size, min(y.size, z.size)) for x, y, z in zip(one, a, b, strict=True)]
    alike = all(x.shape == y.shape for x, y in zip(one, other, strict=True))
    return correlation(one, other) if alike and all(2 * n >= m for n, m in sizes) else 0.0


def displacement(a: Images, b: Images) -> Shift:
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
    sizes = zip(map(int, peak), map(int, shape), strict=True)
    return tuple(p - n * (2 * p > n) for p, n in sizes)


def _tone(a: Images, b: Images) -> tuple[Change, float]:
    """Return how values of images differ that show the same, and one of 255 levels in B's unit."""
    some, other = _pooled(a), _pooled(b)
    channels, gain, offset = _photometry(some, other)
    rest = other - some[channels] * gain[:, None] - offset[:, None]
    misfit = _misfit([rest]) * 255 / (np.ptp(other, axis=1).max() or 1.0)
    slack = _FINE if misfit < _FLOAT else _SLACK
    if misfit > _ROUNDED:
        channels, gain, offset = _photometry(*(_pooled([*map(blurred, x)]) for x in (a, b)))
        slack = _ROUGH
    likely = [n for n in KNOWN if n.admits(other.min(), other.max(), len(other), _LEAST)]
    level = float(likely[0].line(len(other))[0].max() if likely else np.ptp(other) / 255) or 1.0
    change = reordered(channels, len(some))
    if max(2 * np.abs(gain - 1).max(), np.abs(offset).max() / (255 * level)) <= slack:
        return change, level

    def cost(pair: Pair) -> float:
        units = pair.b.line(len(channels))[0] * 255
        off = np.abs(gain / pair.line[0] - 1), np.abs(offset - pair.line[1]) / units
        worst = float(np.max(off)) / slack
        return worst + pair.cost if worst <= 1 else np.inf

    usual = pairs(channels, len(some), (some.min(), some.max()), _LEAST)
    pair = min(usual, key=cost, default=None)
    if pair is None or cost(pair) == np.inf:
        return change + scaled(gain, offset), level
    return change + scaled(*pair.line, pair), float(pair.b.line(len(other))[0].max())


def _misfit(rest: Images) -> float:
    """Return the size that 999 of 1,000 values do not exceed."""
    return float(np.percentile(np.abs(np.concatenate([x.ravel() for x in rest])), 99.9))


def _power(rest: Iterable[Array]) -> float:
    return float(np.mean([np.mean(x**2) for x in rest]))


def _pooled(images: Images) -> Array:
    """Return about 100,000 pixels of all images, f64[channels, pixels]."""
    pixels = np.concatenate([x.reshape(len(x), -1) for x in images], axis=1)
    return pixels[:, :: -(-pixels.shape[1] // _MOST_PIXELS)]


def _photometry(a: Array, b: Array) -> tuple[list[int], Array, Array]:
    """Return the channel of A for each of B, and its gain and offset; pixels f64[channels, n]."""
    fits = np.array([[_line(x, y) for x in a] for y in b])
    apart = (fits[..., 2] / [[y.std() or 1.0] for y in b]) ** 2
    straight = np.arange(len(b))
    channels = apart.argmin(axis=1)
    if len(a) == len(b):
        channels = linear_sum_assignment(apart)[1]
        if apart[straight, channels].sum() >= _BETTER * np.trace(apart):
            channels = straight
    gain, offset, _ = fits[straight, channels].T
    return channels.tolist(), gain, offset


def _line(x: Array, y: Array) -> tuple[float, float, float]:
    """Return gain, offset and RMS residual from `x` to `y`, f64[n], without outliers.

    The gain is the ratio of deviations, which images that do not lie quite alike keep. Outliers lie
    beyond four deviations. What is left must keep a tenth of the variance: a page's background
    alone fits any line.
    """
    kept = np.ones(x.shape, np.bool_)
    for _ in range(4):
        one, other = x[kept], y[kept]
        gain = float(other.std() / (one.std() or np.inf)) or 1.0
        gain *= 1 if np.vdot(one - one.mean(), other) >= 0 else -1
        offset = float(other.mean() - gain * one.mean())
        left = np.abs(y - gain * x - offset)
        limit = 4 * 1.4826 * float(np.median(left[kept]))
        inside = kept & (left <= max(limit, 1e-6 * float(np.ptp(y))))
        if inside.sum() < 0.5 * kept.sum() or x[inside].var() < 0.1 * one.var():
            break
        kept = inside
    return gain, offset, float(np.sqrt(np.mean(left[kept] ** 2)))


_KERNELS: dict[str, tuple[str, float | None]] = {
    "bilinear with antialiasing": ("BILINEAR", None),
    "bicubic with antialiasing": ("BICUBIC", None),
    "Lanczos": ("LANCZOS", None),
    "area": ("BOX", None),
    "Hamming": ("HAMMING", None),
    "nearest": ("NEAREST", 0.0),
    "nearest from the corner, as OpenCV's": ("NEAREST", -0.4999),
    "bilinear": ("BILINEAR", 0.0),
    "bicubic": ("BICUBIC", 0.0),
}
"""Pillow's name of each; without antialiasing, how far from the middle of a result's pixel it
samples, in its lengths: half of one, less what rounding may take to the pixel before."""


def _resized(plane: Array, size: tuple[int, int], kernel: str) -> Array:
    """Return a plane f64[h, w] with values from 0 to 255 at (columns, rows), as Pillow resizes."""
    from PIL.Image import Resampling, Transform, fromarray  # noqa: PLC0415 - optional

    (name, middle), image = _KERNELS[kernel], fromarray(plane.astype(np.float32))
    if middle is None:
        made = image.resize(size, Resampling[name])
    else:
        left, top = (middle * n / m for n, m in zip(image.size, size, strict=True))
        extent = left, top, left + image.size[0], top + image.size[1]
        made = image.transform(size, Transform.EXTENT, extent, Resampling[name])
    return np.clip(np.asarray(made, np.float64), 0, 255)


def _kernel(raws: Arrays, a: Images, b: Images) -> Change:
    """Return how the kernels differ, by which raw images were resized to f64[c, h, w].

    Kernels are known if one comes near on both sides; they differ if exchanging them fits clearly
    worse. Ties are below a factor of 1.05.
    """
    sources = [run(layout.read, raw) for raw in raws if (layout := layout_of(raw))]
    what = (
        "What is left is fine detail: another kernel or decoder, or places off by a pixel or two."
    )
    unknown = Change.of("resampling", what, "", "", evidence="raw images can name the kernels")
    if len(sources) < max(1, len(raws)):
        return unknown
    errors = [np.mean([*map(_errors, sources, side)], axis=0) for side in (a, b)]
    one, other = (int(side.argmin()) for side in errors)
    least = errors[0][one], errors[1][other]
    if max(least) > _TRUSTED:
        return unknown
    exchanged = errors[0][other], errors[1][one]
    if all(x <= max(1.25 * y, y + _TIED) for x, y in zip(exchanged, least, strict=True)):
        return Change()
    names = list(_KERNELS)[one], list(_KERNELS)[other]
    what = f"Images are resized with different kernels: {names[1]} in B, {names[0]} in A."
    errors_of_a = f"A is off by {percent(least[0])} of its deviation with its own"
    return Change.of(
        "kernel", what, *names, evidence=f"{errors_of_a}, by {percent(exchanged[0])} with B's"
    )


def _errors(raw: Array, image: Array) -> Array:
    """Return each kernel's error: RMS in grey over the deviation of `image`; both f64[c, h, w].

    Sizes are those of an image that is stretched, of the shorter side (to 8/7 before a crop), and
    of the longer side: the one that fits counts.
    """

    def error(kernel: str, rows: float, columns: float) -> float:
        size = round(columns * raw.shape[2]), round(rows * raw.shape[1])
        view = aligned([np.stack([_resized(plane, size, kernel) for plane in raw])], [image])
        same = correlation([grey(view.a[0])], [grey(view.b[0])])
        return float(np.sqrt(max(0.0, 1 - same**2)))

    scales = image.shape[1] / raw.shape[1], image.shape[2] / raw.shape[2]
    short, long = (f(image.shape[1:]) / f(raw.shape[1:]) for f in (min, max))
    sizes = (scales, (short, short), (short * 8 / 7,) * 2, (long, long))
    best = min(sizes, key=lambda size: error("bilinear with antialiasing", *size))
    return np.array([error(kernel, *best) for kernel in _KERNELS])
