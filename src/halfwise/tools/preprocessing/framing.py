"""How A and B frame their images: padding, its side and its value."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from halfwise.records import InputDifference
from halfwise.tools.preprocessing.findings import difference
from halfwise.tools.preprocessing.padding import Box, boxes

Array = NDArray[np.float64]

_ROUNDED = 2
"""Pixels that two ways to round a size may be apart."""


@dataclass(frozen=True)
class Frames:
    """Frames of the same samples in A and in B.

    Attributes:
        a: Where A's images lie.
        b: Where B's images lie.
        same_size: Whether all take the same part of the frame in both, up to rounding.
    """

    a: tuple[Box, ...]
    b: tuple[Box, ...]
    same_size: bool

    @property
    def value_a(self) -> tuple[float, ...]:
        """A's value of padding by channel; empty without padding."""
        return next((box.value for box in self.a if box.value), ())

    @property
    def value_b(self) -> tuple[float, ...]:
        """B's value of padding by channel; empty without padding."""
        return next((box.value for box in self.b if box.value), ())


def frames(a: Sequence[Array], b: Sequence[Array]) -> Frames:
    """Return the frames of A's and B's images; f64[c, h, w] each, as many."""
    left, right = boxes(a), boxes(b)
    down, along = _scale(a, b)
    same = all(
        abs(x.rows * down - y.rows) <= _ROUNDED and abs(x.columns * along - y.columns) <= _ROUNDED
        for x, y in zip(left, right, strict=True)
    )
    return Frames(tuple(left), tuple(right), same)


def _scale(a: Sequence[Array], b: Sequence[Array]) -> tuple[float, float]:
    """Return the size of B's frames over that of A's."""
    return b[0].shape[1] / a[0].shape[1], b[0].shape[2] / a[0].shape[2]


def frame_differences(
    found: Frames, shape_a: Sequence[int], shape_b: Sequence[int]
) -> list[InputDifference]:
    """Say where padding is on other sides, or only in one of the two.

    Args:
        found: The frames.
        shape_a: Rows and columns of A's images with their frame.
        shape_b: The same of B's.
    """
    if not (found.value_a or found.value_b):
        return []
    if not found.same_size:
        return [_fit(found)]
    if bool(found.value_a) != bool(found.value_b):
        who = "A" if found.value_a else "B"
        return [
            difference(
                "fit",
                f"Only {who} pads the image.",
                "padded" if found.value_a else "not padded",
                "padded" if found.value_b else "not padded",
                f"frames are {_size(shape_a)} and {_size(shape_b)}",
            )
        ]
    down, along = (n / m for n, m in zip(shape_b, shape_a, strict=True))
    moved = max(
        max(abs(x.top * down - y.top), abs(x.left * along - y.left))
        for x, y in zip(found.a, found.b, strict=True)
    )
    if moved <= _ROUNDED:
        return []
    sides_a, sides_b = (sides(each, s) for each, s in ((found.a, shape_a), (found.b, shape_b)))
    return [
        difference(
            "padding-side",
            f"The image lies elsewhere in its padding: {_where(sides_b)} in B, "
            f"{_where(sides_a)} in A.",
            _where(sides_a),
            _where(sides_b),
            f"up to {moved:.0f} pixels apart",
        )
    ]


def sides(found: Sequence[Box], shape: Sequence[int]) -> tuple[str, str]:
    """Return where images lie in their frames, rows and columns: "start", "centre" or "end".

    "centre-up" is the middle with an odd pixel before the image, "centre" with it behind.
    """
    offsets = [
        [(box.top, shape[0] - box.rows) for box in found],
        [(box.left, shape[1] - box.columns) for box in found],
    ]
    said = []
    for axis in offsets:
        room = [(offset, free) for offset, free in axis if free > 1]
        if all(offset == 0 for offset, _ in room):
            said.append("start" if room else "centre")
        elif all(offset == free for offset, free in room):
            said.append("end")
        else:
            up = all(offset == (free + 1) // 2 for offset, free in room)
            down = all(offset == free // 2 for offset, free in room)
            said.append("centre-up" if up and not down else "centre")
    return said[0], said[1]


def _fit(found: Frames) -> InputDifference:
    names = {
        (True, False): ("letterboxed (padded)", "not padded: stretched or cropped"),
        (False, True): ("not padded: stretched or cropped", "letterboxed (padded)"),
        (True, True): ("padded", "padded, in another size"),
    }
    a, b = names[bool(found.value_a), bool(found.value_b)]
    first = next((i for i, (x, y) in enumerate(zip(found.a, found.b, strict=True)) if x != y), 0)
    return difference(
        "fit",
        f"The image is fitted to the frame in another way: in B it is {b}, in A {a}.",
        a,
        b,
        f"the image itself is {_size((found.a[first].rows, found.a[first].columns))} in A and "
        f"{_size((found.b[first].rows, found.b[first].columns))} in B",
    )


def _where(places: tuple[str, str]) -> str:
    words = {"start": ("at the top", "left"), "end": ("at the bottom", "right")}
    rows, columns = (words.get(place, ("centred", "centred"))[i] for i, place in enumerate(places))
    return "centred" if (rows, columns) == ("centred", "centred") else f"{rows}, {columns}"


def _size(shape: Sequence[int]) -> str:
    return f"{shape[0]}×{shape[1]}"
