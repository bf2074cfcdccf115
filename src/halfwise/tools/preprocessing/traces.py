"""Rounding and clipping that values show by themselves, where no pixel lies on a pixel."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from halfwise.records import InputDifference
from halfwise.tools.preprocessing.findings import difference
from halfwise.tools.preprocessing.tone import Tone
from halfwise.tools.preprocessing.values import is_8_bit, is_half, limits

Array = NDArray[np.float64]

_PILE = 1e-4
_FEWEST = 8


def traces(
    tone: Tone, a: Sequence[Array], b: Sequence[Array], overshoots: tuple[bool, bool] | None
) -> list[InputDifference]:
    """Return differences in rounding and clipping of images that were resampled differently.

    Args:
        tone: How A's values become B's.
        a: f64[c, h, w] each, without frames.
        b: Likewise.
        overshoots: Whether A's and B's kernels go beyond the range of what they resize and images
            were not taken pixel by pixel; None where the kernels are unknown: then clipping is not
            looked for, because a saturated photo looks clipped.
    """
    found = []
    half = is_half(a), is_half(b)
    bytes_ = is_8_bit(a), is_8_bit(b)
    if half[0] != half[1]:
        who = "B" if half[1] else "A"
        names = ["FP16" if each else "not rounded" for each in half]
        found.append(difference("rounding", f"Only {who} is rounded to FP16.", *names))
    elif bytes_[0] != bytes_[1]:
        who = "B's" if bytes_[1] else "A's"
        names = ["8 bits" if each else "not rounded" for each in bytes_]
        found.append(difference("rounding", f"Only {who} values are rounded to 8 bits.", *names))
    if overshoots == (True, True):
        found += _clipping(tone, a, b)
    return found


def _clipping(tone: Tone, a: Sequence[Array], b: Sequence[Array]) -> list[InputDifference]:
    mapped = [tone.map(image) for image in a]
    level = np.array(tone.level)
    for wide, narrow, keeps, cuts, names in (
        (mapped, b, "A", "B", ("wider", "cut off")),
        (b, mapped, "B", "A", ("cut off", "wider")),
    ):
        low, high = limits(narrow)
        beyond = sum(
            int(((x < (low - level)[:, None, None]) | (x > (high + level)[:, None, None])).sum())
            for x in wide
        )
        piled = np.mean(
            [((y == low[:, None, None]) | (y == high[:, None, None])).mean() for y in narrow]
        )
        if beyond >= _FEWEST and piled > _PILE:
            return [
                difference(
                    "clipping",
                    f"{cuts} cuts off values that {keeps} keeps.",
                    *names,
                    f"{beyond} values of {keeps} lie beyond",
                )
            ]
    return []
