"""What emulations predict of a plan before its engine is built, and how far it may be off.

Engines of one plan differ in what they fuse, in the type of their sums and of constants that FP32
nodes read, and in what they leave in FP32, and no rule predicts this. A few such variants are
emulated, and an engine is expected among them: at best like the variant with fusion, FP32 sums, and
the FP32 blocks of the engine with nothing kept; at worst like the worst variant without such
blocks, plus a share of the distance between their outputs. That distance consists of rounding only:
if an error is one of range, and the same in all variants, the band is narrow.

In weak typing a constraint holds for a node's layer. The constants that it reads are layers of
their own, and the builder may store them in FP16 although the node computes in FP32. What this does
is in the log of TensorRT 8.6.0: finite values that would overflow are "converted to the closest
finite FP16 value", values below the smallest subnormal "to the FP16 minimum subnormalized value".
With that, emulation gives the errors of engines that were off without another explanation: 3.059
(3.059 measured), 3.59 (3.51 and 3.53) and 4.26 (4.33). Other builds of the same plans kept the
constants in FP32. Strong typing is not concerned.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from heapq import nlargest
from itertools import combinations
from math import inf, isfinite, isnan
from typing import TypeVar

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from halfwise.emulation.budget import Budget, OutOfTime
from halfwise.emulation.ort import Session
from halfwise.emulation.rounding import fp32_nodes
from halfwise.emulation.typed import ROUNDINGS, emulate_tf32
from halfwise.errors import CaseError, RunFailed
from halfwise.fixing.engines.attempts import Assignment, Candidate, Step, Terms
from halfwise.fixing.planner import Planner
from halfwise.fixing.trial import Trials
from halfwise.formats import FP16, Format
from halfwise.graph.model import Network, constant_array, is_standard, node_name
from halfwise.graph.roles import Role
from halfwise.graph.weights import LowWeights
from halfwise.interruption import interruption, offered
from halfwise.metrics import Computed, Excess, totals
from halfwise.records import Band, BuildOutcome, NodeName, PrecisionProof, TensorName
from halfwise.tensorrt.constrain import alike

WORST = 8
"""Samples with the largest errors, on which sums are also tried in the low format."""
_OWN_WEIGHTS = ("BatchNormalization", "Conv", "ConvTranspose", "InstanceNormalization")
"""Operators whose layers hold their weights, and store them in their own type."""
LOSSY = ("constant-range", "constant-subnormal")
"""Guards of constants for which storing them in FP16 is more than one rounding."""


class StoredConstants:
    """Emulates plans of one case whose FP32 nodes read constants in the low format."""

    def __init__(self, planner: Planner) -> None:
        """Find the constants; the emulation is made when a plan needs it."""
        self._planner = planner
        network, found = planner.case.network, planner.evidence.guards
        named = {g.tensor: g.nodes for g in found if g.tensor is not None and g.kind in LOSSY}
        own = {node_name(n) for n in network.nodes() if is_standard(n, *_OWN_WEIGHTS)}
        known = network.graph.initializers
        self._readers = {t: frozenset(nodes) - own for t, nodes in named.items() if t in known}

    def concern(self, fp32: frozenset[NodeName]) -> bool:
        """Return whether some FP32 node reads such a constant.

        False for large networks: all their weights would be held once more.
        """
        if self._planner.weights.large:
            return False
        return any(map(fp32.intersection, self._readers.values()))

    @cached_property
    def trials(self) -> Trials:
        """Trials on the present samples, as `Planner.engine_trials`; low nodes read the same."""
        planner = copy(self._planner)
        network, fmt = planner.case.network, planner.settings.fmt
        planner.case = replace(planner.case, network=_stored(network, self._readers, fmt))
        planner.weights = LowWeights(planner.case.network.model, fmt)
        return planner.engine_trials()


def _stored(network: Network, names: Mapping[TensorName, object], fmt: Format) -> Network:
    model = network.copy()
    for name in names:
        value = model.graph.initializers[name]
        array = as_stored(constant_array(value).astype(np.float32), fmt)
        value.const_value = ir.tensor(array, name=name)
    return replace(network, model=model)


def as_stored(array: NDArray[np.float32], fmt: Format) -> NDArray[np.float32]:
    """Return f32[*shape] as TensorRT 8.6.0 stores it: nothing overflows, nothing becomes zero.

    Infinities and NaN stay.
    """
    least = np.copysign(np.float32(fmt.smallest_subnormal), array)
    lost = (array != 0) & (np.abs(array) < fmt.smallest_subnormal)
    return np.where(lost, least, fmt.saturate(array))


SPREAD = 0.95
"""Share of the largest distance between outputs of two emulations that is added to the largest
error. The only fitted number: the smallest with which 90 % of the recorded engines are inside
(`bench/bands.py`, which also fits it without the model that it scores)."""
EQUAL = 1.002
"""Errors that differ by at most this factor count as equal: sums in FP32 have no fixed order."""


@dataclass(frozen=True)
class Emulated:
    """Errors of one plan in emulations, relative to what a trial may use; inf on overflow.

    Attributes:
        stored: Every value between low nodes is rounded, sums are FP32.
        fused: Values that are fused are not rounded.
        own: The same, with FP32 where the engine with nothing kept has FP32 by itself.
        summed: As `fused`, with sums of products in FP16; None if no kernel sums so.
        constants: As `fused`, with constants of FP32 nodes in FP16 (`StoredConstants`); None if
            they lose nothing so.
        apart: Largest distance between finite outputs of `stored`, `fused` and `summed`, in the
            same measure; 0 with a metric, which has no distance.
    """

    stored: float
    fused: float
    own: float
    summed: float | None = None
    apart: float = 0.0
    constants: float | None = None

    def band(self, spread: float = SPREAD) -> Band | None:
        """Return the expected errors; None if none are expected: then FP32 decides."""
        ways = (self.stored, self.fused, self.summed, self.constants)
        found = [error for error in ways if error is not None]
        finite = [error for error in found if isfinite(error)]
        most = EQUAL * (max(finite) + spread * self.apart) if isfinite(self.fused) else inf
        if not most:
            return None
        least = min(self.own / EQUAL, most)
        return Band(least=least, most=most, may_overflow=len(finite) < len(found))


class Bands:
    """Emulates plans of one case on its present samples.

    Errors on all samples that the run computes anyway come from its trials; the rest uses the
    plan's worst samples.
    """

    def __init__(self, planner: Planner, fused: Trials, *, weak: bool = True) -> None:
        """Take the trials with fusion, and make the others that are needed.

        `weak` says whether nodes are constrained, not typed: then their constants may be low.
        """
        self._planner, self._fused = planner, fused
        headroom = bool(planner.evidence.limits)
        self._stored = planner.engine_trials("none") if headroom else planner.trials
        self._totals = totals(fused.references)
        self._summed: Trials | None = None
        self._constants = StoredConstants(planner) if weak else None
        self._known: dict[tuple[Assignment, Assignment], Emulated] = {}
        settings = planner.settings
        if settings.fmt is FP16 and settings.accumulate == "fp32" and planner.case.metric is None:
            with suppress(CaseError):  # opsets without this emulation
                self._summed = planner.engine_trials(accumulate="products")

    def emulated(self, keep: Assignment, own: Assignment) -> Emulated:
        """Return the emulated errors of a plan.

        Args:
            keep: Its compute nodes in FP32.
            own: FP32 nodes of the engine with nothing kept; empty if unknown.
        """
        if (keep, own) not in self._known:
            found = self._emulate(keep, own)
            if self._constants is not None and self._constants.concern(keep):
                found = replace(found, constants=self._constants.trials.excess(keep))
            self._known[keep, own] = found
        return self._known[keep, own]

    def tf32(self) -> Band | None:
        """Return the error that TF32 in all products explains; None with a metric, or no products.

        Kernels round to nearest or toward zero, and the builder chooses which products stay in
        FP32: so the lower bound is 0.
        """
        planner, trials, ways = self._planner, self._planner.trials, list[list[Computed]]()
        if planner.case.metric is not None:
            return None
        for rounding in ROUNDINGS:
            model = emulate_tf32(planner.case.network, rounding=rounding)
            session = Session(model, runtime=planner.settings.runtime)
            try:
                ways.append([session.run(sample) for sample in trials.samples])
            except RunFailed:
                return None
        worst = max(map(trials.excess_of, ways))
        most = EQUAL * (worst + SPREAD * self._apart(ways))
        return Band(least=0.0, most=most) if worst else None

    def _emulate(self, keep: Assignment, own: Assignment) -> Emulated:
        trials, results = self._fused, self._fused.results(keep)
        stored, fused = self._stored.excess(keep), trials.excess(keep, results)
        better = trials.excess(keep | own)
        if self._planner.case.metric is not None:
            return Emulated(stored, fused, better)
        pairs = enumerate(zip(trials.references, results, strict=True))
        errors = {i: self._error([reference], [result]) for i, (reference, result) in pairs}
        worst, summed = nlargest(WORST, errors, key=lambda i: errors[i]), None
        ways = [self._stored.results(keep, worst), [results[i] for i in worst]]
        if self._summed is not None:
            ways.append(self._summed.results(keep, worst))
            references = [trials.references[i] for i in worst]
            before, after = (self._error(references, way) for way in ways[1:])
            comparable = before and isfinite(before) and isfinite(fused)
            summed = fused * after / before if comparable else after
        return Emulated(stored, fused, better, summed, self._apart(ways))

    def _apart(self, ways: Sequence[Sequence[Computed]]) -> float:
        """Return the largest finite distance between outputs of the same samples, else 0."""
        found = (self._error(*pair) for pair in combinations(ways, 2))
        return max((error for error in found if isfinite(error)), default=0.0)

    def _error(self, expected: Sequence[Computed], found: Sequence[Computed]) -> float:
        """Return the error of outputs by the criterion, relative to what a trial may use."""
        trials, excess = self._fused, Excess(self._fused.criterion, self._totals)
        for one, other in zip(expected, found, strict=True):
            if isinstance(one, RunFailed):
                return inf
            excess.update(one, other)
        return inf if isnan(excess.value) else excess.value / trials.factor


WORK = 300.0
"""Total work for predictions, in inferences over the data: a fifth of the search's.
Beyond it nothing is predicted."""
SECONDS = 300.0
"""Total time, whatever work is left: as long as a few builds."""
BRIEFLY = 5.0
"""Seconds after Ctrl-C: the user is waiting for the last measurements."""

Attempt = Callable[[Assignment, Step, Terms], Candidate]
_Found = TypeVar("_Found")
_Other = TypeVar("_Other")


@dataclass
class Prediction:
    """Predicts the errors of engines.

    Attributes:
        planner: Has the emulation without fusion.
        inspect: Returns what an engine computes in; None if unknown.
        work: Budget for predictions, in inferences over the data.
        seconds: Time for them.
        always_tf32: Whether every build may use TF32.
        weak: Whether typing is weak.
        fp32: Compute nodes that the engine with nothing kept has in FP32 by itself.
    """

    planner: Planner
    inspect: Callable[[BuildOutcome, Planner], PrecisionProof | None]
    work: float = WORK
    seconds: float = SECONDS
    always_tf32: bool = False
    weak: bool = True
    fp32: Assignment = frozenset()
    _fused: Trials | None = None
    _bands: Bands | None = None

    def __post_init__(self) -> None:
        """Start with the full budget."""
        self._budget = self.planner.budget.beside(
            seconds=self.seconds, work=self.work * self.planner.unit
        )

    def learn(self, plain: BuildOutcome) -> None:
        """Read from the engine with nothing kept what it computes in FP32 by itself."""
        proof, roles = self.inspect(plain, self.planner), self.planner.roles
        if proof is None:
            return
        found = fp32_nodes(self.planner.case.network, proof.layers)
        found = frozenset(n for n in found if roles[n].role is Role.COMPUTE)
        self.fp32 = found - frozenset(self.planner.forced.lowered)

    def enough(self, keep: Assignment) -> bool | None:
        """Return whether a plan passes the emulation with fusion; None once the budget is spent."""
        return self._in_time(lambda: self._trials().evaluate(keep | self.fp32).passed, None)

    def band(self, keep: Assignment, *, tf32: bool = False) -> Band | None:
        """Return the error band that low precision explains in the engine of a plan.

        None if it is unknown, and once the budget is spent.

        Args:
            keep: Compute nodes requested in FP32.
            tf32: Whether kept nodes may compute in TF32.
        """
        return self._in_time(lambda: self._band(keep, tf32=tf32), None)

    def banded(self, candidate: Candidate) -> Candidate:
        """Return a candidate with the band of its plan on the present samples."""
        return replace(candidate, band=self._band_of(candidate.keep, candidate.terms))

    def before(self, attempt: Attempt) -> Attempt:
        """Return a function for `attempt` that predicts a plan's band before it is built.

        If samples join meanwhile, the band covers these too, as the error does.
        """

        def attempt_after(keep: Assignment, step: Step, terms: Terms) -> Candidate:
            samples = self.planner.trials.samples
            band = self._band_of(keep, terms)
            found = replace(attempt(keep, step, terms), band=band)
            return found if self.planner.trials.samples is samples else self.banded(found)

        return attempt_after

    def _band_of(self, keep: Assignment, terms: Terms) -> Band | None:
        """Return the band of a plan on its terms; None if kept nodes may still be low.

        Also None for the model without repairs.
        """
        if terms.loose or terms.unrepaired:
            return None
        tf32 = self.always_tf32 or terms.types_of(self.planner, keep).tf32
        return self.band(keep, tf32=tf32)

    def _band(self, keep: Assignment, *, tf32: bool) -> Band | None:
        bands = self._in_bands()
        low = bands.emulated(keep, self.fp32).band()
        more = bands.tf32() if tf32 else None
        if low is None or more is None:
            return low
        return low.model_copy(update={"most": low.most + more.most})

    def tf32(self) -> Band | None:
        """Return the error band that TF32 explains; None as in `band`.

        Also computed, briefly, after Ctrl-C: this engine is then likely to be delivered.
        """
        if not interruption().asked:
            return self._in_time(lambda: self._in_bands().tf32(), None)
        with offered():  # nobody asked for it
            budget = self.planner.budget.beside(seconds=BRIEFLY, work=inf)
            return self._in_time(lambda: self._in_bands().tf32(), None, budget)

    def beyond(self, keep: Assignment) -> bool:
        """Return whether both put a plan beyond the limit by more than chance explains.

        False once the budget is spent.
        """
        found = self._in_time(lambda: [t.evaluate(kept) for t, kept in self._both(keep)], ())
        # A failed trial gives a lower bound: it ends at the first failing sample.
        if not found or any(outcome.passed for outcome in found):
            return False
        far = all(not alike(outcome.excess, 1.0) for outcome in found)
        return far or not alike(max(self.error(keep), 1.0), 1.0)

    def refuted(self, keep: Assignment, measured: float) -> bool:
        """Return whether an engine beats both predictions by more than chance explains."""
        error = self.error(keep)
        return measured < error and not alike(measured, error)

    def error(self, keep: Assignment) -> float:
        """Return the smaller predicted error, on all samples; 0 once the budget is spent."""
        return self._in_time(
            lambda: min(trials.excess(kept) for trials, kept in self._both(keep)), 0.0
        )

    def excess(self, keep: Assignment) -> float:
        """Return the error predicted by the emulation with fusion, on all samples."""
        return self._trials().excess(keep | self.fp32)

    def _both(self, keep: Assignment) -> Iterator[tuple[Trials, Assignment]]:
        yield self._trials(), keep | self.fp32
        yield self.planner.trials, keep

    def _in_time(
        self, work: Callable[[], _Found], otherwise: _Other, budget: Budget | None = None
    ) -> _Found | _Other:
        try:
            with (budget or self._budget).bounding():
                return work()
        except OutOfTime:
            return otherwise

    def _trials(self) -> Trials:
        """Return trials on the present samples."""
        if self._fused is None or self._fused.samples is not self.planner.trials.samples:
            self._fused, self._bands = self.planner.engine_trials(), None
        return self._fused

    def _in_bands(self) -> Bands:
        fused = self._trials()
        if self._bands is None:
            self._bands = Bands(self.planner, fused, weak=self.weak)
        return self._bands
