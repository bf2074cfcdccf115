"""Elements of discrete outputs other than the majority value: few positives, small objects.

Where one value fills most of an output, agreement over all elements hides the loss of the others:
if none of 6 pixels among 1,000 is found, 99.4 % still agree. So the others are held to the same
fraction as a group of their own: twice the number that agree, over the sum of both sides' numbers.
For two values that is the Dice coefficient (Dice, "Measures of the Amount of Ecologic Association
Between Species", 1945), for which MLPerf Inference also requires 99 % in segmentation.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Common(NamedTuple):
    """The majority value of an output's elements.

    Attributes:
        value: The value.
        others: Number of elements with another value.
    """

    value: int
    others: int


def common_value(arrays: Sequence[NDArray[Any]]) -> Common | None:
    """Return the value of more than half of all elements; None if there is none.

    Args:
        arrays: Integers or Booleans [*shape]; None for other types.
    """
    counts: dict[int, int] = {}
    total = 0
    for array in arrays:
        if array.dtype.kind not in "biu":
            return None
        total += array.size
        for value, count in zip(*np.unique(array, return_counts=True), strict=True):
            counts[int(value)] = counts.get(int(value), 0) + int(count)
    value, most = max(counts.items(), key=lambda item: item[1], default=(0, 0))
    return Common(value, total - most) if 2 * most > total else None


@dataclass
class Rare:
    """Counts of elements other than the majority value; counts of several samples add up.

    Attributes:
        reference: Number of them in the reference.
        candidate: Number of them in the candidate.
        apart: Number of them on either side that differ on the other.
    """

    reference: int = 0
    candidate: int = 0
    apart: int = 0

    def add(self, reference: NDArray[Any], candidate: NDArray[Any], common: int) -> None:
        """Add pairs of elements, both [*shape]."""
        wanted, found, wrong = reference != common, candidate != common, reference != candidate
        self.reference += int(np.count_nonzero(wanted))
        self.candidate += int(np.count_nonzero(found))
        self.apart += int(np.count_nonzero(wanted & wrong) + np.count_nonzero(found & wrong))

    def merge(self, other: "Rare") -> None:
        """Add the counts of `other`, which belongs to the same output."""
        self.reference += other.reference
        self.candidate += other.candidate
        self.apart += other.apart

    def agreement(self, total: int) -> float:
        """Return the largest agreement in [0, 1] still possible; 1 if there are no such elements.

        Args:
            total: Elements of the reference other than the majority value, over all samples.
        """
        # What is yet to come adds as much to both sides.
        both = total + self.candidate + total - self.reference
        return (both - self.apart) / both if both else 1.0
