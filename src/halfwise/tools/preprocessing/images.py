"""How images lie in samples: axes, turns, frames, order of samples.

Thumbnails show order and direction; a frame has one value, as letterboxing leaves it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from halfwise.records import InputDifference
from halfwise.records.diagnosis import difference
from halfwise.tools.preprocessing.resizing import METHODS, resize

MOST_CHANNELS = 4
SMALLEST_SIDE = 8

Order = Literal["CHW", "HWC", "HW"]
Array = NDArray[np.float64]

_SMOOTHER = 0.7
"""Roughness ratio for a buffer read in the other order; photos fall to a half or less."""


@dataclass(frozen=True)
class Layout:
    """The layout of an image in a sample.

    Attributes:
        order: The axes after any leading ones of length 1.
        lead: Number of leading axes of length 1.
        reshaped: The buffer is in the other order: reshaped instead of transposed.
    """

    order: Order
    lead: int
    reshaped: bool = False

    def __str__(self) -> str:
        """Return a name such as NCHW."""
        name = ("N" if self.lead else "") + self.order
        return f"{name}, reshaped instead of transposed" if self.reshaped else name

    def image(self, sample: NDArray[Any]) -> Array:
        """Return the sample as f64[channels, rows, columns]."""
        inner = np.asarray(sample, np.float64).reshape(sample.shape[self.lead :])
        if self.order == "HW":
            return inner[None]
        if self.reshaped:
            # Read the buffer of [c, h, w] as [h, w, c], and vice versa.
            turned = 1 if self.order == "CHW" else 2
            inner = inner.reshape(inner.shape[turned:] + inner.shape[:turned])
            return np.moveaxis(inner, -1, 0) if self.order == "CHW" else inner
        return np.moveaxis(inner, -1, 0) if self.order == "HWC" else inner


def layout_of(sample: NDArray[Any]) -> Layout | None:
    """Return the layout of the image in a sample, None if there is none.

    An image has two adjacent axes of at least 8, and at most four channels before or after them.
    Roughness shows whether the buffer is in the other order.
    """
    lead = max(0, sample.ndim - 3) if sample.ndim > 3 else 0
    shape = sample.shape[lead:]
    if sample.dtype.kind not in "biuf" or any(n != 1 for n in sample.shape[:lead]):
        return None
    order = _order(shape)
    if order is None or order == "HW":
        return None if order is None else Layout("HW", lead)
    plain = Layout(order, lead)
    other = Layout(order, lead, reshaped=True)
    if math.prod(shape) > shape[0 if order == "CHW" else -1] * SMALLEST_SIDE**2:
        images = (plain.image(sample), other.image(sample))
        if images[0].shape[0] > 1 and _roughness(images[1]) < _SMOOTHER * _roughness(images[0]):
            return other
    return plain


def _order(shape: tuple[int, ...]) -> Order | None:
    if len(shape) == 2 and min(shape) >= SMALLEST_SIDE:
        return "HW"
    if len(shape) != 3:
        return None
    if shape[0] <= MOST_CHANNELS and min(shape[1:]) >= SMALLEST_SIDE:
        return "CHW"
    if shape[2] <= MOST_CHANNELS and min(shape[:2]) >= SMALLEST_SIDE:
        return "HWC"
    return None


def _roughness(image: Array) -> float:
    spread = float(image.std(axis=(1, 2)).mean()) or 1.0
    steps = np.abs(np.diff(image, axis=1)).mean() + np.abs(np.diff(image, axis=2)).mean()
    return float(steps) / spread


THUMBNAIL = 24
_AREA = next(method for method in METHODS if method.kernel == "area")
_GAIN = 0.03
"""Gain in mean correlation required of another order or direction; photos gain 0.2 to 1."""


_POOR, _GOOD = 0.5, 0.8
"""Correlations of a poor and a good match; photos of the same scene have 0.9."""


@dataclass(frozen=True)
class Turn:
    """A flip or quarter turn: a transposition, then flips.

    Attributes:
        transposed: Rows and columns are exchanged.
        rows: The order of rows is reversed.
        columns: The order of columns is reversed.
    """

    transposed: bool = False
    rows: bool = False
    columns: bool = False

    def __call__(self, image: Array) -> Array:
        """Return f64[..., h, w] turned, as a view."""
        turned = np.swapaxes(image, -1, -2) if self.transposed else image
        return turned[..., :: -1 if self.rows else 1, :: -1 if self.columns else 1]

    def __str__(self) -> str:
        """Return the turn in words."""
        return {
            (False, False, False): "not flipped",
            (False, False, True): "flipped left to right",
            (False, True, False): "flipped upside down",
            (False, True, True): "rotated by 180°",
            (True, False, False): "transposed (rows and columns exchanged)",
            (True, False, True): "rotated by 90° clockwise",
            (True, True, False): "rotated by 90° counterclockwise",
            (True, True, True): "transposed along the other diagonal",
        }[self.transposed, self.rows, self.columns]


TURNS = tuple(Turn(t, r, c) for t in (False, True) for r in (False, True) for c in (False, True))


def thumbnail(image: Array) -> Array:
    """Return f64[24, 24] of mean 0 and norm 1 (all 0 for a constant image).

    Channels weigh the same whatever their scale.

    Args:
        image: f64[c, h, w], without its frame.
    """
    small = resize(image, (THUMBNAIL, THUMBNAIL), _AREA)
    small = small - small.mean(axis=(1, 2), keepdims=True)
    deviation = small.std(axis=(1, 2), keepdims=True)
    grey: Array = (small / np.where(deviation > 0, deviation, 1)).mean(axis=0)
    norm = float(np.linalg.norm(grey))
    return grey / norm if norm else grey


def match(a: Sequence[Array], b: Sequence[Array]) -> tuple[Turn, tuple[int, ...]]:
    """Return the turn from A to B, and the sample of A for each sample of B.

    Args:
        a: Thumbnails of A.
        b: Thumbnails of B, equally many.
    """
    target = np.stack([image.ravel() for image in b])
    score, turn, order = _matched(a, target)
    if score < _POOR:
        # One may be the negative.
        negative, other, elsewhere = _matched(a, -target)
        if negative > max(score + _GAIN, _GOOD):
            return other, elsewhere
    return turn, order


def _matched(a: Sequence[Array], target: Array) -> tuple[float, Turn, tuple[int, ...]]:
    count = len(a)
    same = tuple(range(count))
    best: tuple[float, Turn, tuple[int, ...]] = (-np.inf, Turn(), same)
    for turn in TURNS:
        table = np.stack([turn(image).ravel() for image in a]) @ target.T
        rows, columns = linear_sum_assignment(table, maximize=True)
        order = tuple(int(i) for i in rows[np.argsort(columns)])
        for candidate in (same, order):
            score = float(np.mean([table[candidate[i], i] for i in range(count)]))
            # More differences need a larger gain.
            score -= _GAIN * ((candidate != same) + (turn != Turn()))
            if score > best[0]:
                best = (score, turn, candidate)
    return best


_SAME = 1e-5
"""Relative spread of a frame's values, over the image's, that counts as none."""


@dataclass(frozen=True)
class Box:
    """Where the image lies within its frame.

    Attributes:
        top: Rows above it.
        left: Columns on its left.
        rows: Its height.
        columns: Its width.
        value: The frame's value by channel; empty without a frame.
    """

    top: int
    left: int
    rows: int
    columns: int
    value: tuple[float, ...] = ()

    @property
    def place(self) -> tuple[int, int, int, int]:
        """The box without the frame's value."""
        return self.top, self.left, self.rows, self.columns

    def cut(self, image: Array) -> Array:
        """Return the image within the frame, f64[c, rows, columns], as a view."""
        return image[:, self.top : self.top + self.rows, self.left : self.left + self.columns]


def boxes(images: Sequence[Array]) -> list[Box]:
    """Return each image's box within its frame.

    A frame has one value, the same in all framed images; otherwise it may be a photo's dark border.

    Args:
        images: f64[c, h, w] each, at least one.
    """
    found = [_box(image) for image in images]
    framed = [box.value for box in found if box.value]
    spread = float(max(np.ptp(image) for image in images)) or 1.0
    if framed and np.ptp(np.array(framed), axis=0).max() <= _SAME * spread:
        return found
    return [Box(0, 0, *image.shape[1:]) for image in images]


def _box(image: Array) -> Box:
    whole = Box(0, 0, *image.shape[1:])
    spread = float(np.ptp(image))
    if spread == 0:
        return whole
    for corner in ((0, 0), (-1, -1)):
        value = image[:, corner[0], corner[1]]
        gaps = np.abs(image - value[:, None, None]).max(axis=0)
        rows = np.flatnonzero(gaps.max(axis=1) > _SAME * spread)
        columns = np.flatnonzero(gaps.max(axis=0) > _SAME * spread)
        box = Box(
            int(rows[0]),
            int(columns[0]),
            int(rows[-1] - rows[0] + 1),
            int(columns[-1] - columns[0] + 1),
            tuple(float(v) for v in value),
        )
        if (box.rows, box.columns) != image.shape[1:]:
            return box
    return whole


def layout_difference(a: Layout, b: Layout) -> InputDifference:
    """Describe a difference in layout."""
    return difference("layout", f"B is laid out as {b}, A as {a}.", str(a), str(b))


def turn_difference(turn: Turn) -> InputDifference:
    """Describe the turn from A to B."""
    return difference("flip", f"B is A {turn}.", "as it is", str(turn))
