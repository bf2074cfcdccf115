"""The search for a plan in real engines: the emulation proposes, the engine decides.

Knows engines only through `attempt`, which builds one and measures it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol

from halfwise.records import BuildOutcome, Latency, NodeName

Assignment = frozenset[NodeName]

SLOW = 1.1
"""A mixed engine that takes longer than this many times plain FP16 is worth wider islands."""


@dataclass(frozen=True)
class Candidate:
    """One build of one plan, measured on the calibration samples.

    Attributes:
        keep: Compute nodes to be FP32.
        step: Why it was tried, one sentence.
        build: What came of the build.
        excess: Error over what the search may use; 1 is the limit. None without an engine that ran.
        latency: Its speed; None where it was not measured.
    """

    keep: Assignment
    step: str
    build: BuildOutcome
    excess: float | None = None
    latency: Latency | None = None

    @property
    def passed(self) -> bool:
        """Whether there is an engine that is within what the search may use."""
        return self.excess is not None and self.excess <= 1


@dataclass
class Budget:
    """Builds that may still be spent on new plans."""

    left: int

    def take(self) -> None:
        """Spend one."""
        self.left -= 1


class Moves(Protocol):
    """What the search may try next; each set with the reason to try it, likeliest first."""

    def culprits(self, failed: Candidate, /) -> Iterable[tuple[str, Assignment]]:
        """Return sets of nodes to add to a plan whose engine is out of tolerance."""

    def unbuildable(self, failed: Candidate, /) -> Iterable[tuple[str, Assignment]]:
        """Return other sets to keep instead of one that has no engine."""

    def wider(self, keep: Assignment, /) -> Iterable[tuple[str, Assignment]]:
        """Return wider islands around a kept set, which break fewer fusions."""


@dataclass(frozen=True)
class Chosen:
    """Result of the search.

    Attributes:
        best: The candidate to deliver; None where no engine passed.
        plain: The engine with nothing kept.
        excesses: Errors of all builds of the delivered plan.
        minimal: Whether every smaller set that was left was tried and failed.
        notes: What to know of it.
    """

    best: Candidate | None
    plain: Candidate
    excesses: tuple[float, ...]
    minimal: bool
    notes: tuple[str, ...]


@dataclass
class EngineSearch:
    """Finds the plan whose engine passes with the fewest kept nodes, and no slower than it must be.

    Attributes:
        attempt: Builds and measures the plan that keeps a set; told why.
        moves: What to try next.
        order: Nodes in graph order.
        budget: Builds that may still be spent on new plans.
        builds: Builds of a plan before it counts as confirmed.
    """

    attempt: Callable[[Assignment, str], Candidate]
    moves: Moves
    order: Sequence[NodeName]
    budget: Budget
    builds: int
    tried: dict[Assignment, list[Candidate]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def run(self, start: Assignment) -> Chosen:
        """Search from the plan that the emulation found."""
        first = self._try(start, "the plan of the emulation")
        best = first if first.passed else self._repair(first)
        plain = self._plain()
        if best is None:
            return Chosen(None, plain, (), False, tuple(self.notes))
        ladder = [best]
        minimal = not best.keep
        if best.keep and plain.passed and self._confirmed(plain):
            ladder.append(plain)
            minimal = True
        elif best.keep:
            minimal = self._shrink(ladder)
        best = self._settle(ladder)
        minimal = minimal and best is ladder[-1]
        faster = self._faster(best, plain)
        excesses = tuple(c.excess for c in self.tried[faster.keep] if c.excess is not None)
        return Chosen(faster, plain, excesses, minimal, tuple(self.notes))

    def _try(self, keep: Assignment, step: str) -> Candidate:
        self.budget.take()
        return self._attempt(keep, step)

    def _attempt(self, keep: Assignment, step: str) -> Candidate:
        candidate = self.attempt(keep, step)
        self.tried.setdefault(keep, []).append(candidate)
        return candidate

    def _plain(self) -> Candidate:
        """Return the engine with nothing kept; it is a row of the table, so it costs no budget."""
        known = self.tried.get(frozenset())
        return known[0] if known else self._attempt(frozenset(), "plain low precision")

    def _repair(self, failed: Candidate) -> Candidate | None:
        """Return a candidate that passes, from one that does not; None when the budget ends."""
        queue: Iterator[tuple[str, Assignment]] = iter(())
        base = failed
        while self.budget.left > 0:
            move = next((m for m in queue if m[1] not in self.tried), None)
            if move is None:
                queue = iter(tuple(self._next_moves(base)))
                move = next((m for m in queue if m[1] not in self.tried), None)
                if move is None:
                    return None
            candidate = self._try(move[1], move[0])
            if candidate.passed:
                return candidate
            if candidate.excess is not None:
                # What fails as an engine tells more than what could not be built.
                base, queue = candidate, iter(())
        return None

    def _next_moves(self, base: Candidate) -> Iterable[tuple[str, Assignment]]:
        if base.excess is None:
            return self.moves.unbuildable(base)
        return [(step, base.keep | added) for step, added in self.moves.culprits(base)]

    def _confirmed(self, candidate: Candidate) -> bool:
        """Build the plan again until it has `builds` engines; return whether all passed.

        Builds in weak typing differ: one that passes may owe it to a tactic chosen by chance.
        """
        known = self.tried[candidate.keep]
        while len(known) < self.builds and all(c.passed for c in known):
            number = len(known) + 1
            self._attempt(candidate.keep, f"build {number} of {self.builds} of the same plan")
        return all(c.passed for c in known)

    def _shrink(self, ladder: list[Candidate]) -> bool:
        """Append candidates that keep less and pass; return whether no single node is left to try.

        Halves of the kept nodes first, then quarters, down to single nodes.
        """
        parts = 2
        while True:
            keep = ladder[-1].keep
            chunks = _split([n for n in self.order if n in keep], min(parts, len(keep)))
            for chunk in chunks:
                smaller = ladder[-1].keep - chunk
                if smaller in self.tried or not smaller:
                    continue
                if self.budget.left <= 0:
                    return False
                names = "node is" if len(chunk) == 1 else "nodes are"
                candidate = self._try(smaller, f"whether {len(chunk)} kept {names} needed")
                if candidate.passed:
                    ladder.append(candidate)
            if parts >= len(ladder[-1].keep) and ladder[-1].keep == keep:
                return True
            parts = 2 if ladder[-1].keep != keep and len(ladder[-1].keep) < parts else parts * 2

    def _settle(self, ladder: list[Candidate]) -> Candidate:
        """Return the last candidate of the ladder whose plan is confirmed, else the steadiest."""
        for candidate in reversed(ladder):
            if self._confirmed(candidate):
                return candidate
            known = self.tried[candidate.keep]
            self.notes.append(
                f"keeping {len(candidate.keep)} nodes passed in "
                f"{sum(c.passed for c in known)} of {len(known)} builds only"
            )
        return max(ladder, key=self._steadiness)

    def _steadiness(self, candidate: Candidate) -> float:
        known = self.tried[candidate.keep]
        return sum(c.passed for c in known) / len(known)

    def _faster(self, best: Candidate, plain: Candidate) -> Candidate:
        """Return the fastest candidate that passes, where `best` is slow: itself or wider ones."""
        if best.latency is None or plain.latency is None or not best.keep:
            return best
        limit = SLOW * plain.latency.median_ms
        chosen = best
        for name, keep in self.moves.wider(best.keep):
            assert chosen.latency is not None
            if chosen.latency.median_ms <= limit or self.budget.left <= 0:
                break
            if keep in self.tried:
                continue
            candidate = self._try(keep, f"wider islands: {name}")
            if not candidate.passed or candidate.latency is None:
                continue
            if candidate.latency.median_ms < chosen.latency.median_ms:
                chosen = candidate
        if chosen is not best and not self._confirmed(chosen):
            self.notes.append("a faster engine with wider islands did not pass in every build")
            return best
        return chosen


def _split(names: Sequence[NodeName], parts: int) -> list[Assignment]:
    """Return `names` in `parts` runs of nearly equal length."""
    edges = [round(i * len(names) / parts) for i in range(parts + 1)]
    return [frozenset(names[a:b]) for a, b in pairwise(edges) if b > a]
