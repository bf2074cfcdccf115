"""Data around the given samples: scaled, shifted, permuted, edge values; always legal.

A repair must preserve the function everywhere, not only where calibration looked. If inputs cannot
be widened, such as token ids, the part that a repair changes is taken on its own.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfwise.case import Runtime, Sample, Samples
from halfwise.emulation.ort import Session
from halfwise.graph.dataflow import GIVEN, giving_out, region_model, varying_tensors
from halfwise.graph.model import Network, tensor_name
from halfwise.graph.sameness import shared_tensors
from halfwise.records import TensorName

Array = NDArray[Any]
MOST = 16
"""Number of widened samples: every kind once, most of them of two samples."""
_FEW_VALUES = 2
"""An input with no more values is a mask or a switch: other values may be illegal."""


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
"""Changes to the finite elements of float inputs, the most revealing first."""

TIES = frozenset(("zeros", "one hot", "constant", "scaled by 1/256"))
"""Kinds that make elements equal, or nearly: which of these an op chooses is undetermined."""


@dataclass(frozen=True)
class Widened:
    """A sample derived from the given ones.

    Attributes:
        kind: How it was changed.
        sample: The inputs.
    """

    kind: str
    sample: Sample


def widen(samples: Samples, count: int) -> Iterator[Widened]:
    """Yield `count` changed samples, cycling through the kinds.

    Float inputs are changed in their finite elements, all of them in the first round and one of
    them alone in the second; inputs of whole numbers stay whole. Integers, Booleans, strings, and
    float inputs with at most two values in all samples (masks, switches) are taken from another
    sample, each input from a different one, if shapes allow.

    Args:
        samples: At least one.
        count: Number of samples, ≥ 0.
    """
    given = [dict(sample) for sample in samples]
    kinds = list(_CHANGES)
    free = sorted(varying(given))
    for index in range(count):
        # Each kind starts from another sample in the next round.
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
    """Return the inputs for which values other than those given may be legal."""
    return frozenset(name for name in samples[0] if _varies([s[name] for s in samples]))


def _varies(arrays: Sequence[Array]) -> bool:
    if arrays[0].dtype.kind != "f":
        return False
    values: set[float] = set()
    for array in arrays:
        # If there are many values, the first ones already show it.
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


def changed_part(
    original: Network, repaired: Network, samples: Samples, *, runtime: Runtime
) -> tuple[Network, Network, Samples] | None:
    """Return both networks from the tensors that they compute alike, and their values.

    Args:
        original: A network.
        repaired: The same with repairs.
        samples: At least one.
        runtime: Where the original runs.

    Returns:
        Both with these tensors as inputs; None if there are no such tensors, or if every input
        that these depend on can be widened.
    """
    outputs = [tensor_name(v) for v in original.graph.outputs]
    shared = sorted(shared_tensors(original, repaired).difference(outputs))
    widened = [TensorName(name) for name in varying(list(samples))]
    if varying_tensors(original, widened).isdisjoint(shared):
        return None
    if any(v.producer() is None for v in original.graph.outputs):
        return None
    parts = [replace(n, model=region_model(n, outputs, shared)) for n in (original, repaired)]
    session = Session(giving_out(original.model, shared), runtime=runtime)
    taken = [
        {**sample, **{f"{name}{GIVEN}": array for name, array in session.run(sample).items()}}
        for sample in samples
    ]
    wanted = {str(v.name) for n in parts for v in n.graph.inputs}
    given = [{name: sample[name] for name in wanted} for sample in taken]
    return parts[0], parts[1], Samples(samples.ids, lambda i: given[i])
