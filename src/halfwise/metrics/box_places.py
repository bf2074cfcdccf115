"""Evidence that four ordered numbers are the corners of a box, not quantiles or bounds.

The evidence is a name that calls them boxes, or their position: in pixels of an input image, with
sides that differ along both axes. Numbers within [0, 1] may be anything. So may rows that all rise
from the first number to the last: not all boxes have x1 ≤ y1 ≤ x2 ≤ y2.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from halfwise.metrics.evidence import Inputs, begins, image_sizes, within_unit
from halfwise.records import Evidence

_NAMES = ("bbox", "dets", "detect")
_MOSTLY = 0.9
"""Least share of rows with an area; a box clipped to the border may have none."""
_ALIKE = 1e-3
"""Share of the largest side by which sides along one axis must differ."""
_BEYOND = 0.5
"""How far a box may reach beyond the image, as a share of its side."""
_REACH = 0.125
"""Least distance of the farthest corners from the origin, as a share of the image's sides."""
_SMALLEST = 32
"""Least height and width of an input image without a batch axis."""


@dataclass(frozen=True)
class Places:
    """The name of an output that may be boxes, and the shapes of the model's inputs."""

    name: str
    inputs: Inputs

    @property
    def named(self) -> bool:
        """Whether the name calls them boxes."""
        return begins(self.name, *_NAMES) or "box" in self.name.lower()

    def shown(
        self, rows: NDArray[np.float64], *, fewest: int, shares: bool = False
    ) -> tuple[Evidence, ...]:
        """Return the evidence that rows f64[n, 4] are opposite corners; may be empty.

        Args:
            rows: The rows that count; may be none.
            fewest: Fewest rows needed unless they are called boxes.
            shares: Whether fractions of an image suffice, since other columns suggest boxes too.
        """
        if not len(rows) or not in_order(rows):
            return ()
        sides = rows[:, 2:] - rows[:, :2]
        if float((sides > 0).all(axis=1).mean()) < _MOSTLY:
            return ()
        if self.named:
            return ("corners-in-order", "by-name")
        spread = np.minimum(np.ptp(sides, axis=0), np.ptp(rows[:, :2], axis=0))
        alike = len(rows) > 1 and float(spread.min()) <= _ALIKE * float(sides.max())
        if len(rows) < fewest or alike or (np.diff(rows, axis=1) >= 0).all():
            return ()
        sizes = _images(self.inputs)
        inside = any(_is_inside(rows, size) for size in sizes)
        if inside or (shares and sizes and within_unit(rows)):
            return ("corners-in-order", "within-image")
        return ()


def in_order(rows: NDArray[np.float64]) -> bool:
    """Return whether no side of boxes f64[n, 4] is negative, and not all are 0."""
    return bool(np.all(rows[:, 2:] >= rows[:, :2])) and bool(np.any(rows[:, 2:] > rows[:, :2]))


def _images(inputs: Inputs) -> list[tuple[int, int]]:
    """Return height and width of input images, including [3, height, width] and channels last."""
    found = image_sizes(inputs)
    for shape in inputs.values():
        if len(shape) == 3 and 3 in (shape[0], shape[2]):
            height, width = shape[1:] if shape[0] == 3 else shape[:2]
            found += [(height, width)] if min(height, width) >= _SMALLEST else []
    return found


def _is_inside(rows: NDArray[np.float64], size: tuple[int, int]) -> bool:
    """Return whether corners are pixels of an image, in either order of x and y."""
    low, high = rows.min(axis=0)[:2], rows.max(axis=0)[2:]
    return any(
        bool((low >= -_BEYOND * far).all() and (high <= (1 + _BEYOND) * far).all())
        and bool((high >= np.maximum(_REACH * far, 2)).all())
        for far in (np.array(size[::-1], float), np.array(size, float))
    )
