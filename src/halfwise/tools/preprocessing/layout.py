"""Which axes of a sample are channels, rows and columns."""

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

MOST_CHANNELS = 4
SMALLEST_SIDE = 8

Order = Literal["CHW", "HWC", "HW"]
Array = NDArray[np.float64]

_SMOOTHER = 0.7
"""Roughness that a buffer read in the other order must fall to; photos fall to a half or less."""


@dataclass(frozen=True)
class Layout:
    """How an image lies in a sample.

    Attributes:
        order: The axes after those of length 1 in front.
        lead: How many axes of length 1 come before.
        reshaped: The buffer is in the other order: it was reshaped where it had to be transposed.
    """

    order: Order
    lead: int
    reshaped: bool = False

    def __str__(self) -> str:
        """Name it as NCHW and the like."""
        name = ("N" if self.lead else "") + self.order
        return f"{name}, reshaped instead of transposed" if self.reshaped else name

    def image(self, sample: NDArray[Any]) -> Array:
        """Return the sample as f64[channels, rows, columns]."""
        inner = np.asarray(sample, np.float64).reshape(sample.shape[self.lead :])
        if self.order == "HW":
            return inner[None]
        if self.reshaped:
            inner = _in_other_order(inner, self.order)
            return np.moveaxis(inner, -1, 0) if self.order == "CHW" else inner
        return np.moveaxis(inner, -1, 0) if self.order == "HWC" else inner


def layout_of(sample: NDArray[Any]) -> Layout | None:
    """Return how an image lies in a sample, None where there is none.

    An image has two neighbouring axes of 8 or more, and at most four channels before or after
    them. Whether a buffer is in the other order is told by how rough the image is.
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


def _in_other_order(inner: Array, order: Order) -> Array:
    """Return the buffer of [c, h, w] as [h, w, c], and that of [h, w, c] as [c, h, w]."""
    if order == "CHW":
        channels, rows, columns = inner.shape
        return inner.reshape(rows, columns, channels)
    rows, columns, channels = inner.shape
    return inner.reshape(channels, rows, columns)


def _roughness(image: Array) -> float:
    spread = float(image.std(axis=(1, 2)).mean()) or 1.0
    steps = np.abs(np.diff(image, axis=1)).mean() + np.abs(np.diff(image, axis=2)).mean()
    return float(steps) / spread
