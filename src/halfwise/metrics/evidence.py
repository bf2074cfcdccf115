"""Evidence for the kinds of outputs: an output, and what is observed of it."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from halfwise.metrics.names import begins
from halfwise.records import Evidence, Kind

Inputs = Mapping[str, tuple[int, ...]]
"""Shape of every input of the model, on the first sample."""
Arrays = Sequence[NDArray[np.float64]]
"""One output of several samples."""
SUM_SLACK = 4e-3
"""Largest distance of a row's sum of probabilities, or of a length, from 1: BF16 rounds each number
by up to 2^-9 of itself."""
_STATES = ("cache", "state", "memory", "past", "present", "hn", "cn", "h0", "c0")
"""Words in the names of outputs that become inputs of the next call."""


class Seen(NamedTuple):
    """One output of the examined samples.

    Attributes:
        name: Its name.
        arrays: Its values, f64; none of them empty or NaN, and not all equal.
        discrete: Whether it holds integers.
        inputs: Shapes of the inputs.
        beside: Shapes of the other outputs, by name, on the first sample.
    """

    name: str
    arrays: Arrays
    discrete: bool
    inputs: Inputs
    beside: Mapping[str, tuple[int, ...]]

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape on the first sample."""
        return self.arrays[0].shape

    def called(self, *words: str) -> bool:
        """Return whether a word of its name starts with one of these, as evidence for a kind."""
        return begins(self.name, *words)

    def mentions(self, *words: str) -> bool:
        """Return whether its name contains one of these words, as evidence against a kind."""
        return any(word in self.name.lower() for word in words)

    @property
    def is_state(self) -> bool:
        """Whether it looks like a state for the next call: by its name, and an input's shape.

        In such an output every number counts, and so does its scale.
        """
        return self.shape in self.inputs.values() and self.mentions(*_STATES)

    def rows(self) -> list[NDArray[np.float64]]:
        """Return the arrays without trailing axes of length 1 beyond two, as `top1` reads them."""
        return [without_trailing_ones(array) for array in self.arrays]


class Found(NamedTuple):
    """What a rule concludes about an output; fields as in `kinds.Look`."""

    kind: Kind
    evidence: tuple[Evidence, ...]
    shown: bool


def within_unit(array: NDArray[np.float64]) -> bool:
    """Return whether all values are within [0, 1]; NaN is not."""
    return bool(np.all((array >= 0) & (array <= 1)))


def whole_numbers(arrays: Sequence[NDArray[Any]]) -> bool:
    """Return whether all values are whole numbers; NaN is not."""
    return all(bool(np.all(array == np.rint(array))) for array in arrays)


def sums_to_one(array: NDArray[np.float64], axis: int) -> bool:
    """Return whether all values are within [0, 1] and add up to 1 along an axis."""
    return within_unit(array) and bool(np.all(np.abs(array.sum(axis=axis) - 1) <= SUM_SLACK))


def without_trailing_ones(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array without trailing axes of length 1 beyond two."""
    while array.ndim > 2 and array.shape[-1] == 1:
        array = array[..., 0]
    return array


def image_sizes(inputs: Inputs) -> list[tuple[int, int]]:
    """Return height and width of inputs that are images with one or three channels."""
    found = []
    for shape in inputs.values():
        if len(shape) == 4 and shape[1] in (1, 3):
            found.append((shape[2], shape[3]))
        elif len(shape) == 4 and shape[3] in (1, 3):
            found.append((shape[1], shape[2]))
    return found
