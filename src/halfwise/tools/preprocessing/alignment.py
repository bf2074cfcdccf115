"""Where images lie: order and turn of samples, frames, shifts and other fits.

Functions that begin with `say` add what they find to the findings.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import affine_transform, gaussian_filter
from scipy.optimize import linear_sum_assignment

from halfwise.errors import CaseError
from halfwise.records import DifferenceKind
from halfwise.records.diagnosis import difference
from halfwise.tools.preprocessing.changes import (
    TURNS,
    Array,
    Change,
    Layout,
    layout_of,
    row,
    run,
    turned,
)
from halfwise.wording import dimensions

Arrays = Sequence[NDArray[Any]]
Images = list[Array]

_THUMBNAIL = 24
_GAIN = 0.03
"""Gain in mean correlation required of another order or direction; photos gain 0.2 to 1."""
_SAME = 1e-5
"""Relative spread of a frame's values, over the image's, that counts as none."""
_BLUR = 2.5
"""Standard deviation of blurs in pixels."""
_ALIKE, _UNLIKE = 0.95, 0.3
"""Correlation of blurred images of the same view, and of images with little in common."""
_ROUNDED = 2.0
"""Levels of 255 that rounding explains: two roundings in another order differ by one."""


@dataclass
class Findings:
    """What is known so far.

    Attributes:
        order: The sample of A for each of B.
        level: One of 255 levels in B's unit.
        change: What differs, and the lines from A to B.
        shift: Rows and columns by which B's view lies further down and to the right.
        resized: How A and B resize the raw images; None if unknown.
    """

    order: tuple[int, ...]
    level: float
    change: Change = field(default_factory=Change)
    shift: tuple[int, int] = (0, 0)
    resized: tuple[str | None, str | None] = (None, None)

    def say(
        self, kind: DifferenceKind, sentence: str, a: object, b: object, evidence: str = ""
    ) -> None:
        """Add a difference without lines."""
        self.change += Change((difference(kind, sentence, str(a), str(b), evidence),))


def match(found: Findings, a: Arrays, b: Arrays, layouts: tuple[Layout, Layout]) -> tuple[str, ...]:
    """Say in which order and how turned B has the samples of A; return the lines of the turn."""
    thumbnails = [
        [_thumbnail(x, layout, f"Sample {i} of {who}") for i, x in enumerate(side)]
        for side, layout, who in zip((a, b), layouts, "AB", strict=True)
    ]
    right = np.stack([image.ravel() for image in thumbnails[1]])
    best: tuple[float, str, tuple[int, ...]] = (-1.0, "", found.order)
    for turn in ("", *TURNS):
        views = [run((f"x = {TURNS[turn]}",) if turn else (), x) for x in thumbnails[0]]
        # One may be the negative of the other.
        table = np.abs(np.stack([view.ravel() for view in views]) @ right.T)
        for score, order in ((float(np.trace(table)) / len(b), found.order), _assigned(table)):
            # More differences need a larger gain.
            net = score - _GAIN * ((order != found.order) + bool(turn))
            best = max(best, (net, turn, order), key=lambda each: each[0])
    _, turn, order = best
    _say_order(found, order)
    if turn:
        found.change += turned(turn)
    return (f"x = {TURNS[turn]}",) if turn else ()


def _assigned(table: Array) -> tuple[float, tuple[int, ...]]:
    """Return the mean correlation and the row for each column that make it largest."""
    rows, columns = linear_sum_assignment(table, maximize=True)
    return float(table[rows, columns].mean()), tuple(int(i) for i in rows[np.argsort(columns)])


def _say_order(found: Findings, order: tuple[int, ...]) -> None:
    moved = sum(i != j for i, j in zip(order, found.order, strict=True))
    if moved:
        what = f"B has the samples in another order: {moved} of {len(order)} are out of place."
        listed = ", ".join(map(str, order[:12])) + (", …" if len(order) > 12 else "")
        found.say("order", what, "0, 1, 2, …", listed)
        found.order = order


def _thumbnail(sample: NDArray[Any], layout: Layout, who: str) -> Array:
    """Return f64[24, 24] of an image without its frame: mean 0, norm 1; 0 if it is constant."""
    other = layout_of(sample)
    if other is None or (other.order, other.lead) != (layout.order, layout.lead):
        raise CaseError(
            f"{who} has the shape {sample.shape}; expected {layout}, like the first sample.",
            "Give all samples in one layout.",
        )
    image = run(layout.read, sample)
    return _unit(_reduced(grey(within(image, frames_of([image])[0])), _THUMBNAIL))


def _reduced(image: Array, side: int) -> Array:
    """Return f64[side, side]: means of blocks, single pixels where there are fewer."""
    for axis, length in enumerate(image.shape):
        starts = (np.arange(side) * length / side).astype(int)
        counts = np.diff(np.append(starts, length)).clip(1)
        shape = (-1, 1) if axis == 0 else (1, -1)
        image = np.add.reduceat(image, starts, axis) / counts.reshape(shape)
    return image


def _unit(array: NDArray[Any]) -> Array:
    """Return f64, of the same shape, of mean 0 and norm 1; zeros if all is equal."""
    centred = np.asarray(array, np.float64) - np.mean(array)
    unit: Array = centred / (float(np.linalg.norm(centred)) or 1.0)
    return unit


def grey(image: Array) -> Array:
    """Return the mean of all channels, each scaled to mean 0 and deviation 1; f64[h, w]."""
    grey: Array = np.mean([(x - x.mean()) / (x.std() or 1.0) for x in image], axis=0)
    return grey


class _Box(NamedTuple):
    """Where an image lies within its frame; the frame's value by channel, empty without one."""

    top: int
    left: int
    rows: int
    columns: int
    value: tuple[float, ...] = ()


def within(image: Array, box: _Box) -> Array:
    """Return what is within the frame, f64[c, rows, columns], as a view."""
    return image[:, box.top : box.top + box.rows, box.left : box.left + box.columns]


def frames_of(images: Images) -> list[_Box]:
    """Return each image's box; a frame has the same value in all, else it may be a dark border."""
    boxes = [_box(image) for image in images]
    values = [box.value for box in boxes if box.value]
    if values and np.ptp(values, axis=0).max() <= _SAME * max(np.ptp(x) for x in images):
        return boxes
    return [_Box(0, 0, *image.shape[1:]) for image in images]


def _box(image: Array) -> _Box:
    for corner in (0, -1):
        value = image[:, corner, corner]
        other = np.abs(image - value[:, None, None]).max(axis=0) > _SAME * np.ptp(image)
        rows, columns = (np.flatnonzero(other.any(axis)) for axis in (1, 0))
        if len(rows) and (np.ptp(rows) + 1, np.ptp(columns) + 1) != other.shape:
            extent = int(np.ptp(rows)) + 1, int(np.ptp(columns)) + 1
            return _Box(int(rows[0]), int(columns[0]), *extent, tuple(map(float, value)))
    return _Box(0, 0, *image.shape[1:])


Frames = tuple[list[_Box], list[_Box]]


def say_frames(
    found: Findings, frames: Frames, whole: tuple[tuple[int, ...], tuple[int, ...]]
) -> None:
    """Say how sizes and frames differ; two roundings of a size may differ by two pixels."""
    if whole[0] != whole[1]:
        one, other = map(dimensions, whole)
        found.say("size", f"B is {other}, A is {one}.", one, other)
    scale = np.tile(np.divide(whole[1], whole[0]), 2)
    gaps = [np.abs(np.array(a[:4]) * scale - b[:4]) for a, b in zip(*frames, strict=True)]
    first = int(np.argmax(np.max(gaps, axis=1)))
    if gaps[first].max() > _ROUNDED:
        boxes = frames[0][first], frames[1][first]
        places = [f"{each.rows}×{each.columns} at ({each.top}, {each.left})" for each in boxes]
        grown = np.max(gaps, axis=0)[2:].max() > _ROUNDED
        what = "is fitted to the frame" if grown else "is placed in its padding"
        found.say("fit" if grown else "padding", f"The image {what} differently.", *places)


def say_padding(found: Findings, frames: Frames, tone: Callable[[Array], Array]) -> None:
    """Say that frames have other values, once `tone` makes A's values B's."""
    values = [next((np.array(x.value) for x in side if x.value), None) for side in frames]
    if values[0] is not None and values[1] is not None:
        mapped = tone(values[0][:, None, None]).ravel()
        if np.abs(mapped - values[1]).max() > 0.6 * found.level:
            words = row(mapped), row(values[1])
            what = f"The padding value is {words[1]} in B, {words[0]} in A."
            found.say("padding", what, *words, "in B's unit, by channel")


def aligned(found: Findings, a: Images, b: Images, *, framed: bool) -> tuple[Images, Images] | None:
    """Say how views differ; return what both show, pixel by pixel; None if it is little."""
    shape = b[0].shape[1:]
    if any(x.shape[1:] != y.shape[1:] for x, y in zip(a, b, strict=True)):
        a = [run(_stretching(y.shape[1:]), x) for x, y in zip(a, b, strict=True)]
        if not framed:
            found.change += Change(lines=_stretching(shape))
    greys = [grey(x) for x in a], [grey(y) for y in b]
    shift = displacement(*greys)
    moved = [overlap(x, y, shift) for x, y in zip(*greys, strict=True)]
    apart = [
        1 - np.mean([_alike(*pair) for pair in each]) for each in (zip(*greys, strict=True), moved)
    ]
    if shift != (0, 0) and not framed and apart[1] < 0.5 * apart[0]:
        down, along = found.shift = shift
        what = f"B is cropped {down} rows further down and {along} columns further right."
        lines = _shifting(shift, shape)
        found.change += Change((difference("crop", what, "(0, 0)", str(shift)),), lines)
        cut = [overlap(x, y, shift) for x, y in zip(a, b, strict=True)]
        a, b = [x for x, _ in cut], [y for _, y in cut]
    smooth = _likeness(a, b)
    if smooth < _ALIKE:
        zooms = [_zoomed(x, y) for x, y in zip(a, b, strict=True)]
        smooth = max(smooth, _likeness(zooms, b))
        if smooth < _UNLIKE:
            return None
        a = zooms
        if all(each.kind != "fit" for each in found.change.differences):
            sizes = [dimensions(side[0].shape[1:]) for side in (a, b)]
            found.say("fit", "The image is fitted to the frame differently.", *sizes)
    return a, b


def _likeness(a: Images, b: Images) -> float:
    """Return the mean correlation, in [0, 1], of the same views without their fine detail."""
    greys = (tuple(blurred(grey(image)[None]) for image in pair) for pair in zip(a, b, strict=True))
    return float(np.mean([_alike(*pair) for pair in greys]))


def _alike(x: Array, y: Array) -> float:
    one, other = _unit(x), _unit(y)
    return abs(float(np.vdot(one, other))) if one.any() or other.any() else 1.0


def blurred(image: Array) -> Array:
    """Return f64[c, h, w] without fine detail: the contrast of different kernels is the same."""
    made: Array = gaussian_filter(image, (0, _BLUR, _BLUR), mode="nearest")
    return made


def displacement(a: Images, b: Images) -> tuple[int, int]:
    """Return (rows, columns) so that b[i] ≈ a[i + shift], f64[h, w] each, by phase correlation.

    Kuglin and Hines 1975, "The phase correlation image alignment method", with Hann windows; the
    surfaces of all samples are added.
    """
    shape = a[0].shape
    if any(image.shape != shape for image in (*a, *b)):
        return 0, 0
    window = np.outer(*(np.hanning(n) for n in shape))
    surface = np.zeros(shape)
    for x, y in zip(a, b, strict=True):
        cross = np.fft.fft2(x * window) * np.conj(np.fft.fft2(y * window))
        surface += np.fft.ifft2(cross / np.maximum(np.abs(cross), 1e-12)).real
    peak = np.unravel_index(int(surface.argmax()), shape)
    down, along = (int(p) - n * (2 * int(p) > n) for p, n in zip(peak, shape, strict=True))
    return down, along


def overlap(a: Array, b: Array, shift: tuple[int, int]) -> tuple[Array, Array]:
    """Return the parts of `a` and `b`, [..., h, w], where b[i] is a[i + shift]."""
    for axis, step in zip((-2, -1), shift, strict=True):
        places = np.arange(max(0, -step), a.shape[axis] - max(0, step))
        a, b = a.take(places + step, axis), b.take(places, axis)
    return a, b


def _zoomed(x: Array, y: Array) -> Array:
    """Return `x` at the factors about its centre, per axis, with which it looks most like `y`."""
    small = [_reduced(grey(image), 2 * _THUMBNAIL) for image in (x, y)]
    factors, ratio, reach = np.ones(2), 2**0.5, 2
    for _ in range(5):
        steps = product(range(-reach, reach + 1), repeat=2)
        grid = [factors * ratio ** np.array(each) for each in steps]
        factors = max(grid, key=lambda each: _alike(_zoom(small[0], each), small[1]))
        ratio, reach = ratio**0.5, 1
    return np.stack([_zoom(plane, factors) for plane in x])


def _zoom(plane: Array, factors: Array) -> Array:
    middle = (np.array(plane.shape) - 1) / 2
    made: Array = affine_transform(plane, factors, middle * (1 - factors), order=1, mode="nearest")
    return made


def _stretching(shape: Sequence[int]) -> tuple[str, ...]:
    """Return the lines that resize `x` linearly, with half-pixel centres."""
    return (
        f"rows = (np.arange({shape[0]}) + 0.5) * x.shape[1] / {shape[0]} - 0.5",
        f"columns = (np.arange({shape[1]}) + 0.5) * x.shape[2] / {shape[1]} - 0.5",
        "rows = np.clip(rows, 0, x.shape[1] - 1)",
        "columns = np.clip(columns, 0, x.shape[2] - 1)",
        "top = np.minimum(rows.astype(int), x.shape[1] - 2)",
        "left = np.minimum(columns.astype(int), x.shape[2] - 2)",
        "down, along = (rows - top)[:, None], columns - left",
        "x = x[:, top] * (1 - down) + x[:, top + 1] * down",
        "x = x[:, :, left] * (1 - along) + x[:, :, left + 1] * along",
    )


def _shifting(shift: tuple[int, int], shape: Sequence[int]) -> tuple[str, ...]:
    """Return the lines that shift `x` by whole pixels; the border is repeated."""
    return (
        f"rows = np.clip(np.arange({shape[0]}) + {shift[0]}, 0, x.shape[1] - 1)",
        f"columns = np.clip(np.arange({shape[1]}) + {shift[1]}, 0, x.shape[2] - 1)",
        "x = x[:, rows][:, :, columns]",
    )


def raw_image(raw: NDArray[Any], image: Array) -> Array:
    """Return a raw image, f64[c, h, w], turned like `image`.

    EXIF may turn both A and B against the raw image; but a round retina looks the same in every
    direction, so a turn must gain 0.2.
    """
    layout = layout_of(raw)
    source = np.atleast_3d(raw).astype(np.float64) if layout is None else run(layout.read, raw)
    target = _unit(_reduced(grey(image), _THUMBNAIL))
    turns = [(), *((f"x = {code}",) for code in TURNS.values())]
    small = _unit(_reduced(grey(source), _THUMBNAIL))
    gains = [abs(float(np.vdot(run(turn, small), target))) - 0.2 * bool(turn) for turn in turns]
    return run(turns[int(np.argmax(gains))], source)
