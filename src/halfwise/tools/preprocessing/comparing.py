"""Compare one input of two pipelines: how it is stored, where images lie, and their values.

Each step names what differs and makes A like B; the next one sees the rest.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import permutations, product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfwise.errors import CaseError
from halfwise.records import InputComparison
from halfwise.tools.preprocessing.alignment import (
    ROUNDED,
    Arrays,
    Framed,
    Images,
    Shift,
    aligned,
    blurred,
    correlation,
    displacement,
    grey,
    overlap,
    turn_of,
)
from halfwise.tools.preprocessing.changes import (
    KNOWN,
    OWN,
    Array,
    Change,
    Layout,
    Pair,
    layout_of,
    relaid,
    reordered,
    row,
    run,
    scaled,
    transformation,
    written,
)
from halfwise.wording import number, percent

_LOSSY = ("kernel", "resampling", "fit", "size", "padding")
"""Differences that no code undoes, or only about."""
_MOST_FITTED = 6
"""Samples on which a difference is found; the residual uses all."""
_SAME = 1e-5
"""Largest difference that rounding explains, over the range of the values."""
_FINE, _SLACK, _ROUGH, _ROUGHEST = 2e-4, 0.004, 0.012, 0.05
"""Slack in gain, and in offset over 255 levels: only float rounding, bytes (a level is 0.0039),
other kernels, another fit."""
_FLOAT = 0.06
"""Levels that FP16 after ImageNet's normalisation is off by at most; FP32 by a thousandth of it."""
_LEAST = 24.0
"""Levels between the darkest and the lightest pixel of a normalisation that may be."""
_MOST_PIXELS = 100_000
_MOST_RESIZED = 3
_TRUSTED, _TIED = 0.15, 0.0015
"""Errors, over an image's deviation, up to which a kernel is believed, and two are equal."""
_BETTER = 0.6
"""Misfit ratio that another channel order must reach; grey images fit any order and stay at 1."""


@dataclass(frozen=True)
class _Seen:
    """What differs.

    Attributes:
        change: The differences, and the lines from A to B.
        level: One of 255 levels in B's unit.
        shift: Rows and columns by which B's view lies further down and to the right.
    """

    change: Change
    level: float = 1 / 255
    shift: Shift = (0, 0)


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
    code = written(change.lines, other.dtype) if change.differences else ""
    largest = _residual(a, b, seen, code)
    if largest > ROUNDED * seen.level and change.kinds.isdisjoint((*_LOSSY, "shape", "values")):
        told = f"{number(largest / seen.level)} of 255 levels at most" if largest < np.inf else ""
        what = "Values differ, and no known step explains how."
        change += Change.of("values", what, "", "", evidence=told)
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
            left = np.abs(made.astype(np.float64) - y)
            if any(seen.shift) and (layout := layout_of(y)):
                read = run(layout.read, left)
                _, left = overlap(read, read, seen.shift)
            largest = max(largest, float(left.max(initial=0)))
    return largest


def _compare_plain(a: Arrays, b: Arrays) -> _Seen:
    """Compare numbers that are no image: axes, one gain and offset."""
    if a[0].dtype.kind not in "biuf" or b[0].dtype.kind not in "biuf":
        # Equal or not, which the residual says.
        return _Seen(Change())
    straight = tuple(range(a[0].ndim))
    shapes = {p: tuple(a[0].shape[i] for i in p) for p in permutations(straight)}
    axes = next((p for p, shape in shapes.items() if shape == b[0].shape), straight)
    for x, y in zip(a, b, strict=True):
        if x.ndim != len(axes) or x.transpose(axes).shape != y.shape:
            what = f"B is {y.shape}, A is {x.shape}."
            return _Seen(Change.of("shape", what, x.shape, y.shape))
    change = Change()
    if axes != straight:
        what, line = f"B's axes are A's axes {axes}.", f"x = x.transpose({axes})"
        change = Change.of("layout", what, a[0].shape, b[0].shape, line)
    left = np.concatenate([run(change.lines, x).ravel() for x in a])
    right = np.concatenate([np.ravel(y) for y in b]).astype(np.float64)
    spread = float(right.max(initial=-np.inf) - right.min(initial=np.inf))
    spread = spread if spread > 0 else 1.0
    if np.abs(left - right).max(initial=0) <= _SAME * spread:
        return _Seen(change, spread / 255)
    gain, offset, misfit = _line(left, right)
    share = misfit / (float(right.std()) or 1.0)
    if share < 1e-3:
        change += scaled(np.array([gain]), np.array([offset]))
    else:
        told = f"the best gain and offset leave {number(share, 2)} of B's standard deviation"
        what = "The values differ by more than a gain and an offset."
        change += Change.of("values", what, "", "", evidence=told)
    return _Seen(change, spread / 255)


def _compare_images(
    a: Arrays, b: Arrays, layouts: tuple[Layout, Layout], raws: Arrays | None
) -> _Seen:
    """Compare images: axes, turn, frame, place, values, kernel."""
    stored = _stored(a, b, layouts)
    chosen = sorted({*np.linspace(0, len(b) - 1, min(len(b), _MOST_FITTED)).astype(int)})
    left, right = (
        [run(layout.read, side[i]) for i in chosen]
        for side, layout in zip((a, b), layouts, strict=True)
    )
    view = aligned(left, right)
    if view is None:
        what = "A and B do not show the same images."
        return _Seen(stored + Change.of("values", what, "", ""))
    rough = not view.change.kinds.isdisjoint(("fit", "size"))
    tone = _tone(view.a, view.b, rough=rough)
    change = stored + Change(lines=layouts[0].read) + view.change + tone.change
    change += _padding(*view.framed, tone)
    rest = [(y - tone(x)) / tone.level for x, y in zip(view.a, view.b, strict=True)]
    if _misfit(rest) > ROUNDED:
        sources = [raws[i] for i in chosen[:_MOST_RESIZED]] if raws else []
        contents = (each.contents for each in view.framed)
        change += _kernel(sources, *contents) or _resampling(rest, rough=rough)
    return _Seen(change + Change(lines=layouts[1].write), tone.level, view.shift)


def _stored(a: Arrays, b: Arrays, layouts: tuple[Layout, Layout]) -> Change:
    """Return how the layouts differ; raise a CaseError unless all samples have the first's."""
    for samples, layout, who in zip((a, b), layouts, "AB", strict=True):
        for i, sample in enumerate(samples):
            found = layout_of(sample)
            if found is None or (found.order, found.lead) != (layout.order, layout.lead):
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
    if replace(layouts[0], lead=0) != replace(layouts[1], lead=0):
        change += relaid(*layouts)
    return change


@dataclass(frozen=True)
class _Tone:
    """How values differ.

    Attributes:
        change: The differences, and the lines from A to B.
        level: One of 255 levels in B's unit.
        channels: The channel of A for each of B.
        gain: f64[channels], of values after each sample's own normalisation, if B has that alone.
        offset: Likewise.
        own: The lines of that normalisation.
    """

    change: Change
    level: float
    channels: tuple[int, ...]
    gain: Array
    offset: Array
    own: tuple[str, ...] = field(default=())

    def __call__(self, x: Array) -> Array:
        """Return A's values f64[c, h, w] as B's."""
        x = run(self.own, x)[list(self.channels)]
        made: Array = x * self.gain[:, None, None] + self.offset[:, None, None]
        return made


def _tone(a: Images, b: Images, *, rough: bool) -> _Tone:
    """Return how values differ between images that show the same; `rough` if only about."""
    own = OWN if _is_own(b) and not _is_own(a) else Change()
    a = [run(own.lines, x) for x in a]
    channels, gain, offset = _photometry(a, b)
    some, other = _pooled(a), _pooled(b)
    spread = np.ptp(other, axis=1).max() / 255 or 1.0
    fitted = _Tone(own, spread, channels, gain, offset)
    misfit = _misfit([(y - fitted(x)) / spread for x, y in zip(a, b, strict=True)])
    slack = _FINE if misfit < _FLOAT else _SLACK
    if misfit > ROUNDED:
        channels, gain, offset = _photometry([blurred(x) for x in a], [blurred(y) for y in b])
        slack = _ROUGHEST if rough else _ROUGH
    likely = [n for n in KNOWN if n.admits(other.min(), other.max(), len(other), _LEAST)]
    level = float(likely[0].line(len(other))[0].max() if likely else np.ptp(other) / 255) or 1.0
    pair = None
    if max(2 * np.abs(gain - 1).max(), np.abs(offset).max() / (255 * level)) <= slack:
        gain, offset = np.ones_like(gain), np.zeros_like(offset)
    elif pair := _pair(channels, gain, offset, some, slack):
        gain, offset = pair.line
        level = float(pair.b.line(len(other))[0].max())
    change = own + reordered(channels, len(some)) + scaled(gain, offset, pair)
    return _Tone(change, level, channels, gain, offset, own.lines)


def _misfit(left: Images) -> float:
    """Return the level of error that 999 of 1,000 values do not exceed."""
    return float(np.percentile(np.abs(np.concatenate([x.ravel() for x in left])), 99.9))


def _is_own(images: Images) -> bool:
    """Return whether each of several images has a mean of 0 and a deviation of 1."""
    return len(images) > 1 and all(abs(x.mean()) < 2e-3 > abs(x.std() - 1) for x in images)


def _pooled(images: Images) -> Array:
    """Return about 100,000 pixels of all images, f64[channels, pixels]."""
    pixels = np.concatenate([x.reshape(len(x), -1) for x in images], axis=1)
    return pixels[:, :: -(-pixels.shape[1] // _MOST_PIXELS)]


def _photometry(a: Images, b: Images) -> tuple[tuple[int, ...], Array, Array]:
    """Return the channel of A for each of B, and its gain and offset."""
    left, right = _pooled(a), _pooled(b)
    fits = np.array([[_line(x, y) for x in left] for y in right])
    apart = fits[..., 2] / [[y.std() or 1.0] for y in right]
    places = range(len(right))

    def cost(order: tuple[int, ...]) -> float:
        return float(np.sqrt(np.mean([apart[i, order[i]] ** 2 for i in places])))

    channels = tuple(places)
    if len(left) != len(right):
        channels = tuple(int(i) for i in apart.argmin(axis=1))
    elif cost(best := min(permutations(places), key=cost)) < _BETTER * cost(channels):
        channels = best
    gain, offset = np.array([fits[i, c, :2] for i, c in enumerate(channels)]).T
    return channels, gain, offset


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


def _pair(
    channels: tuple[int, ...], gain: Array, offset: Array, a: Array, slack: float
) -> Pair | None:
    """Return the known normalisations of A and B that make a gain and an offset.

    Among about equal fits, the usual ones with the fewest differences.

    Args:
        channels: The channel of A for each of B.
        gain: Measured, f64[channels].
        offset: Likewise.
        a: A's pixels, f64[channels, pixels].
        slack: How far a gain may be off, and an offset as a part of 255 levels.
    """
    best: tuple[float, Pair | None] = (np.inf, None)
    likely = [n for n in KNOWN if n.admits(a.min(), a.max(), len(a), _LEAST)]
    for one, other in product(likely, KNOWN if len(a) == len(channels) else ()):
        pair = Pair(one, other, channels, len(a))
        units = other.line(len(channels))[0] * 255
        off = np.abs(gain / pair.line[0] - 1), np.abs(offset - pair.line[1]) / units
        worst = float(np.max(off)) / slack
        if worst <= 1 and worst + pair.cost < best[0]:
            best = worst + pair.cost, pair
    return best[1]


def _padding(a: Framed, b: Framed, tone: _Tone) -> Change:
    """Return that frames have other values, once A's values are B's."""
    if a.value is None or b.value is None:
        return Change()
    mapped = tone(a.value[:, None, None]).ravel()
    if np.abs(mapped - b.value).max() <= 0.6 * tone.level:
        return Change()
    words = row(mapped), row(b.value)
    what = f"The padding value is {words[1]} in B, {words[0]} in A."
    return Change.of("padding", what, *words, evidence="in B's unit, by channel")


def _resampling(left: Images, *, rough: bool) -> Change:
    """Return whether what is left is fine detail: a blur takes most of it away."""
    power = [np.mean([np.mean(f(x) ** 2) for x in left]) for f in (blurred, np.asarray)]
    if rough or power[0] > 0.25 * power[1]:
        return Change()
    what = "The resize kernel or the antialiasing differs."
    return Change.of("resampling", what, "", "", evidence="raw images and Pillow name the kernels")


Resize = Callable[[Array, tuple[int, int]], Array]
"""Resizes f64[h, w] to a shape."""


def _kernels() -> dict[str, Resize]:
    """Return resize kernels by name; none without Pillow."""
    try:
        from PIL.Image import Resampling, Transform, fromarray  # noqa: PLC0415 - optional
    except ImportError:
        return {}

    def smooth(how: Resampling, plane: Array, shape: tuple[int, int]) -> Array:
        return np.asarray(fromarray(plane.astype(np.float32)).resize(shape[::-1], how), np.float64)

    def sample(how: Resampling, plane: Array, shape: tuple[int, int]) -> Array:
        image, extent = fromarray(plane.astype(np.float32)), (0, 0, *plane.shape[::-1])
        return np.asarray(image.transform(shape[::-1], Transform.EXTENT, extent, how), np.float64)

    return {
        "bilinear with antialiasing": partial(smooth, Resampling.BILINEAR),
        "bicubic with antialiasing": partial(smooth, Resampling.BICUBIC),
        "Lanczos": partial(smooth, Resampling.LANCZOS),
        "area": partial(smooth, Resampling.BOX),
        "Hamming": partial(smooth, Resampling.HAMMING),
        "nearest": partial(sample, Resampling.NEAREST),
        "bilinear": partial(sample, Resampling.BILINEAR),
        "bicubic": partial(sample, Resampling.BICUBIC),
        "nearest from the corner, as OpenCV's": _from_corner,
    }


def _from_corner(plane: Array, shape: tuple[int, int]) -> Array:
    rows, columns = (np.arange(m) * n // m for m, n in zip(shape, plane.shape, strict=True))
    return plane[np.ix_(rows, columns)]


def _kernel(raws: Arrays, a: Images, b: Images) -> Change | None:
    """Return how the kernels differ by which raw images were resized; None if that is unknown.

    Kernels are known if one comes near on both sides; they differ if exchanging them fits clearly
    worse. Ties are below a factor of 1.05.
    """
    kernels = _kernels() if raws and all(raw.size for raw in raws) else {}
    if not kernels:
        return None
    errors = [_errors(raws, side, kernels) for side in (a, b)]
    one, other = (min(side, key=side.__getitem__) for side in errors)
    least = errors[0][one], errors[1][other]
    if max(least) > _TRUSTED:
        return None
    exchanged = errors[0][other], errors[1][one]
    if all(x <= max(1.25 * y, y + _TIED) for x, y in zip(exchanged, least, strict=True)):
        return Change()
    what = f"Images are resized with different kernels: {other} in B, {one} in A."
    own, theirs = percent(least[0]), percent(exchanged[0])
    told = f"A is off by {own} of its deviation with its own, by {theirs} with B's"
    return Change.of("kernel", what, one, other, evidence=told)


def _errors(raws: Arrays, images: Images, kernels: Mapping[str, Resize]) -> dict[str, float]:
    """Return each kernel's error, in the view that fits: stretched, or by the shorter side."""
    short = min(images[0].shape[1:])
    sources = [_channels(raw) for raw in raws]
    # EXIF, or a flip, may turn both A and B against the raw images; kernels need not be symmetric.
    images = images[: len(raws)]
    turn = turn_of(images, sources)
    pairs = [(x, run(turn.lines, y)) for x, y in zip(sources, images, strict=True)]

    def error(kernel: Resize, side: float | None) -> float:
        return float(np.mean([_error(x, y, side, kernel) for x, y in pairs]))

    first = next(iter(kernels.values()))
    view = min((None, short, short * 8 / 7), key=lambda side: error(first, side))
    return {name: error(kernel, view) for name, kernel in kernels.items()}


def _channels(raw: NDArray[Any]) -> Array:
    """Return a raw image as f64[c, h, w]."""
    layout = layout_of(raw)
    return np.atleast_3d(raw).astype(np.float64) if layout is None else run(layout.read, raw)


def _error(source: Array, image: Array, side: float | None, kernel: Resize) -> float:
    """Return the RMS error of a resized image in grey, over the deviation of the right one.

    Args:
        source: The raw image, f64[c, h, w].
        image: What a pipeline made of it, f64[d, rows, columns].
        side: Length of the shorter side before a crop; None if the image is stretched.
        kernel: The kernel.
    """
    shape = rows, columns = image.shape[1:]
    if side is not None:
        factor = side / min(source.shape[1:])
        shape = round(source.shape[1] * factor), round(source.shape[2] * factor)
    free = shape[0] - rows, shape[1] - columns
    if min(free) < 0:
        return np.inf
    made = grey(np.clip([kernel(plane, shape) for plane in source], 0, 255))
    target, (top, left) = grey(image), (n // 2 for n in free)
    if any(free):
        down, along = displacement([target], [made[top : top + rows, left : left + columns]])
        top, left = np.clip((top - down, left - along), 0, free)
    same = correlation([target], [made[top : top + rows, left : left + columns]])
    return float(np.sqrt(max(0.0, 1 - same**2)))
