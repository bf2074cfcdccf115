"""A search that may evaluate few plans: for many nodes that all add to the error, without guards.

A ranking of nodes one by one takes as many evaluations as there are nodes. Here most come from the
predicted cost, which is free: plans of least cost for their predicted error, from a minimum cut,
are tried where the expected saving is largest: the probability that a plan passes, times what it
saves. Then nodes are lowered in order of error per cost saved, several at once: twice as many after
a plan that passes, half after one that fails, of which the node that fails is looked for by
halving (Hwang, "A method for detecting all defective members in a population by group testing",
JASA 1972). A plan is 1-minimal if the evaluations suffice to see each single node fail.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from math import inf, isfinite, log

import numpy as np

from halfwise.fixing.plan.guide import COARSE, Guide
from halfwise.fixing.plan.search import Search
from halfwise.records import NodeName

SPREAD = 0.17
"""Scale of a logistic distribution: how far, in logarithms, measured errors are from predicted
ones. A standard deviation of 0.3, as on the digits transformer and PP-OCRv3 in INT8."""
SURE = 1.0
"""Standard deviation, in logarithms, of the limit around where it is expected before any trial."""
WIDTH = 5.0
"""Logarithm of the largest over the smallest predicted error at which the limit may be."""
_PLACES = 200


class Odds:
    """Belief about the predicted error up to which plans pass: a distribution, learnt by trial."""

    def __init__(self, largest: float, expected: float | None) -> None:
        """Take the largest predicted error, > 0, and the limit's expected place, if there is one.

        Without one, the limit is equally likely anywhere below the largest, on a logarithmic scale.
        """
        top = log(largest)
        self._logs = np.linspace(top - WIDTH, top + 1.0, _PLACES)
        if expected is None:
            self._weights = (self._logs <= top).astype(float)
        else:
            self._weights = np.exp(-0.5 * ((self._logs - log(expected)) / SURE) ** 2)
        self._weights /= self._weights.sum()

    def chance(self, predicted: float) -> float:
        """Return the probability that a plan with this predicted error passes, in [0, 1]."""
        return float(self._weights @ self._passing(predicted))

    def learn(self, predicted: float, *, passed: bool) -> None:
        """Take the result of a trial."""
        passing = self._passing(predicted)
        weights = self._weights * (passing if passed else 1 - passing)
        # A result that nothing explains leaves the belief as it was.
        if (whole := weights.sum()) > 0:
            self._weights = weights / whole

    def _passing(self, predicted: float) -> np.ndarray:
        beyond = (self._logs - log(max(predicted, 1e-9))) / SPREAD
        return 1 / (1 + np.exp(-np.clip(beyond, -50, 50)))


Nodes = frozenset[NodeName]

RESERVED = 0.4
"""Share that is left for the time after held-out samples joined, if any can. Each time, mending may
use half of what is left, as others may join later."""
MENDING = 3
"""Evaluations that are allowed in any case to mend a plan that fails on samples that joined."""
WORTH = 0.03
"""Expected saving, relative to that of everything low, below which guessing ends: lowering a few
nodes of the best plan then gains more for each evaluation."""


@dataclass
class Rationed(Search):
    """See above. Whoever needs no certainty calls `run` with `certify=False`.

    Attributes:
        ration: How many evaluations all calls may use; `inf` for no limit.
        used: How many were used so far, by others too.
        reserved: The share that is left for the time after samples joined.
    """

    ration: float = inf
    used: Callable[[], int] = lambda: 0
    reserved: float = RESERVED

    @classmethod
    def of(
        cls, search: Search, ration: float, used: Callable[[], int], reserved: float = RESERVED
    ) -> "Rationed":
        """Return a search like another one, with a ration."""
        given = {field.name: getattr(search, field.name) for field in fields(Search)}
        return cls(**given, ration=ration, used=used, reserved=reserved)

    def _left(self, reserved: float) -> float:
        return self.ration * (1 - reserved) - self.used()

    def _cost(self, kept: Nodes) -> float:
        price = self.price(kept | self.forced)
        return float(len(kept)) if price is None else price

    def _lowered_by_contribution(self, nodes: Sequence[NodeName]) -> Nodes:
        """Lower as many of `nodes` as passes: the cheapest of a few plans, where one is likely.

        No contribution is measured: nodes share the error of everything low.
        """
        assert self.guide is not None
        excess = self._tried.get(frozenset(), inf)
        known = excess if self.harmless is not None and isfinite(excess) else 1.0
        self.guide.fit({self._everything: known})
        return self._guessed(self.guide, self._everything - frozenset(nodes))

    def _guessed(self, guide: Guide, always: Nodes) -> Nodes:
        """Return the cheapest passing one of the plans tried, else everything."""
        everything = kept = self._everything
        plans = self._plans(guide, always)
        errors = {plan: guide.predicted(everything - plan) for plan in (*plans, everything)}
        largest = guide.predicted(everything - always)
        odds = Odds(largest, None if self.harmless is None else 1.0)
        odds.learn(largest, passed=False)
        enough = max(0.0, WORTH * (self._cost(everything) - self._cost(always)))

        def saving(plan: Nodes) -> float:
            return odds.chance(errors[plan]) * (self._cost(kept) - self._cost(plan))

        while self._left(self.reserved) >= 1:
            untried = [plan for plan in plans if plan not in self._tried]
            plan = max(untried, key=saving, default=kept)
            if saving(plan) <= enough:
                break
            passed = self._passes(plan, confirm=True)
            odds.learn(errors[plan], passed=passed)
            kept = plan if passed else kept
        return kept

    def _plans(self, guide: Guide, always: Nodes) -> list[Nodes]:
        """Return plans of least cost for their error, and those between, node by node."""
        plans = [always, *guide.plans(self._everything, always), self._everything]
        found = dict.fromkeys(plans)
        for smaller, larger in pairwise(plans):
            plan = larger
            for node in self._ordered(larger, larger - smaller):
                plan -= {node}
                found[plan] = None
        return [plan for plan in found if plan != self._everything]

    def _ordered(self, kept: Nodes, nodes: Nodes) -> list[NodeName]:
        """Return nodes of a plan in the order of lowering."""
        return sorted(nodes, key=lambda node: (*self._merit(kept, node), node))

    def _start(self, previous: Nodes) -> Nodes:
        """Return a passing set; everything if a plan fails on samples that joined."""
        return self._everything if previous else super()._start(previous)

    def _shrunk(self, kept: Nodes, previous: Nodes) -> Nodes:
        """Lower nodes while evaluations are left that are not reserved."""
        if not previous:
            return self._galloped(kept, self._first(kept), self.reserved)[0]
        return self._mended(kept, self._ordered(kept, kept - previous - self.forced))

    def _mended(self, kept: Nodes, lowered: Sequence[NodeName]) -> Nodes:
        """Lower again what a plan lowered that fails on samples that joined, except what fails.

        It passed on other samples, so few nodes fail. Nodes are halved until one is left; then all
        others are tried at once.
        """
        self.ration = max(self.ration, self.used() + MENDING)
        last = self.used() + max(MENDING, self._left(0.0) / 2)
        pending, failing = list(lowered), len(lowered)  # how many of the first fail together
        while self.used() + 1 <= last:
            if failing == 1:
                pending, failing = pending[1:], 0
            if not pending:
                break
            size = failing // 2 or len(pending)
            plan = kept - frozenset(pending[:size])
            if self._passes(plan, confirm=True):
                kept, pending, failing = plan, pending[size:], failing - size
            else:
                failing = size
        return min(self._best, kept, key=self.rank)  # lowering more may cost more

    def _certified(self, kept: Nodes) -> Nodes:
        """Lower single nodes until none can be, or no evaluation is left."""
        kept, self._minimal = self._galloped(kept, 1, 0.0)
        if not self._minimal:
            tried = sum(1 for node in self._excess_without if node in kept)
            self._note("rationed", kept=len(kept), tried=tried, most=int(self.ration))
            self.passing = []  # those from before samples joined would have to be tried again
        return kept

    def _first(self, kept: Nodes) -> int:
        """Return how many nodes to lower at first: one more than may pass by prediction.

        Near the limit errors also cancel, and a trial that fails halves the number.
        """
        open_nodes = self._ordered(kept, kept - self.forced)
        excess = self._tried.get(kept, inf)
        if self.guide is None or self.harmless is None or not 0 < excess <= 1:
            return max(1, len(open_nodes) // COARSE)
        limit = self.guide.predicted(self._everything - kept) / excess
        count, low = 1, self._everything - kept
        while count < len(open_nodes):
            low |= {open_nodes[count]}
            if self.guide.predicted(low) > limit:
                break
            count += 1
        return count

    def _galloped(self, kept: Nodes, size: int, reserved: float) -> tuple[Nodes, bool]:
        """Return what remains of a plan, and whether each single node was seen to be needed.

        A node is also needed if lowering it alone costs no less.
        """
        needed: dict[NodeName, Nodes] = {}
        order, failing = self._ordered(kept, kept - self.forced), list[NodeName]()
        while pending := [n for n in order if needed.get(n) != kept]:
            if self._left(reserved) < 1:
                return kept, False
            fresh = [n for n in pending if n not in needed]
            # Nodes that failed together are halved until one is left: that trial was made before.
            some = failing[: (len(failing) + 1) // 2] or fresh[:size] or pending[:1]
            group = frozenset(some)
            plan = kept - group
            self.watcher.step(len(order) - len(pending), len(order), "nodes")
            trial = self._try(plan, confirm=True) if self.rank(plan) < self.rank(kept) else None
            if trial is not None and trial.passed:
                size = size if failing else 2 * len(group)
                kept, failing = plan, [n for n in failing if n not in group]
                order = self._ordered(kept, kept - self.forced)
            elif len(group) > 1:
                size, failing = len(group) // 2, some
            else:
                (node,), failing = group, []
                needed[node] = kept
                if trial is not None:
                    self._excess_without[node] = trial.excess
                    self._nonfinite_without |= {node} if trial.nonfinite else set()
        return kept, True
