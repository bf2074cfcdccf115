"""Which of the kept nodes BF16 is enough for: it has the range of FP32, and 8 bits.

The search weighs both. What a plan that is not tried yet may cost is told with BF16 wherever nodes
may have it; a plan that passes with FP32 is then tried with it, and costs what that shows.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from halfwise.emulation.ort import Session
from halfwise.emulation.typed import emulate_typed
from halfwise.errors import CaseError
from halfwise.fixing.plan.halving import lowered
from halfwise.graph.model import node_name
from halfwise.graph.movement import may_have_bf16
from halfwise.records import NodeName

if TYPE_CHECKING:
    from halfwise.case import Sample
    from halfwise.emulation.runner import Switching
    from halfwise.fixing.planner import Planner
    from halfwise.metrics import Outputs

MOST = 24
"""Models that are tried where not all nodes of a plan can have BF16; each is written and run on all
samples of the calibration."""

Assignment = frozenset[NodeName]
NONE: Assignment = frozenset()


class Narrowing:
    """Knows the plans of one planner that have BF16.

    Attributes:
        known: Of plans that passed, given by their kept nodes, those that have BF16; for plans that
            were tried, or would not be the cheapest with it.
    """

    def __init__(self, planner: Planner) -> None:
        """Take what has plans written and tried.

        Raises:
            CaseError: BF16 is allowed, and the opset has none.
        """
        self._planner = planner
        self.known: dict[Assignment, Assignment] = {}
        self._may, self._needy, self._least = NONE, NONE, inf
        if "bf16" in planner.settings.allow:
            may = may_have_bf16(planner.case.network, planner.roles)
            self._may = may - frozenset(planner.forced.kept) - planner.islands

    def clear(self) -> None:
        """Forget all: there are other samples, or ranges."""
        self.known.clear()
        self._needy, self._least = NONE, inf

    def foreseen(self, kept: Assignment) -> Assignment:
        """Return the nodes of a plan that have BF16, or may have where it was not tried.

        Everything in FP32 is that, and no plan.
        """
        if (known := self.known.get(kept)) is not None or not self._may:
            return known or NONE
        whole = kept >= self._planner.choices - frozenset(self._planner.forced.lowered)
        return NONE if whole else self._free(kept)

    def look(self, kept: Assignment, error: float) -> float:
        """Try BF16 for a plan that passes, where that may make it the cheapest one so far.

        What of the first plan that fails needs its bits stays FP32 in those that come.

        Args:
            kept: Its kept nodes.
            error: With FP32, over what a trial may use.

        Returns:
            The error with what it has from then on.

        Raises:
            OutOfTime: within a block whose budget is spent.
        """
        planner, price = self._planner, self._price
        if kept in self.known or not self._may:
            return error
        free = self.foreseen(kept)
        self.known[kept] = NONE
        if not free or planner.budget.is_spent:
            return error
        better = price(kept, free) < min(self._least, price(kept, NONE))
        if better and not self._passes(kept, free) and not self._needy:
            self._needy = free - self._halved(kept, failed=free)
        self._least = min(self._least, price(kept, self.known[kept]))
        exact = planner.trials.exact(kept) if self.known[kept] else None
        return error if exact is None else exact

    def settle(self, kept: Assignment) -> None:
        """Give BF16 to those nodes of a passing plan with which it still passes and costs less.

        All of them are tried, then halves, in graph order: `MOST` trials at most, and what the
        budget leaves. Casts count as cost, so BF16 for one node alone is seldom worth it.
        """
        if self._may & kept and not self.known.get(kept):
            self._planner.budget.within("search", lambda: self._halved(kept), NONE)

    def over(self, switched: Switching) -> Switching:
        """Return what runs plans that have BF16 as they are written, and others as `switched`."""
        return _Runner(self._planner, switched) if self._may else switched

    def _free(self, kept: Assignment) -> Assignment:
        return kept & self._may - self._needy

    def _price(self, kept: Assignment, bf16: Assignment) -> float:
        prices = self._planner.prices
        return -float(len(bf16)) if prices is None else prices.of(kept, bf16)

    def _halved(self, kept: Assignment, failed: Assignment = NONE) -> Assignment:
        """Return the nodes of a plan that have BF16 now; `failed` is not tried again."""
        tried, best = {kept - failed}, NONE

        def passes(fp32: Assignment) -> bool:
            nonlocal best
            bf16 = kept - fp32
            dearer = self._price(kept, bf16) >= self._price(kept, best)
            if len(tried) == MOST or fp32 in tried or dearer:
                return False
            self._planner.budget.check()
            tried.add(fp32)
            passed = self._passes(kept, bf16)
            best = bf16 if passed else best
            return passed

        free = self._may & kept
        order = [n for n in map(node_name, self._planner.case.network.nodes()) if n in free]
        try:
            lowered(kept, [free] if free else [], passes, split=order)
        finally:
            self.known[kept] = best
        return best

    def _passes(self, kept: Assignment, bf16: Assignment) -> bool:
        """Return whether a plan passes with BF16, and has it from then on; else FP32 alone."""
        trials, passed = self._planner.trials, False
        self.known[kept] = bf16
        try:
            excess = trials.excess_of(trials.results(kept))
            if passed := excess <= 1:
                trials.learn(kept, excess)
        except CaseError:  # its opset or a custom operator has none
            return False
        finally:
            if not passed:
                self.known[kept] = NONE
        return passed


class _Runner:
    """Runs what has BF16 in typed emulation of the written model, which is made for each plan."""

    def __init__(self, planner: Planner, switched: Switching) -> None:
        self._planner, self._switched = planner, switched
        self._loaded: tuple[Assignment, Assignment, Session] | None = None

    def prepare(self, changed: Assignment, /) -> None:
        """Load what runs an assignment."""
        if self._bf16(changed):
            self._session(changed)
        else:
            self._loaded = None
            self._switched.prepare(changed)

    def release(self) -> None:
        """Let go of it, and its memory."""
        self._loaded = None
        self._switched.release()

    def run(self, sample: Sample, changed: Assignment, /) -> Outputs:
        """Return the outputs of an assignment."""
        if self._bf16(changed):
            return self._session(changed).run(sample)
        return self._switched.run(sample, changed)

    def _kept(self, changed: Assignment) -> Assignment:
        return changed & self._planner.roles.computing

    def _bf16(self, changed: Assignment) -> Assignment:
        return self._planner.narrowing.known.get(self._kept(changed), NONE)

    def _session(self, changed: Assignment) -> Session:
        kept, bf16 = self._kept(changed), self._bf16(changed)
        if self._loaded is None or self._loaded[:2] != (kept, bf16):
            self._loaded = None
            settings, model = self._planner.settings, self._planner.rewrite(kept)[0].model
            typed = emulate_typed(model, accumulate=settings.accumulate)
            self._loaded = kept, bf16, Session(typed, runtime=settings.runtime)
        return self._loaded[2]
