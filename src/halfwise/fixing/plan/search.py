"""Find a smallest set of FP32 nodes by trial, over arbitrary subsets.

The set starts from everything in FP32 and is lowered: first all nodes that no guard suspects, at
once; then groups of nodes in the same place of repeated blocks; then single nodes. Where a group
cannot be lowered it is halved (O(k log n) trials for k needed nodes among n, as in delta
debugging: Zeller & Hildebrandt, "Simplifying and isolating failure-inducing input", IEEE TSE 2002).
What remains is 1-minimal once no single node can be lowered.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Protocol

from halfwise.emulation.bounded import OutOfTime
from halfwise.emulation.budget import Budget
from halfwise.fixing.plan.contribution import lowerable, rankings
from halfwise.records import NodeName, Remark, RemarkKind
from halfwise.reporting.plan import remark

Nodes = frozenset[NodeName]

COARSE = 8
"""Groups that contributions are measured of at first: with three trials they give a plan."""
LARGER = 1.1
"""The next plan tried, of those that passed before, is this much larger than one that failed."""
LAST = 8
"""After the first of them, about so many are tried at most; then all of FP32 is left."""


class Trial(Protocol):
    """What the search needs to know of one trial."""

    @property
    def passed(self) -> bool:
        """Whether the assignment is acceptable."""

    @property
    def excess(self) -> float:
        """Error over what is allowed; above 1 fails."""

    @property
    def nonfinite(self) -> bool:
        """Whether it failed with new NaN or infinities."""


class Evaluate(Protocol):
    """Evaluates an assignment given by its kept compute nodes."""

    def __call__(self, kept: Nodes, *, confirm: bool = False) -> Trial:
        """Try on the worst samples, or on all of them with `confirm`."""


@dataclass(frozen=True)
class Found:
    """Result of a search.

    Attributes:
        kept: The kept compute nodes; the best passing set seen.
        passed: Whether that set passes on all calibration samples.
        minimal: Whether lowering any of its nodes was seen to fail.
        excess_without: Per kept node, the excess when it alone is lowered.
        nonfinite_without: Those of them that give new NaN or infinities when lowered.
        contributions: Per node, what it or its group contributes alone, where that was measured.
        exhausted: Whether the budget ended the search.
        steps: What happened.
    """

    kept: Nodes
    passed: bool
    minimal: bool
    excess_without: Mapping[NodeName, float]
    nonfinite_without: Nodes
    contributions: Mapping[NodeName, float]
    exhausted: bool
    steps: tuple[Remark, ...]


@dataclass
class Search:
    """A search over the compute nodes of one network; call `run`, and again after samples joined.

    Attributes:
        nodes: The nodes that may be kept, in graph order.
        forced: Those of them that user rules keep; part of every assignment.
        suspects: Groups of nodes that guards name, gravest first.
        certain: How many of the leading groups are certain losses.
        classes: Structural class of each node; equal for the same place in repeated blocks.
        evaluate: Evaluates an assignment.
        contribution: Output error of an assignment relative to what is allowed, on one sample.
        harmless: Contribution that may be left unexamined; None where only a metric decides.
        budget: Ends the search; what chooses the result, and the check of FP32, is not bounded.
        start: A plan to start from, passing or not.
        safe: Whether everything in FP32 is sure to pass, being the original.
        progress: Called with a line for each step.
        passing: Sets that passed, on the worst samples at least, or that are worth a trial anyway;
            when the budget ends, the smallest that passes on all is the result. Shared by searches
            before and after samples joined.
    """

    nodes: Sequence[NodeName]
    forced: Nodes
    suspects: Sequence[Nodes]
    certain: int
    classes: Mapping[NodeName, int]
    evaluate: Evaluate
    contribution: Callable[[Nodes], float]
    harmless: float | None
    budget: Budget
    start: Nodes = frozenset()
    safe: bool = False
    progress: Callable[[str], None] = lambda _: None
    steps: list[Remark] = field(default_factory=list)
    passing: list[Nodes] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Restrict suspicions to the nodes that the search may keep."""
        everything = frozenset(self.nodes)
        self.start &= everything
        self.suspects = [group & everything for group in self.suspects]
        self._best = everything
        self._excess_without: dict[NodeName, float] = {}
        self._nonfinite_without: set[NodeName] = set()
        self._contributions: dict[NodeName, float] = {}

    def run(self, previous: Nodes = frozenset(), *, certify: bool = True) -> Found:
        """Return the smallest set found, starting from `previous` where that still helps.

        Args:
            previous: What an earlier call found; where it passes, only the certificate is new.
            certify: Lower single nodes until none can be. Without, groups alone are lowered, and
                the set is not minimal yet.
        """
        self._best = frozenset(self.nodes)
        if not self.safe and not self.evaluate(self._best | self.forced, confirm=True).passed:
            self._note("hopeless")
            return self._found(passed=False, minimal=False, exhausted=False)
        if self.start and self.evaluate(self.start | self.forced, confirm=True).passed:
            self._best = self.start | self.forced
        try:
            with self.budget.bounding():
                kept = self._reduced(previous)
                if certify:
                    kept = self._certified(kept)
        except OutOfTime:
            if not {"certify", "search"}.intersection(self.budget.cut):
                self._note("spent")
            self.budget.leave_out("certify" if certify else "search")
            return self._out_of_time()
        self._best = kept | self.forced
        return self._found(passed=True, minimal=certify, exhausted=False)

    def _reduced(self, previous: Nodes) -> Nodes:
        """Return a passing set that no group of nodes can leave."""
        if previous and self.evaluate(previous | self.forced, confirm=True).passed:
            self._best = previous | self.forced
            return previous
        kept = self._shrunk(self._start(previous))
        while not self._passes(kept, confirm=True):
            self._note("another-sample", kept=len(kept))
            kept = self._shrunk(self._start(kept))
        return kept

    def _out_of_time(self) -> Found:
        """Return the smallest set so far that passes on all samples."""
        self._best = min(self._best, self._passed_before(), key=len)
        return self._found(passed=True, minimal=False, exhausted=True)

    def _passed_before(self) -> Nodes:
        """Return a small one of the sets that passed that does on all samples, else everything."""
        # What was held since is part of none of them.
        plans = sorted(dict.fromkeys(kept | self.forced for kept in self.passing), key=len)
        larger, tried = LARGER, 0.0
        for kept in plans:
            if larger * tried <= len(kept) < len(self._best):
                if self.evaluate(kept, confirm=True).passed:
                    return kept
                if kept and not tried:
                    larger = max(LARGER, (len(self.nodes) / len(kept)) ** (1 / LAST))
                tried = float(len(kept))
        return frozenset(self.nodes)

    def _found(self, *, passed: bool, minimal: bool, exhausted: bool) -> Found:
        without = {n: e for n, e in self._excess_without.items() if n in self._best}
        return Found(
            self._best,
            passed,
            minimal,
            without,
            frozenset(self._nonfinite_without & self._best),
            self._contributions,
            exhausted,
            tuple(self.steps),
        )

    def _start(self, previous: Nodes) -> Nodes:
        """Return a passing set: the cheapest guess that works, or one found by halving."""
        known = "the previous plan" if previous else "the starting plan"
        previous = previous or self.start
        suspected = _union(self.suspects)
        guesses = {
            "no node": frozenset[NodeName](),
            known: previous,
            "the nodes certain to lose precision": previous | _union(self.suspects[: self.certain]),
            "all suspected nodes": previous | suspected,
        }
        for name, guess in guesses.items():
            if self._passes(guess, confirm=True):
                self._note("passes", guess=name, kept=len(guess | self.forced))
                return guess
        if (kept := self._passed_before()) != frozenset(self.nodes):
            self._note("larger", kept=len(kept))
            self._best = min(self._best, kept, key=len)
            return kept
        self._note("measuring", kept=len(suspected))
        outside = [n for n in self.nodes if n not in suspected | previous]
        return self._lowered_by_contribution(outside)

    def _lowered_by_contribution(self, nodes: Sequence[NodeName]) -> Nodes:
        """Lower as many of `nodes` as passes, those that contribute least first.

        Each ranking is tried before it is refined, so that time may end at any moment.
        """
        everything = frozenset(self.nodes)

        @cache
        def contribution(low: Nodes) -> float:
            self.budget.check()
            return self.contribution(everything - low | self.forced)

        kept = everything
        for ranking in rankings(self._groups(nodes), contribution, self.harmless):
            low = lowerable(ranking, lambda nodes: self._passes(everything - nodes))
            kept = min(kept, everything - low, key=len)
            self._contributions = {n: found for group, found in ranking for n in group}
            self._note("ranked", groups=len(ranking), kept=len(kept))
        return kept

    def _groups(self, nodes: Sequence[NodeName]) -> list[list[NodeName]]:
        """Return a few groups by place where blocks repeat, else by stretches of the graph."""
        places = self._places(frozenset(nodes))
        if len(places) * 3 <= len(nodes):
            nodes = [n for place in places for n in nodes if n in place]
        length = max(1, -(-len(nodes) // COARSE))
        return [list(nodes[i : i + length]) for i in range(0, len(nodes), length)]

    def _lower(self, kept: Nodes, groups: Sequence[Nodes], *, split: bool) -> Nodes:
        """Return `kept` with as much of `groups` lowered as passes, earlier groups first.

        Args:
            kept: A passing set.
            groups: What to lower, least needed first.
            split: Whether a group that cannot be lowered whole is taken apart.
        """
        groups = [g & (kept - self.forced) for g in groups]
        groups = [g for g in groups if g]
        if not groups:
            return kept
        together = _union(groups)
        if self._passes(kept - together):
            return kept - together
        if len(groups) == 1:
            ordered = [n for n in self.nodes if n in together]
            if not split or len(ordered) == 1:
                return kept
            groups = [frozenset((node,)) for node in ordered]
        half = len(groups) // 2
        kept = self._lower(kept, groups[:half], split=split)
        return self._lower(kept, groups[half:], split=split)

    def _shrunk(self, kept: Nodes) -> Nodes:
        """Lower whole groups: what no guard suspects, kinds of suspicion, one spot, one place."""
        unsuspected = kept - _union(self.suspects)
        kept = self._lower(kept, [unsuspected], split=not self._contributions)
        kept = self._lower(kept, self._suspicions(), split=False)
        for group in (*self._neighbourhoods(), *self._places(kept)):
            if len(group) > 1:
                kept = self._lower(kept, [group], split=False)
        self._note("grouped", kept=len(kept | self.forced))
        return kept

    def _suspicions(self) -> list[Nodes]:
        """Return suspicions about the same places as one group each, mildest first."""
        merged: dict[tuple[int, ...], Nodes] = {}
        for group in self.suspects:
            key = tuple(sorted({self.classes[n] for n in group}))
            merged[key] = merged.get(key, frozenset()) | group
        return list(reversed(merged.values()))

    def _neighbourhoods(self) -> list[Nodes]:
        """Return suspicions that share nodes as one group each: one LayerNorm, say."""
        groups: list[Nodes] = []
        for suspicion in self.suspects:
            apart = [g for g in groups if not g & suspicion]
            joined = [g for g in groups if g & suspicion]
            groups = [*apart, _union([*joined, suspicion])]
        return groups if len(groups) > 1 else []

    def _places(self, among: Nodes) -> list[Nodes]:
        places: dict[int, list[NodeName]] = {}
        for node in self.nodes:
            if node in among - self.forced:
                places.setdefault(self.classes[node], []).append(node)
        return [frozenset(place) for place in places.values()]

    def _certified(self, kept: Nodes) -> Nodes:
        """Lower single nodes until none can be; note the excess that each needed one prevents."""
        gravity = {n: -i for i, g in reversed(list(enumerate(self.suspects))) for n in g}
        mildest = -len(self.suspects)
        open_nodes = sorted(
            (n for n in self.nodes if n in kept - self.forced),
            key=lambda n: (gravity.get(n, mildest), self._contributions.get(n, 0.0)),
        )
        needed: dict[NodeName, Nodes] = {}
        while pending := [n for n in open_nodes if n in kept and needed.get(n) != kept]:
            node = pending[0]
            trial = self._try(kept - {node}, confirm=True)
            if trial.passed:
                kept = kept - {node}
                self.passing.append(kept | self.forced)
                self._best = min(self._best, kept | self.forced, key=len)
            else:
                needed[node] = kept
                self._excess_without[node] = trial.excess
                if trial.nonfinite:
                    self._nonfinite_without.add(node)
                open_nodes = [*(n for n in open_nodes if n != node), node]
        return kept

    def _passes(self, kept: Nodes, *, confirm: bool = False) -> bool:
        passed = self._try(kept, confirm=confirm).passed
        if passed:
            self.passing.append(kept | self.forced)
            if confirm:
                self._best = min(self._best, kept | self.forced, key=len)
        return passed

    def _try(self, kept: Nodes, *, confirm: bool = False) -> Trial:
        self.budget.check()
        return self.evaluate(kept | self.forced, confirm=confirm)

    def _note(self, kind: RemarkKind, guess: str = "", **numbers: int) -> None:
        step = Remark(kind=kind, names={"guess": guess} if guess else {}, numbers=numbers)
        self.steps.append(step)
        self.progress(remark(step))


def _union(groups: Sequence[Nodes]) -> Nodes:
    return frozenset[NodeName]().union(*groups)
