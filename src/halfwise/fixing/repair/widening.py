"""Data around the given samples: scaled, shifted, permuted, edge values; nothing that is illegal.

A repair must leave the function as it is, not only where calibration looked.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfwise.case import Sample, Samples

Array = NDArray[Any]
MOST = 16
"""Widened samples: every kind once, most of them of two samples."""
_FEW_VALUES = 2
"""An input with no more values is a mask or a switch: others are perhaps none of its own."""


def _one_hot(x: Array, _: np.random.Generator) -> Array:
    found = np.zeros_like(x)
    if x.size:
        place = np.argmax(np.abs(x))
        found.flat[place] = x.flat[place]
    return found


def _constant(x: Array, _: np.random.Generator) -> Array:
    return np.full_like(x, np.abs(x).max(initial=0.0))


_CHANGES: dict[str, Callable[[Array, np.random.Generator], Array]] = {
    "scaled by 4": lambda x, _: x * 4,
    "scaled by 1/256": lambda x, _: x / 256,
    "shifted": lambda x, _: x + np.abs(x).max(initial=0.0),
    "zeros": lambda x, _: np.zeros_like(x),
    "signs flipped": lambda x, _: -x,
    "scaled by 1/4": lambda x, _: x / 4,
    "permuted": lambda x, generator: generator.permutation(x.ravel()).reshape(x.shape),
    "scaled by 32": lambda x, _: x * 32,
    "one hot": _one_hot,
    "constant": _constant,
}
"""What is done with the finite elements of float inputs, the most telling first."""

TIES = frozenset(("zeros", "one hot", "constant", "scaled by 1/256"))
"""Kinds that make elements equal, or nearly: what is chosen of these is not determined."""


@dataclass(frozen=True)
class Widened:
    """A sample that nobody gave.

    Attributes:
        kind: What was done.
        sample: The inputs.
    """

    kind: str
    sample: Sample


def widen(samples: Samples, count: int) -> Iterator[Widened]:
    """Yield `count` changed samples, the kinds in turn.

    Float inputs are changed in their finite elements, all alike in the first turn and one of them
    alone in the second; those that hold whole numbers hold some afterwards. Integers, Booleans,
    strings, and float inputs with at most two values in all samples (masks, switches) are those of
    another sample, each input of another one, where shapes allow.

    Args:
        samples: At least one.
        count: How many, ≥ 0.
    """
    given = [dict(sample) for sample in samples]
    kinds = list(_CHANGES)
    free = sorted(varying(given))
    for index in range(count):
        # Each kind of another sample when its turn comes again.
        base = (index + index // len(kinds)) % len(given)
        kind = kinds[index % len(kinds)]
        generator = np.random.default_rng(index)
        changed = free if index < len(kinds) else free[index % len(free) :][:1] if free else []
        sample = dict(given[base])
        for place, (name, array) in enumerate(sample.items()):
            if name in changed:
                sample[name] = _changed(array, kind, generator)
            elif name not in free:
                sample[name] = _from_other(given, name, base, index + place)
        yield Widened(kind, sample)


def varying(samples: Sequence[Sample]) -> frozenset[str]:
    """Return the inputs of which other values than those given may be legal."""
    return frozenset(name for name in samples[0] if _varies([s[name] for s in samples]))


def _varies(arrays: Sequence[Array]) -> bool:
    if arrays[0].dtype.kind != "f":
        return False
    values: set[float] = set()
    for array in arrays:
        # Of many values the first tell already.
        values.update(np.unique(array.ravel()[:4096])[: _FEW_VALUES + 1].tolist())
        if len(values) > _FEW_VALUES:
            return True
    return False


def _from_other(given: Sequence[Sample], name: str, base: int, steps: int) -> Array:
    own = given[base][name]
    alike = [s[name] for s in given if s[name].shape == own.shape]
    return alike[(base + steps) % len(alike)]


def _changed(array: Array, kind: str, generator: np.random.Generator) -> Array:
    finite = np.isfinite(array)
    changed = _CHANGES[kind](np.where(finite, array, 0), generator)
    if np.array_equal(np.rint(array[finite]), array[finite]):
        changed = np.rint(changed)
    with np.errstate(over="ignore"):
        return np.where(finite, changed, array).astype(array.dtype)
