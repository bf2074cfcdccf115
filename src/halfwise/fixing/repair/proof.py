"""Check that a repaired model is the same function: on the user's data, and on data around it.

Both models run in FP32. If all outputs are equal bit for bit, as with powers of two, or differ by
less than `LIMIT`, nothing else is needed. Otherwise FP64 shows how far the original usually is from
the function on given samples. A difference up to that counts as the same; for a larger one, FP64
shows which model is right: on the worst sample of each kind, and on a usual one of each given
group.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf, prod
from statistics import median_low

import numpy as np
from numpy.typing import NDArray

from halfwise.case import CPU, Runtime, Sample, Samples
from halfwise.emulation.budget import Budget
from halfwise.emulation.double import DoubleSession
from halfwise.emulation.ort import Session
from halfwise.emulation.runner import seen_shapes
from halfwise.errors import RunFailed
from halfwise.fixing.repair.difference import error_of, lost, mended, same, size_of
from halfwise.fixing.repair.widening import MOST, TIES, changed_part, widen
from halfwise.graph.model import Network
from halfwise.graph.weights import weight_bytes
from halfwise.metrics import Outputs
from halfwise.records import Proof

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


def worst(proofs: Sequence[Proof]) -> Proof:
    """Return, of at least one proof, the one with the largest error relative to what is accepted.

    It counts broken and mended elements over all, and is equal if all are.
    """
    every = {
        "equal": all(proof.equal for proof in proofs),
        "broken": sum(proof.broken for proof in proofs),
        "mended": sum(proof.mended for proof in proofs),
    }
    return max(proofs, key=_excess).model_copy(update=every)


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


_Errors = dict[str, float]
"""Error of each output."""


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
    """

    original: Network
    calibration: Samples
    heldout: Samples
    infinite: frozenset[str] = field(default=frozenset(), kw_only=True)
    runtime: Runtime = field(default=CPU, kw_only=True)
    budget: Budget = field(default_factory=Budget, kw_only=True)
    _truths: dict[int, Outputs | None] = field(default_factory=dict, init=False)

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
        part = self._changed_part(repaired) if is_same(whole) else None
        return whole if part is None else _both(whole, part)

    def _changed_part(self, repaired: Network) -> Proof | None:
        few = _spread(self.calibration, FEWEST)
        found = changed_part(self.original, repaired, few, runtime=self.runtime)
        if found is None:
            return None
        before, after, samples = found
        none, budget = samples.select(()), self.budget
        prover = Prover(before, samples, none, runtime=self.runtime, budget=budget)
        return prover._proof(after)

    def _proof(self, repaired: Network) -> Proof:
        session = Session(repaired.model, runtime=self.runtime)
        equal, broken, other = True, 0, 0
        off: list[tuple[_Case, Outputs, _Errors]] = []
        counts: dict[str, int] = {}
        for case in self._cases:
            counts[case.group] = counts.get(case.group, 0) + 1
            self.budget.spend("proof")
            try:
                found: Outputs = session.run(case.sample)
            except RunFailed:
                return Proof(samples=counts, original=None, repaired=inf, equal=False)
            equal = equal and same(case.outputs, found)
            broken += sum(lost(a, found[n]) for n, a in case.outputs.items())
            if case.group != "widened":
                other += sum(mended(a, found[n]) for n, a in case.outputs.items())
            differences = self._differences(case, case.outputs, found)
            if any(differences.values()):
                off.append((case, found, differences))
        nothing = Proof(samples=counts, original=None, repaired=0.0, equal=equal)
        told = [nothing.model_copy(update={"broken": broken, "mended": other})]
        for original, error in self._errors(off):
            update = {"original": original, "repaired": error}
            told.append(told[0].model_copy(update=update))
        return max(told, key=_excess)

    def _errors(
        self, off: Sequence[tuple[_Case, Outputs, _Errors]]
    ) -> Iterator[tuple[float | None, float]]:
        """Yield the original's error, if FP64 is needed and known, and the repaired model's."""
        largest = max((max(errors.values(), default=0.0) for *_, errors in off), default=0.0)
        before = self._usual(off) if largest > LIMIT else None
        beyond: dict[str, dict[_Case, tuple[float, Outputs]]] = {}
        for case, found, differences in off:
            for name, difference in differences.items():
                own = None if before is None else before[name]
                excess = difference / max(LIMIT, own or 0.0)
                if own is None or excess <= 1:
                    yield own, difference
                elif excess > beyond.setdefault(case.kind, {}).get(case, (0.0,))[0]:
                    beyond[case.kind][case] = excess, found
        for some in sorted(beyond.values(), key=lambda some: -max(e for e, _ in some.values())):
            ranked = sorted(some, key=lambda case: -some[case][0])
            # Of given samples also a usual one: on the worst one FP32 may have few digits.
            usual = 0 if ranked[0].group == "widened" else len(ranked) // 2
            for case in dict.fromkeys((ranked[0], ranked[usual])):
                yield from self._against_fp64(case, some[case][1])

    def _against_fp64(self, case: _Case, found: Outputs) -> Iterator[tuple[float | None, float]]:
        """Yield errors against FP64 on one sample, against FP32 if FP64 is unknown."""
        truth = self._truth(case)
        if truth is None:
            yield from ((None, e) for e in self._differences(case, case.outputs, found).values())
            return
        before = self._differences(case, truth, case.outputs)
        for name, error in self._differences(case, truth, found).items():
            # A widened sample on which FP32 has no digits shows nothing.
            if case.group != "widened" or before[name] <= TRUSTED:
                yield before[name], error

    def _truth(self, case: _Case) -> Outputs | None:
        """Return the function's value on a sample, computed once; None if unknown."""
        place = self._cases.index(case)
        needed = (len(self._truths) + 1) * self._elements + weight_bytes(self.original.model) // 4
        if place not in self._truths and needed <= DOUBLE_ELEMENTS:
            self.budget.spend("double")
            try:
                self._truths[place] = self._double.run(case.sample)
            except RunFailed:
                self._truths[place] = None
        return self._truths.get(place)

    def _usual(self, off: Sequence[tuple[_Case, Outputs, _Errors]]) -> _Errors | None:
        """Return the original's usual errors, which the repaired model may have too.

        For each output it is the median over three given samples: where the models differ most,
        least, and in between. So neither sample order nor a single sample decides. None if FP64
        computes another function, through a bug, or if the function jumps: then FP32 is the
        reference. If the repaired model agrees with FP64, it is the original that has no digits
        left.
        """
        results = {case: found for case, found, _ in off}
        sizes = {case: max(errors.values()) for case, _, errors in off}
        given = sorted(self._of_user, key=lambda case: sizes.get(case, 0.0))
        before, after = list[_Errors](), list[float]()
        for case in dict.fromkeys((given[(len(given) - 1) // 2], given[-1], given[0])):
            if (truth := self._truth(case)) is not None:
                before.append(self._differences(case, truth, case.outputs))
                found = results.get(case, case.outputs)
                after.append(max(self._differences(case, truth, found).values()))
        errors = {n: median_low(one[n] for one in before) for one in before[:1] for n in one}
        if not before or max(errors.values()) <= TRUSTED:
            return errors or None
        return dict.fromkeys(errors, 0.0) if median_low(after) <= LIMIT else None

    @cached_property
    def _double(self) -> DoubleSession:
        return DoubleSession(self.original.model)

    def _differences(self, case: _Case, truth: Outputs, found: Outputs) -> _Errors:
        errors: _Errors = {}
        for name, right in truth.items():
            if right.dtype.kind == "f" or case.kind not in TIES:
                pair = right, found[name]
                if right.shape == found[name].shape:
                    pair = right[case.telling(name)], found[name][case.telling(name)]
                errors[name] = error_of(*pair, self._scale.get(name, 0.0) * _FLOOR)
        return errors

    @cached_property
    def _elements(self) -> int:
        shapes = seen_shapes(self.original, self.calibration[0], runtime=self.runtime)
        return sum(map(prod, shapes.values()))

    @cached_property
    def _cases(self) -> list[_Case]:
        session, cases = Session(self.original.model, runtime=self.runtime), list[_Case]()
        for group, kind, sample in self._samples():
            self.budget.spend("proof")
            if (outputs := _outputs(session, sample, group)) is not None:
                cases.append(_Case(group, kind, sample, outputs))
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
            others = self.infinite.difference(groups[name].ids)
            more = every.select([i for i, one in enumerate(every.ids) if one in others])
            yield from ((name, name, sample) for sample in groups[name] + more)
        widened = widen(groups["calibration"] + groups["heldout"], count)
        yield from (("widened", one.kind, one.sample) for one in widened)

    @cached_property
    def _scale(self) -> dict[str, float]:
        """The largest finite value of each output on the given samples."""
        sizes: dict[str, float] = {}
        for case in self._of_user:
            for name, array in case.outputs.items():
                sizes[name] = max(sizes.get(name, 0.0), size_of(array))
        return sizes


def _both(whole: Proof, part: Proof) -> Proof:
    """Return the worse of two proofs, with the findings of both and the samples of the first."""
    widened = whole.samples.get("widened", 0) + part.samples.get("widened", 0)
    update = {"samples": {**whole.samples, "widened": widened}, "mended": whole.mended}
    return worst((whole, part)).model_copy(update=update)


def _outputs(session: Session, sample: Sample, group: str) -> Outputs | None:
    """Return the original's outputs; None if it does not accept the sample."""
    try:
        return session.run(sample)
    except RunFailed:
        if group != "widened":
            raise
        return None


def _spread(samples: Samples, count: int) -> Samples:
    """Return at most `count` samples, evenly spread."""
    number = min(count, len(samples))
    return samples.select([i * len(samples) // number for i in range(number)])
