"""The frame of one value around an image, as letterboxing leaves it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_SAME = 1e-5
"""Spread of a frame's values, as a part of the image's, that counts as none."""


@dataclass(frozen=True)
class Box:
    """Where the image lies within its frame.

    Attributes:
        top: Rows above it.
        left: Columns on its left.
        rows: Its height.
        columns: Its width.
        value: The frame's value by channel; empty where there is no frame.
    """

    top: int
    left: int
    rows: int
    columns: int
    value: tuple[float, ...] = ()

    @property
    def place(self) -> tuple[int, int, int, int]:
        """Where it is, without the value around it."""
        return self.top, self.left, self.rows, self.columns

    def cut(self, image: Array) -> Array:
        """Return the image within the frame, f64[c, rows, columns], as a view."""
        return image[:, self.top : self.top + self.rows, self.left : self.left + self.columns]


def boxes(images: Sequence[Array]) -> list[Box]:
    """Return where each image lies within its frame.

    A frame has one value, the same in all images that have one: else it is the dark border of a
    photo, say, and no frame.

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
