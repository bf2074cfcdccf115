"""The search for a plan in real engines: the emulation proposes, the engine decides.

Knows engines only through `attempt`, which builds one and measures it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf
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
        failure: Why there is an engine that did not run; empty otherwise.
    """

    keep: Assignment
    step: str
    build: BuildOutcome
    excess: float | None = None
    latency: Latency | None = None
    failure: str = ""

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
        order: Nodes that a plan may keep or not, in graph order.
        budget: Builds that may still be spent on new plans.
        builds: Builds of a plan before it counts as confirmed.
        ruled: Nodes that the user's rules keep: no plan that is delivered is without them.
    """

    attempt: Callable[[Assignment, str], Candidate]
    moves: Moves
    order: Sequence[NodeName]
    budget: Budget
    builds: int
    ruled: Assignment = frozenset()
    tried: dict[Assignment, list[Candidate]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def run(self, start: Assignment) -> Chosen:
        """Search from the plan that the emulation found."""
        return self._search(self._try(start, "the plan of the emulation"))

    def again(self, start: Assignment, measure: Callable[[Candidate], Candidate]) -> Chosen:
        """Go on from a plan that was built, where there are further samples to pass.

        `measure` gives a candidate with its error on all of them.
        """
        self.tried = {keep: [measure(c) for c in group] for keep, group in self.tried.items()}
        plans = {keep: group for keep, group in self.tried.items() if keep >= self.ruled}
        passing = [keep for keep, group in plans.items() if all(c.passed for c in group)]
        known = start if start in passing else min(passing, key=len, default=start)
        return self._search(min(self.tried[known], key=lambda c: c.passed))

    def _search(self, first: Candidate) -> Chosen:
        best = first if first.passed else self._repair(first)
        plain = self._plain()
        settled, minimal = None, False
        while best is not None and settled is None:
            ladder = [best]
            minimal = not best.keep
            if best.keep and not self.ruled and plain.passed and self._confirmed(plain):
                ladder.append(plain)
                minimal = True
            elif best.keep:
                minimal = self._shrink(ladder)
            settled = self._settle(ladder)
            minimal = minimal and settled is not None and settled.keep == ladder[-1].keep
            if settled is None:  # it owed it to chance
                best = self._repair(next(c for c in self.tried[best.keep] if not c.passed))
        if settled is None:
            return Chosen(None, plain, (), False, tuple(self.notes))
        faster = self._faster(settled, plain)
        excesses = tuple(c.excess for c in self.tried[faster.keep] if c.excess is not None)
        return Chosen(faster, plain, excesses, minimal and faster is settled, tuple(self.notes))

    def closest(self) -> Candidate | None:
        """Return the candidate with the smallest error of those that run; None where none does."""
        ran = [c for group in self.tried.values() for c in group if c.excess is not None]
        return min(ran, key=lambda c: c.excess or 0.0, default=None)

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
        queue = self._next_moves(failed)
        while self.budget.left > 0:
            # Looking for the next move may take builds of its own.
            move = next((m for m in queue if m[1] not in self.tried), None)
            if move is None or self.budget.left <= 0:
                return None
            candidate = self._try(move[1], move[0])
            if candidate.passed:
                return candidate
            if candidate.excess is not None:
                # What fails as an engine tells more than what could not be built.
                queue = self._next_moves(candidate)
        return None

    def _next_moves(self, base: Candidate) -> Iterator[tuple[str, Assignment]]:
        if base.excess is None:
            yield from self.moves.unbuildable(base)
            return
        for step, added in self.moves.culprits(base):
            yield step, base.keep | added

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

    def _settle(self, ladder: list[Candidate]) -> Candidate | None:
        """Return the fastest engine of the smallest plan that is confirmed, else of the steadiest.

        None where that one fails in half of its builds: another engine of it would fail too.
        """
        for candidate in reversed(ladder):
            if self._confirmed(candidate):
                return self._fastest(candidate)
            known = self.tried[candidate.keep]
            self.notes.append(
                f"keeping {len(candidate.keep)} nodes passed in "
                f"{sum(c.passed for c in known)} of {len(known)} builds only"
            )
        steadiest = max(ladder, key=self._steadiness)
        return self._fastest(steadiest) if self._steadiness(steadiest) > 1 / 2 else None

    def _fastest(self, candidate: Candidate) -> Candidate:
        """Return the fastest engine of a candidate's plan that passes."""
        passed = (c for c in self.tried[candidate.keep] if c.passed)
        return min(passed, key=lambda c: inf if c.latency is None else c.latency.median_ms)

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
        return self._fastest(chosen)


def _split(names: Sequence[NodeName], parts: int) -> list[Assignment]:
    """Return `names` in `parts` runs of nearly equal length."""
    edges = [round(i * len(names) / parts) for i in range(parts + 1)]
    return [frozenset(names[a:b]) for a, b in pairwise(edges) if b > a]
