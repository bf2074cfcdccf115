"""Find a smallest set of FP32 nodes by trials over arbitrary subsets.

The search starts with everything in FP32 and lowers nodes: first all that no guard names, at once;
then groups of nodes at the same place of repeated blocks; then single nodes. A group that cannot be
lowered is halved (O(k log n) trials for k needed nodes among n, as in delta debugging: Zeller &
Hildebrandt, "Simplifying and isolating failure-inducing input", IEEE TSE 2002). The result is
1-minimal once no single node can be lowered.
"""

import heapq
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
from math import inf, isfinite, isnan, sqrt

from halfwise.emulation.budget import Budget, OutOfTime
from halfwise.fixing.plan.found import Evaluate, Found, Hopeless, Trial, clearly_cheaper, confirmed
from halfwise.fixing.plan.guide import (
    TRUSTED,
    Guide,
    aims,
    lowered,
    nearest,
    neighbourhoods,
    places,
    stretches,
    suspicions,
    union,
)
from halfwise.progress import Silent, Watcher
from halfwise.records import LEAST_SAVED, NodeName, Remark, RemarkKind
from halfwise.reporting.remarks import remark

Nodes = frozenset[NodeName]


@dataclass
class Search:
    """A search over the compute nodes of a network; call `run`, and again after samples joined.

    Attributes:
        nodes: The nodes that may be kept, in graph order.
        forced: Nodes that user rules keep; part of every assignment.
        suspects: Groups of nodes that guards name, most severe first.
        certain: How many of the leading groups are certain losses.
        classes: Returns the class of each node, equal for the same place in repeated blocks.
        evaluate: Evaluates an assignment.
        contribution: Output error of an assignment relative to what is allowed, on one sample.
        harmless: Contribution that needs no examination; None if only a metric decides.
        budget: Ends the search; choosing the result and checking FP32 are exempt.
        start: A plan to start from, passing or not.
        safe: Whether everything in FP32 is the original, and so certain to pass.
        watcher: Receives progress.
        price: Predicted cost of an assignment relative to all low; None if unknown.
        form: What a kept node is called in steps; "" for FP32.
        guide: Proposes plans if nothing stands out; without it, contributions alone order nodes.
        serving: Cost of a plan that serves the task, which may spare the certificate: see `gains`.
        passing: Sets that passed, at least on the worst samples, or that deserve a trial anyway; of
            them an early end takes the cheapest that passes on all. Shared when samples joined.
    """

    nodes: Sequence[NodeName]
    forced: Nodes
    suspects: Sequence[Nodes]
    certain: int
    classes: Callable[[], Mapping[NodeName, int]]
    evaluate: Evaluate
    contribution: Callable[[Nodes], float]
    harmless: float | None
    budget: Budget
    start: Nodes = frozenset()
    safe: bool = False
    watcher: Watcher = field(default_factory=Silent)
    price: Callable[[Nodes], float | None] = lambda _: None
    form: str = ""
    guide: Guide | None = None
    serving: float | None = None
    steps: list[Remark] = field(default_factory=list)
    passing: list[Nodes] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Restrict guards to the nodes that the search may keep."""
        self._everything, self._minimal = frozenset(self.nodes), False
        self.start &= self._everything
        self.suspects = [group & self._everything for group in self.suspects]
        self._excess_without, self._contributions = dict[NodeName, float](), dict[NodeName, float]()
        self._nonfinite_without, self._tried = set[NodeName](), dict[Nodes, float]()

    def rank(self, kept: Nodes) -> tuple[float, ...]:
        """Return a plan's cost and size; lower is better. Everything kept, no plan, is last."""
        price = inf if len(kept) == len(self._everything) else self.price(kept)
        return (inf if price is None else price, len(kept))

    def run(self, previous: Nodes = frozenset(), *, certify: bool = True) -> Found:
        """Return the smallest set found, starting from `previous` if that still helps.

        Args:
            previous: Result of an earlier call; if it passes, only the certificate is new.
            certify: Lower single nodes until none can be; if false, only groups are lowered.
        """
        self._best, is_last = self._everything, certify
        if not self.safe and not self.evaluate(self._everything, confirm=True).passed:
            return self._hopeless()
        if self.start and self.evaluate(self.start | self.forced, confirm=True).passed:
            self._best = self.start | self.forced
        try:
            with self.budget.bounding():
                kept = self._reduced(previous)
                if certify := certify and not self._is_outdone(kept):
                    kept = self._certified(kept)
        except Hopeless:
            return self._hopeless()
        except Futile:
            self._note("futile")
            return self._ended(exhausted=False)
        except OutOfTime:
            if not {"certify", "search"}.intersection(self.budget.cut):
                self._note("spent")
            self.budget.leave_out("certify" if certify else "search")
            return self._ended(exhausted=True)
        self._best = found = kept = kept | self.forced
        known = [plan | self.forced for plan in self.passing] if is_last else []
        for plans in cheaper_plans(kept, known, self.guide, self.price, self._everything):
            found = confirmed(plans, self.rank, found, self.evaluate, self._everything)
        if is_dearer := found != kept:
            self._best, self._excess_without, self._nonfinite_without = found, {}, set()
            self._note("dearer", kept=len(kept))
        made = self._found(minimal=self._minimal and not is_dearer)
        return replace(made, spare=found - kept) if kept <= found else made

    def _hopeless(self) -> Found:
        self._note("hopeless")
        return self._found(passed=self._best != self._everything)

    def _reduced(self, previous: Nodes) -> Nodes:
        """Return a passing set from which no group of nodes can be removed."""
        if previous and self.evaluate(previous | self.forced, confirm=True).passed:
            self._best = previous | self.forced
            return previous
        kept = self._shrunk(self._start(previous), previous)
        while not self._passes(kept, confirm=True):
            if kept | self.forced == self._everything:
                raise Hopeless
            self._note("another-sample", kept=len(kept))
            kept = self._shrunk(self._start(kept), kept)
        return kept

    def _ended(self, *, exhausted: bool) -> Found:
        """Return the smallest set so far that passes on all samples."""
        self._best = self._best_so_far()
        return self._found(exhausted=exhausted)

    def _best_so_far(self) -> Nodes:
        """Return a small set that passed and does so on all samples, else the best known one."""
        plans = [kept | self.forced for kept in self.passing]  # none has nodes held since
        return confirmed(plans, self.rank, self._best, self.evaluate, self._everything)

    def _found(
        self, *, passed: bool = True, minimal: bool = False, exhausted: bool = False
    ) -> Found:
        without = {n: e for n, e in self._excess_without.items() if n in self._best}
        nonfinite = frozenset(self._nonfinite_without & self._best)
        more = exhausted, tuple(self.steps), self.guide.explained if self.guide else None
        return Found(self._best, passed, minimal, without, nonfinite, self._contributions, *more)

    def _start(self, previous: Nodes) -> Nodes:
        """Return a passing set: the cheapest guess that works, or one found by halving."""
        known = "the previous plan" if previous else "the starting plan"
        previous, suspected = previous or self.start, union(self.suspects)
        guesses = {
            "no node": frozenset[NodeName](),
            known: previous,
            "the nodes certain to lose precision": previous | union(self.suspects[: self.certain]),
            "all suspected nodes": previous | suspected,
        }
        for name, guess in guesses.items():
            if self._passes(guess, confirm=True):
                self._note("passes", guess=name, kept=len(guess | self.forced))
                return guess
        larger = self._best_so_far()
        if (kept := self._repaired(previous, larger)) != self._everything:
            self._note("larger" if kept == larger else "extended", kept=len(kept))
            self._best = min(self._best, kept, key=self.rank)
            return kept
        self._note("measuring", kept=len(suspected))
        outside = [n for n in self.nodes if n not in suspected | previous]
        return self._lowered_by_contribution(outside)

    def _repaired(self, previous: Nodes, larger: Nodes) -> Nodes:
        """Extend `previous` until it passes at a cost below `larger`; else return `larger`.

        It passed on other samples: predictions for its extensions are off by its own factor.
        """
        excess = self._tried.get(previous, inf)
        if not previous or self.guide is None or not self.guide.is_fitted or excess > NEAR:
            return larger
        aim = self.guide.predicted(self._everything - previous) / excess
        return self._guided(self.guide, larger, previous, aim)

    def _lowered_by_contribution(self, nodes: Sequence[NodeName]) -> Nodes:
        """Lower as many of `nodes` as passes, those that contribute least first.

        Each ranking is tried before it is refined, as the budget may end. Once fewer nodes are left
        than groups were measured, lowering each alone takes less than measuring more.
        """
        everything, measured = self._everything, dict[Nodes, float]()

        def contribution(low: Nodes) -> float:
            self.budget.check()
            self.watcher.step(len(measured), 2 * len(nodes), "ranking", most=True)
            measured[low] = self.contribution(everything - low | self.forced)
            return measured[low]

        kept, always = everything, everything - frozenset(nodes)
        fitted = self.guide if self.guide is not None and self.guide.is_fitted else None
        if fitted and (kept := self._guided(fitted, everything, always)) != everything:
            return kept
        for ranking in rankings(stretches(nodes, self.classes()), contribution, self.harmless):
            self._contributions = {n: found for group, found in ranking for n in group}
            if self.guide is not None and self._trusts(self.guide, measured, always):
                kept = self._guided(self.guide, kept, always)
            else:
                low = lowerable(ranking, lambda nodes: self._passes(everything - nodes))
                kept = min(kept, everything - low, key=self.rank)
            kept = self._extended(kept, always, ranking[::-1])
            self._note("ranked", groups=len(ranking), kept=len(kept))
            if len(kept - always) < len(ranking):
                break
            if self.harmless is not None and is_spread(ranking) and not self._gains(kept):
                raise Futile
        self.watcher.step(1, 1)  # how much comes after is unknown
        return kept

    def _is_outdone(self, kept: Nodes) -> bool:
        """Return whether many nodes are kept, and a plan that serves the task gains far more."""
        if self.serving is None or len(kept) < MANY or self._gains(kept, self.serving):
            return False
        self._note("served")
        return True

    def _gains(self, kept: Nodes, serving: float | None = None) -> bool:
        plans = kept | self.forced, self.forced, self._everything
        return gains(*map(self.price, plans), serving=serving)

    def _trusts(self, guide: Guide, contributions: Mapping[Nodes, float], always: Nodes) -> bool:
        """Fit the guide to measurements; return whether it predicts what was tried so far."""
        guide.fit(contributions)
        tried = self._tried.items()
        r2 = guide.r2((self._everything - kept, found) for kept, found in tried if always <= kept)
        return r2 is None or r2 >= TRUSTED

    def _guided(self, guide: Guide, kept: Nodes, always: Nodes, aim: float | None = None) -> Nodes:
        """Return the cheapest passing one of a few plans that keep `always`, else `kept`.

        `aim` is the predicted error at which they may just pass; without it a few are far from it.
        """
        everything = self._everything
        plans = [p for p in guide.plans(everything, always) if self.rank(p) < self.rank(kept)]
        errors = [guide.predicted(everything - plan) for plan in plans]
        failing, passing, first = -1, len(plans), aim is None and kept == everything
        for target in aims(errors, aim or 1.0, first=first):
            if passing - failing < 2:
                break
            at = nearest(errors, failing, passing, target)
            if self._passes(plans[at], confirm=True):
                passing, kept = at, plans[at]
            else:
                failing = at
        return kept

    def _extended(self, kept: Nodes, always: Nodes, needed: Sequence[tuple[Nodes, float]]) -> Nodes:
        """Return the first cheaper plan that passes among extensions of one that nearly did."""
        if self.price(kept) is None or (alone := self.price(always)) is None:
            return kept
        cost = lambda group: (self.price(always | group) or 0.0) - alone  # noqa: E731
        near = (p for p, excess in self._tried.items() if always <= p and 1 < excess <= NEAR)
        cheaper = (p for p in near if self.rank(p) < self.rank(kept))
        for plan in extensions(sorted(cheaper, key=self._tried.__getitem__), needed, cost):
            untried = plan not in self._tried and self.rank(plan) < self.rank(kept)
            if untried and self._passes(plan, confirm=True):
                return plan
        return kept

    def _lower(self, kept: Nodes, *groups: Nodes) -> Nodes:
        return lowered(kept, [g - self.forced for g in groups], self._passes)

    def _shrunk(self, kept: Nodes, previous: Nodes) -> Nodes:
        """Lower whole groups: unsuspected nodes, then by kind of guard, by spot, by place.

        For a plan that extends `previous`, only the additions: the rest was tried with less kept.
        """
        if previous and previous <= kept:
            added = sorted(kept - previous - self.forced, key=lambda n: (*self._merit(kept, n), n))
            single, passes = [frozenset((n,)) for n in added], partial(self._passes, confirm=True)
            return lowered(kept, single, passes)
        rest = kept - union(self.suspects) - self.forced
        kept = lowered(kept, [rest], self._passes, split=() if self._contributions else self.nodes)
        if kept - self.forced:
            kept = self._lower(kept, *suspicions(self.suspects, self.classes()))
        free = [n for n in self.nodes if n in kept - self.forced]
        alike = places(free, self.classes()) if free else []
        for group in (*neighbourhoods(self.suspects), *alike):
            if len(group) > 1:
                kept = self._lower(kept, group)
        self._note("grouped", kept=len(kept | self.forced))
        return kept

    def _certified(self, kept: Nodes) -> Nodes:
        """Lower single nodes until none can be; record the excess that each needed one prevents."""
        gravity = {n: -i for i, g in reversed(list(enumerate(self.suspects))) for n in g}
        open_nodes = sorted(
            (n for n in self.nodes if n in kept - self.forced),
            key=lambda n: (gravity.get(n, -len(self.suspects)), *self._merit(kept, n)),
        )
        needed: dict[NodeName, Nodes] = {}
        while pending := [n for n in open_nodes if n in kept and needed.get(n) != kept]:
            self.watcher.step(len(open_nodes) - len(pending), len(open_nodes), "nodes")
            node = pending[0]
            trial = self._try(kept - {node}, confirm=True)
            if trial.passed:
                kept = kept - {node}
            else:
                needed[node] = kept
                self._excess_without[node] = trial.excess
                if trial.nonfinite:
                    self._nonfinite_without.add(node)
                open_nodes = [*(n for n in open_nodes if n != node), node]
        self._minimal = True
        return kept

    def _merit(self, kept: Nodes, node: NodeName) -> tuple[float, float]:
        """Return the order of lowering: error added per cost saved, then contribution."""
        before, after = (self.price(k | self.forced) for k in (kept, kept - {node}))
        gained = 0.0
        if self.guide is not None and before is not None and after is not None:
            gained = self.guide.merit(self._everything - kept, node, before - after)
        return gained, self._contributions.get(node, 0.0)

    def _passes(self, kept: Nodes, *, confirm: bool = False) -> bool:
        return self._try(kept, confirm=confirm).passed

    def _try(self, kept: Nodes, *, confirm: bool = False) -> Trial:
        self.budget.check()
        plan = kept | self.forced
        trial = self.evaluate(plan, confirm=confirm)
        self._tried[kept] = trial.excess
        if trial.passed:
            self.passing.append(plan)
            if confirm:
                self._best = min(self._best, plan, key=self.rank)
        return trial

    def _note(self, kind: RemarkKind, guess: str = "", **numbers: int) -> None:
        names = {name: text for name, text in (("guess", guess), ("form", self.form)) if text}
        self.steps.append(Remark(kind=kind, names=names, numbers=numbers))
        self.watcher.note(remark(self.steps[-1]))


LITTLE = 0.5
"""Up to this share of a group's contribution, one half leaves at least 87 % to the other."""
BEYOND = (2.0, 1.4, 1.2)
"""Factor on the error at which halving ended; on YOLOX nano 1.6 times as much still passed."""
MANY = 64
"""This many groups show faults in a few places: 20, one place each, leave two thirds without one.
A convention: what finer groups would have saved is not known."""
OF_SERVING = 0.5
"""Share of the savings of a plan that serves the task; see docs/decisions/0042-certificate.md."""


class Futile(Exception):
    """No plan that passes gains, and more trials will hardly find one."""


def rankings(
    groups: Sequence[Sequence[NodeName]],
    contribution: Callable[[Nodes], float],
    enough: float | None,
) -> Iterator[list[tuple[Nodes, float]]]:
    """Yield finer and finer groups down to single nodes, least contribution first.

    The group that contributes most is halved repeatedly, until all groups that are still whole
    contribute at most `enough` together. This spends few trials on what does not matter: about k
    log(n/k) for k nodes that do. The first ranking is that of the given groups, the last the
    finest; another is yielded each time their number doubles, so a caller that runs out of time has
    at least half that detail.

    Args:
        groups: A partition of the nodes, each in graph order.
        contribution: Output error with only the given nodes low; ≥ 0, may be inf or NaN.
        enough: What the groups left whole may contribute together; None means a tenth of the total
            contribution.
    """
    heap: list[tuple[float, int, tuple[NodeName, ...]]] = []
    singles: list[tuple[Nodes, float]] = []

    def put(nodes: Sequence[NodeName], known: float | None = None) -> float:
        found = contribution(frozenset(nodes)) if known is None else known
        found = inf if isnan(found) else found
        if len(nodes) == 1:
            singles.append((frozenset(nodes), found))
        else:
            heapq.heappush(heap, (-found, len(heap) + len(singles), tuple(nodes)))
        return found

    def ranking() -> list[tuple[Nodes, float]]:
        whole = [(frozenset(nodes), -found) for found, _, nodes in heap]
        return sorted(whole, key=lambda g: g[1]) + sorted(singles, key=lambda g: g[1])

    for group in filter(None, groups):
        put(group)
    if enough is None:
        enough = 0.1 * _together([-f for f, _, _ in heap if isfinite(f)])
    told = len(heap) + len(singles)
    yield ranking()
    while heap and _together([-found for found, _, _ in heap]) > enough:
        if len(heap) + len(singles) >= 2 * told:
            told = len(heap) + len(singles)
            yield ranking()
        found, _, nodes = heapq.heappop(heap)
        whole, first = -found, put(nodes[: len(nodes) // 2])
        left = sqrt(whole**2 - first**2) if first <= LITTLE * whole < inf else None
        put(nodes[len(nodes) // 2 :], left)
    if len(heap) + len(singles) > told:
        yield ranking()


def lowerable(ranking: Sequence[tuple[Nodes, float]], passes: Callable[[Nodes], bool]) -> Nodes:
    """Return the nodes of as many leading groups as `passes` was seen to accept.

    Near the tolerance some longer ranges pass although shorter ones fail, because errors also
    cancel: the range found by halving is extended if one of a few longer ranges passes.

    Args:
        ranking: Groups and their contributions, least first.
        passes: Whether the nodes may be low together; never called with none.
    """
    together = list(accumulate((c * c for _, c in ranking), initial=0.0))

    def leading(count: int) -> Nodes:
        return frozenset[NodeName]().union(*(group for group, _ in ranking[:count]))

    passing, failing = 0, len(ranking) + 1
    while failing - passing > 1:
        middle = (passing + failing) // 2
        passing, failing = (middle, failing) if passes(leading(middle)) else (passing, middle)
    while True:
        reached = together[passing]
        beyond = (bisect_right(together, reached * factor**2) - 1 for factor in BEYOND)
        longer = (n for n in beyond if n > passing and passes(leading(n)))
        if not (further := next(longer, 0)):
            return leading(passing)
        passing = further


def is_spread(ranking: Sequence[tuple[Nodes, float]]) -> bool:
    """Return whether many groups each add so much error that half of them must be kept.

    Args:
        ranking: Groups and their contributions; one that is infinite is a fault to be found.
    """
    errors = sorted(found for _, found in ranking)
    half = _together(errors[: len(errors) // 2 + 1])
    return len(errors) >= MANY and half > 1 and isfinite(errors[-1])


def gains(
    price: float | None,
    least: float | None,
    fp32: float | None,
    *,
    serving: float | None = None,
) -> bool:
    """Return whether a plan within the tolerance saves enough to search on.

    It has to save `LEAST_SAVED` of what everything low saves over FP32, or `OF_SERVING` of what a
    plan saves that serves the task, if one is known.

    Args:
        price: Predicted cost of the plan.
        least: That of everything low.
        fp32: That of everything in FP32; if any of these is None, the result is True.
        serving: That of a plan that serves the task; None if none is known.
    """
    if price is None or least is None or fp32 is None or fp32 <= least:
        return True
    required = LEAST_SAVED * (fp32 - least) if serving is None else OF_SERVING * (fp32 - serving)
    return fp32 - price >= required


def _together(contributions: Sequence[float]) -> float:
    return sqrt(sum(c * c for c in contributions))


NEAR = 2.0
"""Plans that exceed what is allowed by up to this factor are worth extending."""
BASES, MOST, TOGETHER, ALONE = 3, 16, (1, 2, 3, 5), 4
"""Number of plans to extend; of the groups that contribute most; of groups added together, best for
their cost first; and of the first groups added alone."""


def extensions(
    bases: Sequence[Nodes], needed: Sequence[tuple[Nodes, float]], cost: Callable[[Nodes], float]
) -> Iterator[Nodes]:
    """Yield plans to try, with more of the groups that contribute most for their cost.

    Args:
        bases: Plans that failed, the most promising first.
        needed: Groups and their contributions, ≥ 0, the largest first.
        cost: Cost of keeping a group.
    """
    worth = {group: c * c / max(1e-9, cost(group)) for group, c in needed[:MOST]}
    for base in bases[:BASES]:
        more = sorted((g for g in worth if not g <= base), key=lambda g: -worth[g])
        choices = [*(more[:count] for count in TOGETHER), *([g] for g in more[1:ALONE])]
        yield from dict.fromkeys(base.union(*groups) for groups in choices if groups)


def cheaper_plans(
    kept: Nodes,
    plans: Sequence[Nodes],
    guide: Guide | None,
    price: Callable[[Nodes], float | None],
    everything: Nodes,
) -> tuple[list[Nodes], list[Nodes]]:
    """Return plans that cost clearly less than `kept`, as in `clearly_cheaper`.

    First those among `plans`. If some keep all of `kept`, then the cheapest plan of all that do so,
    where it has fewer nodes than the cheapest of these or costs clearly less: plans that were tried
    may keep nodes that save nothing. It may fail, which says nothing of the others.

    Args:
        kept: A plan that passes.
        plans: Plans that passed before, at least on the worst samples.
        guide: Finds the cheapest plan; None to return only some of `plans`.
        price: Predicted cost of a plan; None if unknown.
        everything: All nodes that a plan may keep.
    """
    found = clearly_cheaper(plans, price, kept, everything)
    larger = [plan for plan in found if kept <= plan]
    if guide is None or not larger:
        return found, []
    closed, best = guide.cheapest(kept) & everything, min(larger, key=lambda p: price(p) or inf)
    than = kept if len(closed) < len(best) else best
    return found, clearly_cheaper([closed], price, than, everything)
