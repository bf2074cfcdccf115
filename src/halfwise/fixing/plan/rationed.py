"""A search that may evaluate few plans: for many nodes that all add to the error, without guards.

A ranking of nodes one by one takes as many evaluations as there are nodes. Here most come from the
predicted cost, which is free: plans of least cost for their predicted error, from a minimum cut,
are tried where the expected saving is largest: the probability that a plan passes, times what it
saves. Contributions are measured for groups only. Then nodes are lowered in order of error per cost
saved, several at once: twice as many after a plan that passes, half after one that fails. A plan is
1-minimal if the evaluations suffice to see each single node fail.
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from math import inf, isfinite

from halfwise.fixing.plan.groups import COARSE, stretches
from halfwise.fixing.plan.guide import Guide
from halfwise.fixing.plan.odds import Odds
from halfwise.fixing.plan.search import Search
from halfwise.records import NodeName

Nodes = frozenset[NodeName]

MEASURED = 0.25
"""Share of the evaluations that measures groups; none do if it is too few for all of them. On
the digits transformer, PP-OCRv3 and YOLOX nano more of them left fewer for plans, which cost more.
"""
RESERVED = 0.2
"""Share that is left for the time after held-out samples joined, or else for the certificate."""
MENDING = 6
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
    """

    ration: float = inf
    used: Callable[[], int] = lambda: 0

    @classmethod
    def of(cls, search: Search, ration: float, used: Callable[[], int]) -> "Rationed":
        """Return a search like another one, with a ration."""
        given = {field.name: getattr(search, field.name) for field in fields(Search)}
        return cls(**given, ration=ration, used=used)

    def _left(self, reserved: float = RESERVED) -> float:
        return self.ration * (1 - reserved) - self.used()

    def _cost(self, kept: Nodes) -> float:
        price = self.price(kept | self.forced)
        return float(len(kept)) if price is None else price

    def _lowered_by_contribution(self, nodes: Sequence[NodeName]) -> Nodes:
        """Lower as many of `nodes` as passes: the cheapest of a few plans, where one is likely."""
        assert self.guide is not None
        always = self._everything - frozenset(nodes)
        self.guide.fit(self._measured(nodes))
        kept = self._guessed(self.guide, always)
        self._note("ranked", groups=len(self._contributions), kept=len(kept))
        return kept

    def _measured(self, nodes: Sequence[NodeName]) -> dict[Nodes, float]:
        """Return errors by what is low: of everything, and of groups if there are enough trials."""
        excess = self._tried.get(frozenset(), inf)
        known = excess if self.harmless is not None and isfinite(excess) else 1.0
        last = self.used() + int(MEASURED * self._left())
        groups: Sequence[Sequence[NodeName]] = stretches(nodes, self.classes())
        if last - self.used() < COARSE or len(groups) < COARSE:
            return {self._everything: known}
        found = dict[Nodes, float]()
        whole: list[tuple[float, int, Sequence[NodeName]]] = []

        def measure(group: Sequence[NodeName]) -> None:
            self.budget.check()
            self.watcher.step(len(found), 2 * len(groups), "ranking", most=True)
            low = frozenset(group)
            found[low] = self.contribution(self._everything - low | self.forced)
            self._contributions |= dict.fromkeys(group, found[low])
            if len(group) > 1:
                heapq.heappush(whole, (-found[low], len(found), group))

        for group in groups:
            measure(group)
        while whole and self.used() + 2 <= last:
            _, _, group = heapq.heappop(whole)
            half = len(group) // 2
            measure(group[:half])
            measure(group[half:])
        return found

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

        while self._left() >= 1:
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
        """Lower nodes while evaluations are left that are not reserved.

        Of what a failing plan lowered, three quarters are tried first: it passed on other samples.
        """
        if not previous:
            return self._galloped(kept, self._first(kept), RESERVED)[0]
        self.ration = max(self.ration, self.used() + MENDING)
        lowered = kept - previous
        return self._galloped(kept, max(1, len(lowered) * 3 // 4), 0.0, lowered)[0]

    def _certified(self, kept: Nodes) -> Nodes:
        """Lower single nodes until none can be, or no evaluation is left."""
        kept, self._minimal = self._galloped(kept, 1, 0.0)
        if not self._minimal:
            tried = sum(1 for node in self._excess_without if node in kept)
            self._note("rationed", kept=len(kept), tried=tried, most=int(self.ration))
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

    def _galloped(
        self, kept: Nodes, size: int, reserved: float, among: Nodes | None = None
    ) -> tuple[Nodes, bool]:
        """Return what remains of a plan, and whether each single node was seen to be needed.

        A node is also needed if lowering it alone costs no less. Only nodes `among` these are
        lowered, if given.
        """
        needed: dict[NodeName, Nodes] = {}
        open_nodes = (kept if among is None else among) - self.forced
        order = self._ordered(kept, open_nodes)
        while pending := [n for n in order if needed.get(n) != kept]:
            if self._left(reserved) < 1:
                return kept, False
            fresh = [n for n in pending if n not in needed]
            group = frozenset(fresh[:size] or pending[:1])
            plan = kept - group
            self.watcher.step(len(order) - len(pending), len(order), "nodes")
            trial = self._try(plan, confirm=True) if self.rank(plan) < self.rank(kept) else None
            if trial is not None and trial.passed:
                kept, size = plan, 2 * len(group)
                order = self._ordered(kept, kept & open_nodes)
            elif len(group) > 1:
                size = len(group) // 2
            else:
                (node,) = group
                needed[node] = kept
                if trial is not None:
                    self._excess_without[node] = trial.excess
                    self._nonfinite_without |= {node} if trial.nonfinite else set()
        return kept, True
