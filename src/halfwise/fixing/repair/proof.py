"""Check that a repaired model is the same function: on the user's data, and on data around it.

Both models run in FP32. Their outputs may be equal bit for bit, as with powers of two, differ by up
to `LIMIT`, or by as much as the original's own rounding makes: it is drawn again by moving the last
bits of the inputs.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from math import inf, isfinite, prod
from types import MappingProxyType
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from halfwise.case import CPU, Runtime, Sample, Samples
from halfwise.emulation.budget import Budget
from halfwise.emulation.ort import Session
from halfwise.emulation.runner import Shapes, seen_shapes
from halfwise.errors import RunFailed
from halfwise.formats import ALIKE_IN_FP32, nudged
from halfwise.graph.model import Network
from halfwise.metrics import Outputs
from halfwise.metrics.difference import Difference, Spread, compare
from halfwise.records import Proof, replace

Array = NDArray[Any]
MOST = 16
"""Number of widened samples: every kind once, most of them of two samples."""
_FEW_VALUES = 2
"""An input with no more values is a mask or a switch: other values may be illegal."""


def _one_hot(x: Array, _: np.random.Generator) -> Array:
    single = np.zeros_like(x)
    if x.size:
        place = np.argmax(np.abs(x))
        single.flat[place] = x.flat[place]
    return single


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
    "constant": lambda x, _: np.full_like(x, np.abs(x).max(initial=0.0)),
}
"""Changes to the finite elements of float inputs, the most revealing first."""

TIES = frozenset(("zeros", "one hot", "constant", "scaled by 1/256"))
"""Kinds that make elements equal, or nearly: which of these an op chooses is undetermined."""


def widen(samples: Sequence[Sample], count: int) -> Iterator[tuple[str, Sample]]:
    """Yield `count` changed samples and how they were changed, cycling through the kinds.

    None if no input may be changed.

    Float inputs are changed in their finite elements, all of them in the first round and one of
    them alone in the second; inputs of whole numbers stay whole. Integers, Booleans, strings, and
    float inputs with at most two values in all samples (masks, switches) stay as they are.

    Args:
        samples: At least one.
        count: Number of samples, ≥ 0.
    """
    kinds, free = list(_CHANGES), sorted(varying(samples))
    for index in range(count if free else 0):
        # Each kind starts from another sample in the next round.
        sample = samples[(index + index // len(kinds)) % len(samples)]
        kind, generator = kinds[index % len(kinds)], np.random.default_rng(index)
        changed = free if index < len(kinds) else free[index % len(free) :][:1]
        new = {name: _changed(sample[name], kind, generator) for name in changed}
        yield kind, {**sample, **new}


def varying(samples: Sequence[Sample]) -> frozenset[str]:
    """Return the inputs for which values other than those given may be legal."""
    return frozenset(name for name in samples[0] if _varies([s[name] for s in samples]))


def _varies(arrays: Sequence[Array]) -> bool:
    # If there are many values, the first ones already show it.
    first = np.concatenate([array.ravel()[:4096] for array in arrays])
    return first.dtype.kind == "f" and np.unique(first).size > _FEW_VALUES


def _changed(array: Array, kind: str, generator: np.random.Generator) -> Array:
    finite = np.isfinite(array)
    changed = _CHANGES[kind](np.where(finite, array, 0), generator)
    if np.array_equal(np.rint(array[finite]), array[finite]):
        changed = np.rint(changed)
    with np.errstate(over="ignore"):
        return np.where(finite, changed, array).astype(array.dtype)


def same(one: Outputs, other: Outputs) -> bool:
    """Return whether outputs are equal bit for bit, treating all NaN as equal."""
    return all(
        a.shape == other[n].shape and np.array_equal(a, other[n], equal_nan=a.dtype.kind == "f")
        for n, a in one.items()
    )


def infinite_at(outputs: Outputs) -> bool:
    """Return whether an output holds NaN or infinities."""
    return any(a.dtype.kind == "f" and not np.isfinite(a).all() for a in outputs.values())


LIMIT = 2e-4
"""Difference relative to an output's largest value up to which a repaired model counts as the same
function: ten times what FP32 itself has in deep networks (1.4e-5 in PP-OCRv3's detector, 2.2e-5 in
YOLOX nano, on one sample against FP64), more than that of a running sum of 65,536 terms beside one
of parts (1.5e-4), and a fiftieth of what the default tolerance allows."""
ROUNDED = 2e-2
"""Largest difference on given samples that rounding in FP32 may explain: more digits must be left
to show a function."""
MOST_ELEMENTS = 1 << 25
"""Elements of all activations on one sample, times samples of a group; the fewest are `FEWEST`."""
FEWEST = 4
_FLOOR = 1 / 16
"""An output's largest value counts as at least this share of its value on the given samples: the
relative error of an output that is zero up to rounding says nothing."""


def is_same(proof: Proof) -> bool:
    """Return whether a repaired model is the same function, as far as the samples show."""
    return not proof.broken and proof.repaired <= LIMIT


def prove(
    original: Network,
    repaired: Network,
    calibration: Samples,
    heldout: Samples,
    *,
    known: Mapping[str, Outputs] = MappingProxyType({}),
    runtime: Runtime = CPU,
    budget: Budget | None = None,
    shapes: Shapes | None = None,
) -> Proof:
    """Return how far a repaired network is from the original.

    It uses up to 16 calibration, 16 held-out and 16 widened samples, fewer if they are large; and
    all given ones on which the original is known to have NaN or infinities.

    The reported error is the largest over all samples and outputs, relative to the largest value of
    the output. Outputs of other types than float count by the share of elements that differ. NaN or
    infinities of the original on a widened sample only show whether there are more.

    Args:
        original: The network before repairs.
        repaired: The network with them.
        calibration: At least one.
        heldout: Further samples, perhaps none.
        known: Outputs of the original on given samples, by identifier: it does not run on these.
        runtime: Where both run in FP32.
        budget: Counts the runs; inside a block of it, OutOfTime ends them.
        shapes: Shapes of the original's tensors; seen in a run if there are none.

    Raises:
        CaseError: ONNX Runtime cannot run the repaired network.
        RunFailed: the original fails on a given sample.
    """
    shapes = shapes or seen_shapes(original, calibration[0], runtime=runtime)
    elements = max(1, sum(map(prod, shapes.values())))
    count = min(MOST, max(FEWEST, MOST_ELEMENTS // elements))
    given = {"calibration": calibration, "heldout": heldout}
    few = {group: _spread(every, count) for group, every in given.items()}
    for group, every in given.items():
        more = (i for i, one in enumerate(every.ids) if infinite_at(known.get(one, {})))
        few[group] += every.select([i for i in more if every.ids[i] not in few[group].ids])
    return _compared(
        original,
        repaired,
        few,
        count=count,
        known=known,
        runtime=runtime,
        budget=budget or Budget(),
    )


class _Pair(Struct, frozen=True, eq=False, dict=True):
    """What both models give on a sample.

    Attributes:
        group: "calibration", "heldout" or "widened".
        kind: The group, or how the sample was widened.
        sample: The inputs.
        before: Outputs of the original in FP32.
        after: Outputs of the repaired model; the same object if they are equal.
    """

    group: str
    kind: str
    sample: Sample
    before: Outputs
    after: Outputs

    @cached_property
    def differences(self) -> dict[str, Difference]:
        """How outputs differ; on a widened sample, where the original is finite, or not NaN."""
        differences = {}
        for name, before in self.before.items():
            one, other = before, self.after[name]
            if self.group == "widened" and one.dtype.kind == "f" and one.shape == other.shape:
                telling = np.isfinite(one) | np.isnan(other)
                one, other = one[telling], other[telling]
            differences[name] = compare(one, other, cosine=False)
        return differences


def _compared(
    original: Network,
    repaired: Network,
    given: Mapping[str, Samples],
    *,
    count: int,
    known: Mapping[str, Outputs],
    runtime: Runtime,
    budget: Budget,
) -> Proof:
    """Return the proof on given samples by group and on `count` widened ones."""
    sessions = [Session(network.model, runtime=runtime) for network in (original, repaired)]
    every = [
        (group, group, sample, known.get(name))
        for group, samples in given.items()
        for name, sample in zip(samples.ids, samples, strict=True)
    ]
    changed = widen([sample for _, _, sample, _ in every], count)
    pairs, counts = list[_Pair](), Counter({"widened": 0})
    for group, kind, sample, seen in chain(every, (("widened", *one, None) for one in changed)):
        budget.spend("proof", 1 if seen else 2)
        try:
            right: Outputs = seen or sessions[0].run(sample)
        except RunFailed:
            if group == "widened":  # the original need not accept a changed sample
                continue
            raise
        counts[group] += 1
        try:
            outputs: Outputs = sessions[1].run(sample)
        except RunFailed:
            return Proof(samples=counts, repaired=inf, equal=False)
        outputs = right if same(right, outputs) else outputs
        pairs.append(_Pair(group, kind, sample, right, outputs))
    given_pairs = [pair for pair in pairs if pair.group != "widened"]
    first = given_pairs[0].before
    scale = {n: _FLOOR * max(_largest(pair.before[n]) for pair in given_pairs) for n in first}
    return Proof(
        samples=dict(counts),
        repaired=_beyond_rounding(pairs, sessions[0], scale, budget),
        equal=all(pair.after is pair.before for pair in pairs),
        broken=sum(one.nonfinite for pair in pairs for one in pair.differences.values()),
    )


def _beyond_rounding(
    pairs: Sequence[_Pair], original: Session, scale: Mapping[str, float], budget: Budget
) -> float:
    """Return the largest difference of the outputs; those that rounding explains count as `LIMIT`.

    The original's rounding counts on any sample at least as it does on given ones: on which of them
    it comes out well is luck.
    """
    differences = {pair: _off(pair, scale) for pair in pairs}
    if max(differences.values(), default=0.0) > LIMIT:
        given = [pair for pair in pairs if pair.group != "widened"]
        others = [pair for pair in pairs if pair.group == "widened" and differences[pair] > LIMIT]
        own = {p: _rounding(p, original, scale, budget) for p in (*given, *others)}
        usual = max(own[pair] for pair in given)
        for pair, rounding in own.items():
            explained = min(ALIKE_IN_FP32 * max(usual, rounding), ROUNDED if pair in given else inf)
            if differences[pair] <= explained:
                differences[pair] = min(differences[pair], LIMIT)
    return max(differences.values(), default=0.0)


def _rounding(pair: _Pair, original: Session, scale: Mapping[str, float], budget: Budget) -> float:
    """Return how far the original's outputs move with the last bits of its inputs.

    0 if something becomes NaN or infinite by that: it excuses no difference.
    """
    budget.spend("proof")
    try:
        moved_by_rounding = original.run(nudged(pair.sample, np.random.default_rng(0)))
    except RunFailed:  # it need not accept such inputs
        return 0.0
    off = _off(replace(pair, after=moved_by_rounding), scale)
    return off if isfinite(off) else 0.0


def _off(pair: _Pair, scale: Mapping[str, float]) -> float:
    """Return the largest difference of the outputs that say something about errors."""
    errors = [0.0]
    for name, one in pair.differences.items():
        if not one.discrete and one.max_abs:
            size = max(_largest(pair.before[name]), scale[name])
            errors.append(one.max_abs / size if size else inf)
        elif one.discrete and pair.kind not in TIES:
            errors.append(inf if one.misshapen else one.mismatched / max(1, one.elements))
    return max(errors)


def _largest(array: Array) -> float:
    """Return the largest finite magnitude; 0 if there is none."""
    spread = Spread()
    spread.add(array)
    return spread.absmax


def _spread(samples: Samples, count: int) -> Samples:
    """Return at most `count` samples, evenly spread."""
    number = min(count, len(samples))
    return samples.select([i * len(samples) // number for i in range(number)])
