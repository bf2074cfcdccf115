"""Which sample of B is which of A, and how it is turned; told on thumbnails."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from halfwise.tools.preprocessing.resampling import METHODS, resize

Array = NDArray[np.float64]

THUMBNAIL = 24
_AREA = next(method for method in METHODS if method.kernel == "area")
_GAIN = 0.03
"""Mean correlation by which another order or direction must be better; photos gain 0.2 to 1."""


_POOR, _GOOD = 0.5, 0.8
"""Correlations of what hardly matches, and of what does; photos of the same scene have 0.9."""


@dataclass(frozen=True)
class Turn:
    """A flip or quarter turn: rows and columns exchanged first, then flipped.

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
        """Say what was done."""
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

    Channels count alike whatever their scale.

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
    """Return how A is turned to look like B, and which sample of A each sample of B is.

    Args:
        a: Thumbnails of A.
        b: Thumbnails of B, as many.
    """
    target = np.stack([image.ravel() for image in b])
    score, turn, order = _matched(a, target)
    if score < _POOR:
        # Bright and dark may be exchanged.
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
            # What differs more has to be better by more.
            score -= _GAIN * ((candidate != same) + (turn != Turn()))
            if score > best[0]:
                best = (score, turn, candidate)
    return best
