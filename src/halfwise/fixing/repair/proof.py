"""Check that a repaired model is the same function: on the user's data, and on data around it.

Both models run in FP32. If all outputs are equal bit for bit, as with powers of two, or differ by
less than `LIMIT`, nothing else is needed. Otherwise FP64 shows how far the original usually is from
the function on given samples. A difference up to that counts as the same; for a larger one, FP64
shows which model is right: on the worst sample of each kind, and on a usual one of each given
group.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf, prod
from statistics import median_low
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfwise.case import CPU, Runtime, Sample, Samples
from halfwise.emulation.budget import Budget
from halfwise.emulation.double import DoubleSession
from halfwise.emulation.ort import Session
from halfwise.emulation.runner import Shapes, seen_shapes
from halfwise.errors import RunFailed
from halfwise.graph.bodies import shared_tensors
from halfwise.graph.dataflow import GIVEN, giving_out, region_model, varying_tensors
from halfwise.graph.model import Network, tensor_name
from halfwise.graph.weights import weight_bytes
from halfwise.metrics import Outputs
from halfwise.records import Proof, TensorName

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


def widen(samples: Samples, count: int) -> Iterator[tuple[str, Sample]]:
    """Yield `count` changed samples and how they were changed, cycling through the kinds.

    Float inputs are changed in their finite elements, all of them in the first round and one of
    them alone in the second; inputs of whole numbers stay whole. Integers, Booleans, strings, and
    float inputs with at most two values in all samples (masks, switches) are taken from another
    sample, each input from a different one, if shapes allow.

    Args:
        samples: At least one.
        count: Number of samples, ≥ 0.
    """
    originals = [dict(sample) for sample in samples]
    kinds = list(_CHANGES)
    free = sorted(varying(originals))
    for index in range(count):
        # Each kind starts from another sample in the next round.
        base = (index + index // len(kinds)) % len(originals)
        kind = kinds[index % len(kinds)]
        generator = np.random.default_rng(index)
        changed = free if index < len(kinds) else free[index % len(free) :][:1] if free else []
        sample = dict(originals[base])
        for place, (name, array) in enumerate(sample.items()):
            if name in changed:
                sample[name] = _changed(array, kind, generator)
            elif name not in free:
                sample[name] = _from_other(originals, name, base, index + place)
        yield kind, sample


def varying(samples: Sequence[Sample]) -> frozenset[str]:
    """Return the inputs for which values other than those given may be legal."""
    return frozenset(name for name in samples[0] if _varies([s[name] for s in samples]))


def _varies(arrays: Sequence[Array]) -> bool:
    # If there are many values, the first ones already show it.
    first = np.concatenate([array.ravel()[:4096] for array in arrays])
    return first.dtype.kind == "f" and np.unique(first).size > _FEW_VALUES


def _from_other(originals: Sequence[Sample], name: str, base: int, steps: int) -> Array:
    array = originals[base][name]
    alike = [s[name] for s in originals if s[name].shape == array.shape]
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
    extended = [
        {**sample, **{f"{name}{GIVEN}": array for name, array in session.run(sample).items()}}
        for sample in samples
    ]
    wanted = {str(v.name) for n in parts for v in n.graph.inputs}
    inputs = [{name: sample[name] for name in wanted} for sample in extended]
    return parts[0], parts[1], Samples(samples.ids, lambda i: inputs[i])


_MASK, _FAR = 1e4, 1e3
"""Elements of an output are masks from 1e4 on, if a thousand times larger than those not
half as large; the other elements have their own largest value."""


def size_of(array: NDArray[np.generic]) -> float:
    """Return the largest finite magnitude outside masks; 0 if there is none, or no float."""
    if array.dtype.kind != "f":
        return 0.0
    sizes = np.abs(array[np.isfinite(array)].astype(np.float64))
    return float(sizes[sizes < _masks_from(sizes)].max(initial=0.0))


def same(one: Outputs, other: Outputs) -> bool:
    """Return whether outputs are equal bit for bit, treating all NaN as equal."""
    return all(
        a.shape == other[n].shape and np.array_equal(a, other[n], equal_nan=a.dtype.kind == "f")
        for n, a in one.items()
    )


def infinite_at(outputs: Outputs) -> bool:
    """Return whether an output holds NaN or infinities."""
    return any(a.dtype.kind == "f" and not np.isfinite(a).all() for a in outputs.values())


def moved(before: NDArray[np.generic], after: NDArray[np.generic]) -> tuple[int, int]:
    """Return how many elements are lost and how many are mended.

    Lost: finite before and not after, or NaN only after. Mended: NaN or infinite before, and
    different after.
    """
    if before.dtype.kind != "f" or before.shape != after.shape:
        return 0, 0
    finite = np.isfinite(before)
    unlike = (before != after) & ~(np.isnan(before) & np.isnan(after))
    lost = unlike & ((finite & ~np.isfinite(after)) | np.isnan(after))
    return int(np.count_nonzero(lost)), int(np.count_nonzero(unlike & ~finite))


def error_of(truth: NDArray[np.generic], actual: NDArray[np.generic], floor: float) -> float:
    """Return the largest difference relative to the largest value of `truth`, at least `floor`.

    An element infinite in `truth` and anything else in `actual` counts as inf. Elements that are
    NaN in `truth`, or finite only in `truth`, do not count: `moved` counts these. For types other
    than float, the share of elements that differ.
    """
    if truth.shape != actual.shape:
        return inf
    if truth.dtype.kind != "f":
        return float(np.mean(truth != actual)) if truth.size else 0.0
    a, b = truth.astype(np.float64), actual.astype(np.float64)
    if np.any(np.isinf(a) & (a != b)):
        return inf
    both = np.isfinite(a) & np.isfinite(b)
    sizes, error = np.abs(a[both]), np.abs(a[both] - b[both])
    masked = sizes >= _masks_from(sizes)
    return max(_relative(error[part], sizes[part], floor) for part in (masked, ~masked))


def _relative(error: NDArray[np.float64], sizes: NDArray[np.float64], floor: float) -> float:
    largest = float(error.max(initial=0.0))
    scale = max(float(sizes.max(initial=0.0)), floor)
    return largest / scale if largest and scale else inf if largest else 0.0


def _masks_from(sizes: NDArray[np.float64]) -> float:
    """Return the magnitude from which elements are masks, far above all others; inf for none."""
    largest = float(sizes.max(initial=0.0))
    smaller = sizes[sizes < largest / _FAR]
    gap = not np.any((sizes >= largest / _FAR) & (sizes < largest / 2))
    return largest / _FAR if largest >= _MASK and gap and smaller.any() else inf


LIMIT = 1e-5
"""Error relative to an output's largest value that is always accepted: less than what
FP32 itself has in deep networks (1.4e-5 in PP-OCRv3's detector, 2.2e-5 in YOLOX-nano, on one sample
against FP64), and a thousandth of what the default tolerance allows."""
TRUSTED = 1e-2
"""Error of the original from which FP64 shows nothing: it computes another function there."""
MOST_ELEMENTS = 1 << 25
"""Elements of all activations on one sample, times samples of a group; the fewest are `FEWEST`."""
FEWEST = 4
DOUBLE_ELEMENTS = 1 << 28
"""FP64 is computed up to this many elements of weights, and of all activations over all samples: it
takes 10 to 35 times as long as FP32 on PP-OCRv3's detector, which has 2^26.5 on one."""
_FLOOR = 1 / 16
"""An output's largest value counts as at least this share of its value on the given samples: the
relative error of an output that is zero up to rounding says nothing."""


def allowed(proof: Proof) -> float:
    """Return the error up to which a repaired model counts as the same function."""
    return max(LIMIT, proof.original or 0.0)


def _excess(proof: Proof) -> float:
    return proof.repaired / allowed(proof)


def is_same(proof: Proof) -> bool:
    """Return whether a repaired model is the same function, as far as the samples show."""
    return not proof.broken and not proof.mended and proof.repaired <= allowed(proof)


def prove(
    original: Network,
    repaired: Network,
    calibration: Samples,
    heldout: Samples,
    *,
    runtime: Runtime = CPU,
) -> Proof:
    """Return the distance of a repaired network from the function, see `Prover`."""
    return Prover(original, calibration, heldout, runtime=runtime).prove(repaired)


_Errors = dict[str, float]
"""Error of each output."""


@dataclass(frozen=True, eq=False)
class _Case:
    """A sample and the original's outputs.

    Attributes:
        group: "calibration", "heldout" or "widened".
        kind: The group, or how the sample was widened.
        sample: The inputs.
        outputs: The original's outputs in FP32.
    """

    group: str
    kind: str
    sample: Sample
    outputs: Outputs

    def telling(self, name: str) -> NDArray[np.bool_]:
        """Return which elements of an output say something about errors.

        On a widened sample, those where the original is finite; others show only their number.
        """
        array = self.outputs[name]
        if self.group != "widened" or array.dtype.kind != "f":
            return np.ones(array.shape, np.bool_)
        return np.isfinite(array)


@dataclass(frozen=True)
class _Off:
    """A sample on which both models differ: the repaired model's outputs, and by how much."""

    case: _Case
    outputs: Outputs
    errors: _Errors

    @property
    def largest(self) -> float:
        return max(self.errors.values())


@dataclass
class Prover:
    """Proves repairs of one network; the original's outputs are computed once.

    It uses up to 16 calibration, 16 held-out and 16 widened samples, fewer if they are large; and
    all given ones on which the original is known to have NaN or infinities.

    Attributes:
        original: The network before repairs.
        calibration: At least one.
        heldout: Further samples, perhaps none.
        infinite: Identifiers of given samples on which an output of the original is not finite.
        runtime: Where both run in FP32.
        budget: Counts the runs; inside a block of it, OutOfTime ends them.
        shapes: Shapes of the original's tensors; seen in a run if there are none.
    """

    original: Network
    calibration: Samples
    heldout: Samples
    infinite: frozenset[str] = field(default=frozenset(), kw_only=True)
    runtime: Runtime = field(default=CPU, kw_only=True)
    budget: Budget = field(default_factory=Budget, kw_only=True)
    shapes: Shapes = field(default_factory=dict, kw_only=True)
    _truths: dict[_Case, Outputs | None] = field(default_factory=dict, init=False)

    def prove(self, repaired: Network) -> Proof:
        """Return how far `repaired` and the original are from the function.

        The reported error is the largest over all samples and outputs, relative to what is
        accepted. Outputs of other types than float count by the share of elements that differ.
        NaN or infinities of the original on a widened sample only show whether there are more.
        Behind an input that may not be widened, the changed part is also proven alone, widened.

        Raises:
            CaseError: ONNX Runtime cannot run the repaired network.
        """
        whole = self._proof(repaired)
        few = _spread(self.calibration, FEWEST)
        parts = changed_part(self.original, repaired, few, runtime=self.runtime)
        if parts is None or not is_same(whole):
            return whole
        before, after, samples = parts
        none, budget = samples.select(()), self.budget
        prover = Prover(before, samples, none, runtime=self.runtime, budget=budget)
        part = prover._proof(after)
        widened = whole.samples["widened"] + part.samples["widened"]
        both = {
            "samples": {**whole.samples, "widened": widened},
            "equal": whole.equal and part.equal,
            "broken": part.broken,
            "mended": 0,
        }
        return max((whole, part), key=_excess).model_copy(update=both)

    def _proof(self, repaired: Network) -> Proof:
        session = Session(repaired.model, runtime=self.runtime)
        counts = Counter({"widened": 0})
        equal, broken, other, off = True, 0, 0, list[_Off]()
        for case in self._cases:
            counts[case.group] += 1
            self.budget.spend("proof")
            try:
                outputs: Outputs = session.run(case.sample)
            except RunFailed:
                return Proof(samples=counts, original=None, repaired=inf, equal=False)
            equal = equal and same(case.outputs, outputs)
            for name, array in case.outputs.items():
                lost, mended = moved(array, outputs[name])
                broken += lost
                other += mended if case.group != "widened" else 0
            differences = self._differences(case, case.outputs, outputs)
            if any(differences.values()):
                off.append(_Off(case, outputs, differences))
        proof = Proof(
            samples=counts, original=None, repaired=0.0, equal=equal, broken=broken, mended=other
        )
        errors = ({"original": o, "repaired": e} for o, e in self._errors(off))
        return max((proof, *(proof.model_copy(update=each) for each in errors)), key=_excess)

    def _errors(self, off: Sequence[_Off]) -> Iterator[tuple[float | None, float]]:
        """Yield the original's error, if FP64 is needed and known, and the repaired model's."""
        usual = self._usual(off) if any(one.largest > LIMIT for one in off) else None
        beyond: dict[str, list[tuple[float, _Off]]] = {}
        for one in off:
            known: Mapping[str, float] = {} if usual is None else usual
            excess = max(e / max(LIMIT, known.get(n, 0.0)) for n, e in one.errors.items())
            if usual is None or excess <= 1:
                yield from ((known.get(n), e) for n, e in one.errors.items())
            else:
                beyond.setdefault(one.case.kind, []).append((excess, one))
        widened = list[tuple[str, float | None, float]]()
        for same_kind in beyond.values():
            ranked = [one for _, one in sorted(same_kind, key=lambda item: -item[0])]
            if ranked[0].case.group == "widened":
                widened += self._against_fp64(ranked[0])
                continue
            # Also a usual one: on the worst one FP32 may have few digits.
            for place in {0, len(ranked) // 2}:
                yield from ((o, e) for _, o, e in self._against_fp64(ranked[place]))
        # Which changed sample a long sum rounds well is luck, in either model.
        for name, _, error in widened:
            before = [o for n, o, _ in widened if n == name and o is not None]
            yield max(before, default=None), error

    def _against_fp64(self, one: _Off) -> Iterator[tuple[str, float | None, float]]:
        """Yield both errors of an output against FP64 on one sample, or the one against FP32."""
        case, truth = one.case, self._truth(one.case)
        if truth is None:
            yield from ((n, None, e) for n, e in one.errors.items())
            return
        before = self._differences(case, truth, case.outputs)
        for name, error in self._differences(case, truth, one.outputs).items():
            # A widened sample on which FP32 has no digits shows nothing.
            if case.group != "widened" or before[name] <= TRUSTED:
                yield name, before[name], error

    def _truth(self, case: _Case) -> Outputs | None:
        """Return the function's value on a sample, computed once; None if unknown."""
        needed = (len(self._truths) + 1) * self._elements + weight_bytes(self.original.model) // 4
        if case not in self._truths and needed <= DOUBLE_ELEMENTS:
            self.budget.spend("double")
            self._truths[case] = None
            with suppress(RunFailed):
                self._truths[case] = self._double.run(case.sample)
        return self._truths.get(case)

    def _usual(self, off: Sequence[_Off]) -> _Errors | None:
        """Return the original's usual errors, which the repaired model may have too.

        For each output it is the median over three given samples: where the models differ most,
        least, and in between. So neither sample order nor a single sample decides. None if FP64
        computes another function, through a bug, or if the function jumps: then FP32 is the
        reference. If the repaired model agrees with FP64, it is the original that has no digits
        left.
        """
        by_case = {one.case: one for one in off}
        outputs = {case: one.outputs for case, one in by_case.items()}
        by_difference = sorted(
            self._of_user, key=lambda c: by_case[c].largest if c in by_case else 0.0
        )
        few = {
            case: self._truth(case)
            for case in (
                by_difference[(len(by_difference) - 1) // 2],
                by_difference[-1],
                by_difference[0],
            )
        }
        truths = [(case, truth) for case, truth in few.items() if truth is not None]
        before = [self._differences(case, truth, case.outputs) for case, truth in truths]
        errors = {n: median_low(one[n] for one in before) for one in before[:1] for n in one}
        if not errors or max(errors.values()) <= TRUSTED:
            return errors or None
        after = (self._differences(c, truth, outputs.get(c, c.outputs)) for c, truth in truths)
        agrees = median_low(max(one.values()) for one in after) <= LIMIT
        return dict.fromkeys(errors, 0.0) if agrees else None

    @cached_property
    def _double(self) -> DoubleSession:
        return DoubleSession(self.original.model)

    def _differences(self, case: _Case, truth: Outputs, actual: Outputs) -> _Errors:
        errors: _Errors = {}
        for name, right in truth.items():
            if right.dtype.kind == "f" or case.kind not in TIES:
                pair = right, actual[name]
                if right.shape == actual[name].shape:
                    pair = right[case.telling(name)], actual[name][case.telling(name)]
                errors[name] = error_of(*pair, self._scale.get(name, 0.0) * _FLOOR)
        return errors

    @cached_property
    def _elements(self) -> int:
        sample, runtime = self.calibration[0], self.runtime
        shapes = self.shapes or seen_shapes(self.original, sample, runtime=runtime)
        return sum(map(prod, shapes.values()))

    @cached_property
    def _cases(self) -> list[_Case]:
        session, cases = Session(self.original.model, runtime=self.runtime), list[_Case]()
        for group, kind, sample in self._samples():
            self.budget.spend("proof")
            try:
                cases.append(_Case(group, kind, sample, session.run(sample)))
            except RunFailed:
                if group != "widened":  # the original need not accept a changed sample
                    raise
        return cases

    @property
    def _of_user(self) -> list[_Case]:
        return [case for case in self._cases if case.group != "widened"]

    def _samples(self) -> Iterator[tuple[str, str, Sample]]:
        count = min(MOST, max(FEWEST, MOST_ELEMENTS // max(1, self._elements)))
        groups: Mapping[str, Samples] = {
            "calibration": _spread(self.calibration, count),
            "heldout": _spread(self.heldout, count),
        }
        for name, every in (("calibration", self.calibration), ("heldout", self.heldout)):
            infinite = self.infinite.difference(groups[name].ids)
            more = every.select([i for i, one in enumerate(every.ids) if one in infinite])
            yield from ((name, name, sample) for sample in groups[name] + more)
        widened = widen(groups["calibration"] + groups["heldout"], count)
        yield from (("widened", kind, sample) for kind, sample in widened)

    @cached_property
    def _scale(self) -> dict[str, float]:
        """The largest finite value of each output on the given samples."""
        cases = self._of_user
        names = cases[0].outputs if cases else ()
        return {n: max(size_of(case.outputs[n]) for case in cases) for n in names}


def _spread(samples: Samples, count: int) -> Samples:
    """Return at most `count` samples, evenly spread."""
    number = min(count, len(samples))
    return samples.select([i * len(samples) // number for i in range(number)])
