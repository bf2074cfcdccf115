"""The error that low precision explains in an engine, predicted before it is built.

Engines of one plan differ in what they fuse, in the type of their sums and of constants that FP32
nodes read, and in what they leave in FP32, and no rule predicts this. A few such variants are
emulated, and an engine is expected among them: at best like the variant with fusion, FP32 sums, and
the FP32 blocks of the engine with nothing kept; at worst like the worst variant without such
blocks, plus a share of the distance between their outputs. That distance consists of rounding only:
if an error is one of range, and the same in all variants, the band is narrow.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from heapq import nlargest
from itertools import combinations
from math import inf, isfinite, isnan

from halfwise.emulation.ort import Session
from halfwise.emulation.typed import ROUNDINGS, emulate_tf32
from halfwise.errors import CaseError, RunFailed
from halfwise.fixing.engines.attempts import Assignment
from halfwise.fixing.engines.constants import StoredConstants
from halfwise.fixing.planner import Planner
from halfwise.fixing.trial import WORST, Trials
from halfwise.formats import FP16
from halfwise.metrics import Computed, Excess, totals
from halfwise.records import Band

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
