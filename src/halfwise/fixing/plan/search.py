"""Find the cheapest plan that passes, by trials: which nodes to keep in FP32.

1. Seeds: nothing, the plan to start from, what guards name. The first that passes, by price, is
   taken.
2. If none passes, the error is spread: contributions of groups of nodes are measured, and how many
   of those that add least error for what they save are low is bisected; then finer groups.
3. What passes is lowered, several nodes at once: twice as many after a plan that passes; those that
   fail are halved until one is left (Hwang, "A method for detecting all defective members in a
   population by group testing", JASA 1972). Once no single node can be lowered, the plan is
   1-minimal.

Of all that passed, the cheapest is chosen. Predictions only order what is tried.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, count
from math import inf, isfinite, isnan, sqrt
from operator import sub

from halfwise.emulation.budget import Budget, OutOfTime
from halfwise.fixing.bench import Outcome
from halfwise.fixing.plan.plan import Nodes, union
from halfwise.progress import Silent, Watcher
from halfwise.records import LEAST_DEARER, NodeName, Remark, RemarkKind
from halfwise.reporting.remarks import remark


@dataclass(frozen=True)
class SearchResult:
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

    kept: Nodes
    passed: bool
    minimal: bool
    excess_without: Mapping[NodeName, float]
    nonfinite_without: Nodes
    contributions: Mapping[NodeName, float]
    exhausted: bool
    steps: tuple[Remark, ...]
    spare: Nodes = frozenset()

    @property
    def needed(self) -> Nodes:
        """The kept nodes, without those kept only because less would cost more."""
        return self.kept - self.spare


MOST_FAILURES = 8
"""Plans that may fail before no more of their kind are tried: earlier plans on samples that joined,
plans after the budget is spent, single nodes where errors are spread. Our choice: see
docs/decisions/0061-one-search.md."""


@dataclass
class Search:
    """A search over the compute nodes of a network; call `run`, and again after samples joined.

    Attributes:
        nodes: The nodes that may be kept, in graph order.
        forced: Nodes that user rules keep; part of every plan.
        suspects: Groups of nodes that guards name, most severe first.
        certain: How many of the leading groups are certain losses.
        evaluate: Evaluates a plan.
        contribution: Output error of a plan relative to what is allowed, on one sample. None if
            that is not measured: what nodes save orders them then.
        harmless: Contribution that needs no examination; None if only a metric decides.
        budget: Ends the search; choosing the result and checking FP32 are exempt.
        start: A plan to start from, passing or not.
        safe: Whether everything in FP32 is the original, and so certain to pass.
        watcher: Receives progress.
        price: Predicted cost of a plan relative to all low; None if unknown.
        form: What a kept node is called in steps; "" for FP32.
        steps: Remarks on what happened.
        passing: Plans that passed, or that deserve a trial anyway; of them an early end takes the
            cheapest that passes on all samples. Shared when samples joined.
    """

    nodes: Sequence[NodeName]
    forced: Nodes
    suspects: Sequence[Nodes]
    certain: int
    evaluate: Callable[[Nodes], Outcome]
    contribution: Callable[[Nodes], float] | None
    harmless: float | None
    budget: Budget
    start: Nodes = frozenset()
    safe: bool = False
    watcher: Watcher = field(default_factory=Silent)
    price: Callable[[Nodes], float | None] = lambda _: None
    form: str = ""
    steps: list[Remark] = field(default_factory=list)
    passing: list[Nodes] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Restrict guards and the start to the nodes that the search may keep."""
        self._everything = frozenset(self.nodes)
        self.start &= self._everything
        self.suspects = [group & self._everything for group in self.suspects]
        self._contributions = dict[NodeName, float]()

    def rank(self, kept: Nodes) -> tuple[float, ...]:
        """Return a plan's cost and size; lower is better. Everything kept, no plan, is last."""
        price = inf if len(kept) == len(self._everything) else self.price(kept)
        return (inf if price is None else price, len(kept))

    def run(self, previous: Nodes = frozenset(), *, certify: bool = True) -> SearchResult:
        """Return the cheapest plan found, starting from `previous` if that still helps.

        Args:
            previous: Result of an earlier call; if it passes, only the certificate is new.
            certify: Lower single nodes until none can be; if false, each once.
        """
        self._failed, self._passed = dict[Nodes, Outcome](), dict[Nodes, Outcome]()
        kept, minimal, exhausted = self._everything, False, False
        if not (self.safe or self._confirms(self.forced) or self._confirms(kept)):
            return self._hopeless()
        try:
            with self.budget.bounding():
                kept = self._seed(previous)
                more = kept - previous if previous and previous <= kept else frozenset()
                kept, minimal = self._without_nodes(kept, more, certify=certify)
        except _Futile:
            self._note("futile")
        except OutOfTime:
            exhausted = True
            if "search" not in self.budget.cut:
                self._note("spent")
            self.budget.leave_out("search")
        return self._chosen(kept, minimal=minimal, exhausted=exhausted, certify=certify)

    def _try(self, kept: Nodes) -> bool:
        """Return whether a plan passes on all samples, within the budget."""
        self.budget.check()
        return self._confirms(kept)

    def _confirms(self, kept: Nodes) -> bool:
        trial = self.evaluate(kept)
        (self._passed if trial.passed else self._failed)[kept] = trial
        self.passing += [kept] * trial.passed
        return trial.passed

    # --- seeds --------------------------------------------------------------------------------

    def _seed(self, previous: Nodes) -> Nodes:
        """Return a plan that passes: the cheapest guess, else a larger one, or a spread one."""
        if previous and self._confirms(previous | self.forced):
            self._note("passes", guess="the previous plan", kept=len(previous | self.forced))
            return previous | self.forced
        base, suspected = previous or self.start, union(self.suspects)
        guesses = {
            "all suspected nodes": base | suspected,
            "the nodes certain to lose precision": base | union(self.suspects[: self.certain]),
            "the starting plan": base,
            "no node": frozenset[NodeName](),
        }
        plans = {guess | self.forced: name for name, guess in guesses.items()}
        if previous:  # with more samples, nothing that failed passes
            plans = {plan: name for plan, name in plans.items() if previous < plan}
        for plan in sorted(plans, key=lambda plan: (plan != self.forced, self.rank(plan))):
            if self._try(plan):
                self._note("passes", guess=plans[plan], kept=len(plan))
                return plan
        if previous:
            return self._cheapest_passing(self._everything)
        return self._spread(base | suspected | self.forced)

    def _cheapest_passing(self, kept: Nodes) -> Nodes:
        """Return the cheapest plan of all that passed before that still passes, else `kept`."""
        earlier = [*self.passing, *([self.start] if self.start else [])]
        plans = dict.fromkeys(plan | self.forced for plan in earlier)  # none has nodes held since
        cheaper = sorted((p for p in plans if self.rank(p) < self.rank(kept)), key=self.rank)
        return next((plan for plan in few_of(cheaper) if self.evaluate(plan).passed), kept)

    # --- where nothing stands out -------------------------------------------------------------

    def _spread(self, always: Nodes) -> Nodes:
        """Return the cheapest of a few plans that keep `always`, else everything.

        Each ranking of groups is tried before it is refined, as the budget may end. Once fewer
        nodes are left than groups were measured, lowering each alone takes less than measuring.
        """
        best, outside = self._everything, [n for n in self.nodes if n not in always]
        alone = self.contribution
        if not outside or alone is None:
            return best
        self._note("measuring", kept=len(self._everything) - len(outside))
        done = count()

        def contribution(low: Nodes) -> float:
            self.budget.check()
            self.watcher.step(next(done), 2 * len(outside), "ranking")
            return alone(self._everything - low | self.forced)

        for ranking in rankings(stretches(outside), contribution, self.harmless):
            self._contributions = {n: error for group, error in ranking for n in group}
            ordered = (group for group, _ in sorted(ranking, key=self._merit))
            kept = accumulate(ordered, sub, initial=self._everything)
            best = self._bisected([*kept][:0:-1], best)
            self._note("ranked", groups=len(ranking), kept=len(best))
            if len(best - always) < len(ranking):
                break
            if self._is_futile(best, len(ranking)):
                raise _Futile
        self.watcher.step(1, 1)  # how much comes after is unknown
        return best

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

    def _without_nodes(self, kept: Nodes, first: Nodes, *, certify: bool) -> tuple[Nodes, bool]:
        """Lower nodes, at once the first; return the plan and whether it is 1-minimal."""
        first, failing = first - self.forced, list[NodeName]()
        order, size = self._ordered(kept, first), max(1, len(first))
        if certify or not first:
            order += self._ordered(kept, kept - self.forced - first)
        needed: dict[NodeName, Nodes] = {}
        while pending := [n for n in order if n in kept and needed.get(n) != kept]:
            self.watcher.step(len(order) - len(pending), len(order), "nodes")
            fresh = [n for n in pending if n not in needed]
            if not (failing or fresh or certify):
                break
            # Nodes that failed together are halved until one is left: that trial was made before.
            some = failing[: (len(failing) + 1) // 2] or fresh[:size] or pending[:1]
            plan = kept - frozenset(some)
            if self._try(plan):
                size = size if failing else 2 * len(some)
                kept, failing = plan, [n for n in failing if n not in some]
            elif len(some) > 1:
                size, failing = len(some) // 2, some
            else:
                needed[some[0]], failing = kept, []
                if self._is_futile(kept, len(needed)):
                    raise _Futile
                # Those after it add more error for what they save.
                pays = len(needed) < MOST_FAILURES
                if self._contributions and not (certify or first or pays):
                    break
        return kept, certify

    def _ordered(self, kept: Nodes, nodes: Nodes) -> list[NodeName]:
        """Return nodes of a plan in the order of lowering.

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

        return sorted((n for n in self.nodes if n in nodes), key=order)

    # --- the choice ---------------------------------------------------------------------------

    def _is_futile(self, kept: Nodes, groups: int) -> bool:
        """Return whether many nodes or groups of them are left, and the plan gains little."""
        costs = map(self.price, (kept | self.forced, self.forced, self._everything))
        return groups >= MANY_GROUPS and not gains(*costs)

    def _chosen(
        self, kept: Nodes, *, minimal: bool, exhausted: bool, certify: bool
    ) -> SearchResult:
        """Return the cheapest of the plans that passed, and what is known of `kept`."""
        if exhausted:
            kept = self._cheapest_passing(self._cheapest((kept, *self._passed)))
        elif not minimal:
            kept = self._cheapest((kept, *self._passed))
        if kept == self._everything and not exhausted and not self._confirms(kept):
            return self._hopeless()
        best = kept
        if minimal and certify and (larger := self._cheaper(kept, self._passed)):
            best = self._cheapest(larger)
        if best != kept:
            self._note("dearer", kept=len(kept))
        result = self._result(best, minimal=minimal and best == kept, exhausted=exhausted)
        return replace(result, spare=best - kept) if kept <= best else result

    def _cheaper(self, kept: Nodes, plans: Iterable[Nodes]) -> list[Nodes]:
        """Return the larger ones among plans that cost clearly less than this one and than FP32.

        Lowering one more node may add Casts, or Q/DQ pairs, that cost more than it saves. Of plans
        that gain nothing over everything kept, none is preferred to one with fewer nodes.
        """
        cost, most = self.price(kept), self.price(self._everything)
        most = min(inf if most is None else most, (0.0 if cost is None else cost) / LEAST_DEARER)
        return [plan for plan in plans if kept < plan and (self.price(plan) or inf) < most]

    def _cheapest(self, plans: Sequence[Nodes]) -> Nodes:
        """Return the plan with the fewest nodes of those that cost at most 1 % more than another.

        See `LEAST_DEARER`.
        """
        least = min(map(self.rank, plans))[0]
        near = [plan for plan in plans if self.rank(plan)[0] <= LEAST_DEARER * least]
        return min(near, key=lambda plan: (len(plan), self.rank(plan)))

    def _hopeless(self) -> SearchResult:
        self._note("hopeless")
        return self._result(self._everything, passed=False)

    def _result(
        self, kept: Nodes, *, passed: bool = True, minimal: bool = False, exhausted: bool = False
    ) -> SearchResult:
        alone = {n: kept - {n} for n in kept - self.forced}
        failed = {n: self._failed.get(plan) for n, plan in alone.items()}
        fails = {n: trial for n, trial in failed.items() if trial and not trial.not_run}
        without = {n: trial.excess for n, trial in fails.items()}
        nonfinite = frozenset(n for n, trial in fails.items() if trial.nonfinite)
        more = self._contributions, exhausted, tuple(self.steps)
        return SearchResult(kept, passed, minimal, without, nonfinite, *more)

    def _note(self, kind: RemarkKind, guess: str = "", **numbers: int) -> None:
        names = {name: text for name, text in (("guess", guess), ("form", self.form)) if text}
        self.steps.append(Remark(kind=kind, names=names, numbers=numbers))
        self.watcher.note(remark(self.steps[-1]))


COARSE_GROUPS = 8
"""Groups whose contributions are measured first: with three trials they give a plan. Our choice."""


def stretches(nodes: Sequence[NodeName]) -> list[Sequence[NodeName]]:
    """Return `COARSE_GROUPS` groups of nodes in graph order; one for each node if there are few."""
    length = max(1, -(-len(nodes) // COARSE_GROUPS))
    return [nodes[i : i + length] for i in range(0, len(nodes), length)]


def few_of(plans: Sequence[Nodes]) -> Sequence[Nodes]:
    """Return at most `MOST_FAILURES` of some plans, evenly spread, the first among them."""
    return plans[:: -(-len(plans) // MOST_FAILURES) or 1]


class _Futile(Exception):
    """No plan that passes gains, and more trials will hardly find one."""


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
