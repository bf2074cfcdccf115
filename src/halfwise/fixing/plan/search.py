"""Find the cheapest plan that passes, by trials: which nodes to keep in FP32.

1. Seeds: nothing, the plan to start from, and what guards name. The first that passes, by price, is
   taken, unless a plan that passed before samples joined still does and costs less.
2. If none passes, the error is spread: contributions of groups of nodes are measured, and how many
   of those that add least error for what they save are low is bisected; then finer groups. A few
   groups beside the last seed may do, too: one at a time, which leaves the least error.
3. What passes is lowered, several nodes at once: twice as many after a plan that passes; those that
   fail are halved until one is left (Hwang, "A method for detecting all defective members in a
   population by group testing", JASA 1972). Once no single node can be lowered, the plan is
   1-minimal.

Of all that passed, the cheapest is chosen. Predictions only order what is tried.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, count
from math import inf, isfinite, isnan, sqrt
from operator import sub
from typing import Any

from msgspec import Struct, field

from halfwise.emulation.budget import Budget, OutOfTime
from halfwise.fixing.bench import Outcome
from halfwise.fixing.plan.plan import NONE, Nodes
from halfwise.progress import Silent, Watcher
from halfwise.records import LEAST_DEARER, NodeName, Remark, RemarkKind
from halfwise.reporting.remarks import remark


class SearchResult(Struct, frozen=True):
    """Result of a search.

    Attributes:
        kept: The kept compute nodes; the best passing set seen.
        passed: Whether that set passes on all calibration samples.
        minimal: Whether lowering any of its nodes was seen to fail.
        excess_without: Per kept node, the excess when it alone is lowered.
        nonfinite_without: Those nodes that give new NaN or infinities when lowered.
        contributions: Per node, what it or its group contributes alone, if measured.
        exhausted: Whether the budget ended the search.
        steps: Remarks on what happened.
        spare: Kept nodes that a smaller plan lowers, which passes too but costs more.
    """

    kept: Nodes = NONE
    passed: bool = False
    minimal: bool = False
    excess_without: Mapping[NodeName, float] = {}
    nonfinite_without: Nodes = NONE
    contributions: Mapping[NodeName, float] = {}
    exhausted: bool = False
    steps: tuple[Remark, ...] = ()
    spare: Nodes = NONE

    @property
    def needed(self) -> Nodes:
        """The kept nodes, without those kept only because less would cost more."""
        return self.kept - self.spare


MOST_FAILURES = 8
"""Earlier plans that are tried again, on samples that joined or after the budget is spent. Our
choice: see docs/decisions/0061-one-search.md."""


class Search(Struct, dict=True):
    """A search over the compute nodes of a network; call `run` once.

    Attributes:
        nodes: The nodes that may be kept, in graph order.
        forced: Nodes that every plan keeps.
        suspects: Groups of nodes that guards name, most severe first.
        seeds: Plans to try first, passing or not. What the last one keeps stays kept where the
            error is spread.
        evaluate: Evaluates a plan on all samples.
        probe: Evaluates it on few of them: what fails there fails on all.
        contribution: Largest output error of a plan on a sample relative to what is allowed; the
            first sample on which it is above a number ends it. None if that is not measured: what
            nodes save orders them then.
        harmless: Contribution that needs no examination; None if only a metric decides.
        budget: Ends the search; choosing the result and checking FP32 are exempt.
        safe: Whether everything in FP32 is the original, and so certain to pass.
        watcher: Receives progress.
        price: Predicted cost of a plan relative to all low; None if unknown.
        form: What a kept node is called in steps; "" for FP32.
        steps: Remarks on what happened.
        earlier: Plans that passed before, maybe on fewer samples and with fewer nodes held.
    """

    nodes: Sequence[NodeName]
    forced: Nodes
    suspects: Sequence[Nodes]
    seeds: Sequence[Nodes]
    evaluate: Callable[[Nodes], Outcome]
    probe: Callable[[Nodes], Outcome]
    contribution: Callable[[Nodes, float], float] | None
    harmless: float | None
    budget: Budget
    safe: bool = False
    watcher: Watcher = field(default_factory=Silent)
    price: Callable[[Nodes], float | None] = lambda _: None
    form: str = ""
    steps: list[Remark] = []
    earlier: Iterable[Nodes] = ()

    def __post_init__(self) -> None:
        """Begin with nothing tried."""
        self._everything = frozenset(self.nodes)
        self._contributions, self._trials = dict[NodeName, float](), dict[Nodes, Outcome]()
        # More samples make no plan cheaper.
        self._was_futile = any(step.kind == "futile" for step in self.steps)

    def rank(self, kept: Nodes) -> tuple[float, ...]:
        """Return a plan's cost and size; lower is better. Everything kept, no plan, is last.

        Plans that cost more than it gain nothing, and differ only in their size.
        """
        price, most = self.price(kept), self.price(self._everything)
        if price is None or kept == self._everything:
            return inf, len(kept)
        return min(price, inf if most is None else most), len(kept)

    def run(self) -> SearchResult:
        """Return the cheapest plan found."""
        kept, minimal, exhausted = self._everything, False, False
        if not (self.safe or self._passes(self.forced) or self._passes(kept)):
            return self._hopeless()
        try:
            with self.budget.bounding():
                kept, minimal = self._lowered(self._seed())
        except OutOfTime:
            exhausted = True
            if "search" not in self.budget.cut:
                self._note("spent")
            self.budget.leave_out("search")
        best = self._cheapest(kept)
        if exhausted:
            best = next(filter(self._passes, few_of(self._guesses(best))), best)
        elif best == self._everything and not self._passes(best):
            return self._hopeless()
        if minimal and best != kept:
            self._note("dearer", kept=len(kept))
        is_minimal, spare = minimal and best == kept, best - kept if minimal else NONE
        return self._result(best, minimal=is_minimal, exhausted=exhausted, spare=spare)

    def _try(self, kept: Nodes) -> bool:
        """Return whether a plan passes on all samples, within the budget."""
        self.budget.check()
        return self._passes(kept)

    def _passes(self, kept: Nodes) -> bool:
        self._trials[kept] = self.evaluate(kept)
        return self._trials[kept].passed

    # --- seeds --------------------------------------------------------------------------------

    def _seed(self) -> Nodes:
        """Return a plan that passes: one that did before, a cheaper seed, else a spread one."""
        best = self._bisected(self._passed_before(self._everything), self._everything)
        for plan in self._before(best, self.seeds):
            if self._try(plan):
                best = plan
                break
        if best == self._everything:
            return self._spread(self.seeds[-1])
        self._note("passes", kept=len(best))
        return best

    def _guesses(self, most: Nodes) -> list[Nodes]:
        """Return the seeds and a few of what passed before, if they rank before `most`, by rank."""
        return self._before(most, (*self.seeds, *few_of(self._passed_before(most))))

    def _passed_before(self, most: Nodes) -> list[Nodes]:
        return self._before(most, (plan | self.forced for plan in self.earlier))

    def _before(self, most: Nodes, plans: Iterable[Nodes]) -> list[Nodes]:
        cheaper = [p for p in dict.fromkeys(plans) if self.rank(p) < self.rank(most)]
        return sorted(cheaper, key=self.rank)

    # --- where nothing stands out -------------------------------------------------------------

    def _spread(self, always: Nodes) -> Nodes:
        """Return the cheapest of a few plans that keep `always`, else everything.

        Each ranking of groups is tried before it is refined, as the budget may end. Once fewer
        nodes are left than groups were measured, or little is gained by many groups, lowering each
        alone takes less than measuring.
        """
        best, outside = self._everything, [n for n in self.nodes if n not in always]
        if not outside or self.contribution is None or self._was_futile:
            return best
        self._note("measuring", kept=len(always))
        done = count()

        def contribution(low: Nodes) -> float:
            self.watcher.step(next(done), 2 * len(outside), "ranking")
            return self._error(self._everything - low | self.forced, -inf)

        for ranking in rankings(stretches(outside), contribution, self.harmless):
            self._contributions = {n: error for group, error in ranking for n in group}
            ordered = (group for group, _ in sorted(ranking, key=self._merit))
            kept = accumulate(ordered, sub, initial=self._everything)
            best = self._bisected([*kept][:0:-1], best)
            self._note("ranked", groups=len(ranking), kept=len(best))
            if len(best - always) < len(ranking) or self._is_futile(best, len(ranking)):
                break
        self.watcher.step(1, 1)  # how much comes after is unknown
        return self._grown(always, ranking, best)

    def _grown(self, kept: Nodes, ranking: Sequence[tuple[Nodes, float]], best: Nodes) -> Nodes:
        """Return a plan that passes with few groups besides `kept`, cheaper than `best`; or that.

        Of the groups that contribute most, the one that leaves the smallest error inside the plan
        is kept too, as long as `STEPS` steps would be enough at that pace. Where most groups are of
        several nodes, all but a few contribute too much together, or `best` has few more nodes,
        lowering each takes less.
        """
        groups = sorted(ranking, key=lambda one: -one[1])
        single = sum(len(group) == 1 for group, _ in groups)
        if len(best - kept) <= 2 * COMPARED or 2 * single < len(groups):
            return best
        if _together([error for _, error in groups[STEPS:]]) > 1:
            return best
        first = self._error(kept, inf)
        for step in range(1, STEPS + 1):
            plans = [kept | group for group, _ in groups if not group <= kept]
            least = inf
            for plan in [plan for plan in plans if self.rank(plan) < self.rank(best)][:COMPARED]:
                error = self._error(plan, least)
                if error < least:
                    kept, least = plan, error
            if not least <= first ** (1 - step / STEPS) < inf:
                break
            if self._try(kept):
                return kept
        return best

    def _error(self, kept: Nodes, most: float) -> float:
        """Return the largest error of a plan on a sample, or one above `most`, within budget."""
        assert self.contribution is not None
        self.budget.check()
        return self.contribution(kept, most)

    def _merit(self, contributing: tuple[Nodes, float]) -> float:
        """Return the squared error that a group adds for what lowering it saves."""
        group, error = contributing
        whole, rest = map(self.price, (self._everything, self._everything - group | self.forced))
        if whole is None or rest is None:
            return error
        return error**2 / (whole - rest) if whole > rest else inf

    def _bisected(self, plans: Sequence[Nodes], best: Nodes) -> Nodes:
        """Return a plan next to one that fails, of those in order of falling error; or `best`."""
        plans = [plan for plan in plans if self.rank(plan) < self.rank(best)]
        failing, passing = -1, len(plans)
        while passing - failing > 1:
            middle = (failing + passing) // 2
            if self._try(plans[middle]):
                passing, best = middle, plans[middle]
            else:
                failing = middle
        return best

    # --- lowering -----------------------------------------------------------------------------

    def _lowered(self, kept: Nodes) -> tuple[Nodes, bool]:
        """Lower nodes until none can be, or that is futile; return the plan and whether none can.

        Nodes that fail together are halved until one is left. What passes on few samples is run on
        all once twice as many such plans followed as the time before, and at the end.
        """
        order, size, failing = self._ordered(kept), 1, list[NodeName]()
        needed: dict[NodeName, Nodes] = {}
        sure, unsure, most = kept, 0, 1
        while True:
            pending = [n for n in order if n in kept and needed.get(n) != kept]
            if kept != sure and (unsure >= most or not pending):
                if self._try(kept):
                    sure, most = kept, 2 * most
                else:
                    kept, failing, size = sure, [], 1
                unsure = 0
                continue
            if not pending:
                return kept, True
            if self._was_futile or self._is_futile(kept, len(needed)):
                self._note("futile")
                return sure, False
            self.watcher.step(len(order) - len(pending), len(order), "nodes")
            fresh = [n for n in pending if n not in needed]
            some = failing[: (len(failing) + 1) // 2] or fresh[:size] or pending[:1]
            plan = kept - frozenset(some)
            self.budget.check()
            self._trials[plan] = self.probe(plan)
            if self._trials[plan].passed:
                size = size if failing else 2 * len(some)
                kept, failing = plan, [n for n in failing if n not in some]
                unsure += 1
            elif len(some) > 1:
                size, failing = len(some) // 2, some
            else:
                needed[some[0]], failing = kept, []

    def _ordered(self, kept: Nodes) -> list[NodeName]:
        """Return the nodes of a plan that may be lowered, in that order.

        First what no guard names, then mild suspicions; of these, what saves most, then the least
        contribution.
        """
        gravity = {n: -i for i, g in reversed(list(enumerate(self.suspects))) for n in g}
        before = self.price(kept)

        def merit(node: NodeName) -> float:
            after = self.price(kept - {node})
            return 0.0 if before is None or after is None else after - before

        def order(node: NodeName) -> tuple[float, ...]:
            suspected = gravity.get(node, -len(self.suspects))
            return suspected, merit(node), self._contributions.get(node, 0.0)

        return sorted((n for n in self.nodes if n in kept - self.forced), key=order)

    def _is_futile(self, kept: Nodes, groups: int) -> bool:
        """Return whether many nodes or groups of them are left, and the plan gains little."""
        costs = map(self.price, (kept, self.forced, self._everything))
        return groups >= MANY_GROUPS and not gains(*costs)

    # --- the choice ---------------------------------------------------------------------------

    def _cheapest(self, kept: Nodes) -> Nodes:
        """Return the plan with the fewest nodes of those that cost at most 1 % more than another.

        Of `kept` and what passed, run on all samples; see `LEAST_DEARER`. Lowering one more node
        may add Casts, or Q/DQ pairs, that cost more than it saves.
        """
        best = None
        while best is None or not (best == kept or self._passes(best)):
            plans = [kept, *(plan for plan, trial in self._trials.items() if trial.passed)]
            least = min(map(self.rank, plans))[0]
            near = [plan for plan in plans if self.rank(plan)[0] <= LEAST_DEARER * least]
            best = min(near, key=lambda plan: (len(plan), self.rank(plan)))
        return best

    def _hopeless(self) -> SearchResult:
        self._note("hopeless")
        return self._result(self._everything, passed=False)

    def _result(self, kept: Nodes, *, passed: bool = True, **more: Any) -> SearchResult:
        failed = {n: self._trials.get(kept - {n}) for n in kept - self.forced}
        fails = {n: t for n, t in failed.items() if t and not (t.passed or t.not_run)}
        return SearchResult(
            kept,
            passed,
            excess_without={n: trial.excess for n, trial in fails.items()},
            nonfinite_without=frozenset(n for n, trial in fails.items() if trial.nonfinite),
            contributions=self._contributions,
            steps=tuple(self.steps),
            **more,
        )

    def _note(self, kind: RemarkKind, **numbers: int) -> None:
        names = {"form": self.form} if self.form else {}
        self.steps.append(Remark(kind=kind, names=names, numbers=numbers))
        self.watcher.note(remark(self.steps[-1]))


STEPS, COMPARED = 20, 32
"""How many groups may be kept one by one, and of how many that contribute most. Our choice."""
COARSE_GROUPS = 8
"""Groups whose contributions are measured first: with three trials they give a plan. Our choice."""


def stretches(nodes: Sequence[NodeName]) -> list[Sequence[NodeName]]:
    """Return `COARSE_GROUPS` groups of nodes in graph order; one for each node if there are few."""
    length = max(1, -(-len(nodes) // COARSE_GROUPS))
    return [nodes[i : i + length] for i in range(0, len(nodes), length)]


def few_of(plans: Sequence[Nodes]) -> Sequence[Nodes]:
    """Return at most `MOST_FAILURES` of some plans, evenly spread, the first among them."""
    return plans[:: -(-len(plans) // MOST_FAILURES) or 1]


LITTLE_OF_GROUP = 0.5
"""Up to this share of a group's contribution, one half leaves at least 87 % to the other."""
MANY_GROUPS = 64
"""This many groups show faults in a few places: 20, one place each, leave two thirds without one.
A convention: what finer groups would have saved is not known."""
LEAST_OF_FP32, LEAST_OF_LOW = 0.25, 0.5
"""What a search must save to go on, of FP32's cost, or of what everything low saves: half of it, at
the usual ratio of 2 between both. Our choice."""


def rankings(
    groups: Sequence[Sequence[NodeName]],
    contribution: Callable[[Nodes], float],
    enough: float | None,
    most: float = inf,
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
        most: How many groups there may be.
    """
    heap: list[tuple[float, int, tuple[NodeName, ...]]] = []
    singles: list[tuple[Nodes, float]] = []

    def put(nodes: Sequence[NodeName], implied: float | None = None) -> float:
        error = contribution(frozenset(nodes)) if implied is None else implied
        error = inf if isnan(error) else error
        if len(nodes) == 1:
            singles.append((frozenset(nodes), error))
        else:
            heapq.heappush(heap, (-error, len(heap) + len(singles), tuple(nodes)))
        return error

    def ranking() -> list[tuple[Nodes, float]]:
        whole = [(frozenset(nodes), -negative) for negative, _, nodes in heap]
        return sorted(whole, key=lambda g: g[1]) + sorted(singles, key=lambda g: g[1])

    for group in filter(None, groups):
        put(group)
    if enough is None:
        enough = 0.1 * _together([-f for f, _, _ in heap if isfinite(f)])
    yielded = len(heap) + len(singles)
    yield ranking()
    while heap and _together([-negative for negative, _, _ in heap]) > enough:
        if len(heap) + len(singles) >= most:
            break
        if len(heap) + len(singles) >= 2 * yielded:
            yielded = len(heap) + len(singles)
            yield ranking()
        negative, _, nodes = heapq.heappop(heap)
        whole, first = -negative, put(nodes[: len(nodes) // 2])
        rest = sqrt(whole**2 - first**2) if first <= LITTLE_OF_GROUP * whole < inf else None
        put(nodes[len(nodes) // 2 :], rest)
    if len(heap) + len(singles) > yielded:
        yield ranking()


def gains(price: float | None, least: float | None, fp32: float | None) -> bool:
    """Return whether a plan within the tolerance saves enough to search on.

    It has to save a quarter of FP32's cost, or half of what everything low saves, if that is less.

    Args:
        price: Predicted cost of the plan.
        least: That of everything low.
        fp32: That of everything in FP32; if any of these is None, the result is True.
    """
    if price is None or least is None or fp32 is None or fp32 <= least:
        return True
    return fp32 - price >= min(LEAST_OF_FP32 * fp32, LEAST_OF_LOW * (fp32 - least))


def _together(contributions: Sequence[float]) -> float:
    return sqrt(sum(c * c for c in contributions))
