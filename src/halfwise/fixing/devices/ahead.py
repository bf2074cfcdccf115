"""Predicts what a search will build next, so that idle workers of the same kind can start it."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import repeat

from halfwise.fixing.engines.attempts import Assignment, Candidate
from halfwise.fixing.engines.search import EngineSearch
from halfwise.fixing.engines.terms import USUAL
from halfwise.fixing.engines.units import Units
from halfwise.records import NodeName

Expect = Callable[[Iterable[Assignment]], None]
"""Takes what may be built next, most likely first, until the next call."""
Passes = Callable[[Assignment], bool | None]


class _Asked(Exception):
    """A search asks for something not known yet."""

    def __init__(self, keep: Assignment) -> None:
        super().__init__()
        self.keep = keep


def next_asked(
    search: Callable[[Passes], object], known: Mapping[Assignment, bool | None]
) -> Iterator[Assignment]:
    """Yield the sets that a search asks for next, each assuming all before it failed.

    Args:
        search: Asks for sets in an order that depends only on the answers.
        known: The answers so far.
    """
    answers = dict(known)

    def answered(keep: Assignment) -> bool | None:
        if keep not in answers:
            raise _Asked(keep)
        return answers[keep]

    while True:
        try:
            search(answered)
        except _Asked as asked:
            answers[asked.keep] = False
            yield asked.keep
        else:
            return


@dataclass(frozen=True)
class ForeseenUnits(Units):
    """Units that announce the next sets while searching for the smallest.

    Attributes:
        expect: Receives what is requested next if the current request fails.
    """

    expect: Expect = lambda _: None

    def smallest(
        self, keep: Assignment, order: Sequence[NodeName], ruled: Assignment, passes: Passes
    ) -> tuple[Assignment, bool]:
        """Return what `Units.smallest` does."""
        answers: dict[Assignment, bool | None] = {}
        plain = Units(self.all, self.start)

        def search(told: Passes) -> object:
            return plain.smallest(keep, order, ruled, told)

        def told(some: Assignment) -> bool | None:
            if some not in answers:
                self.expect(next_asked(search, {**answers, some: False}))
                answers[some] = passes(some)
            return answers[some]

        try:
            return plain.smallest(keep, order, ruled, told)
        finally:
            self.expect(())


@dataclass
class ForeseeingSearch(EngineSearch):
    """A search that announces what it will probably build next.

    Attributes:
        expect: Receives the announcements.
    """

    expect: Expect = lambda _: None

    @classmethod
    def of(cls, search: EngineSearch, expect: Expect) -> "ForeseeingSearch":
        """Return the same search, announcing to `expect`."""
        found = cls(**{f.name: getattr(search, f.name) for f in fields(search)}, expect=expect)
        units = search.units
        found.units = ForeseenUnits(units.all, units.start, found._expect_new)
        return found

    def _expect_new(self, sets: Iterable[Assignment]) -> None:
        self.expect(keep for keep in sets if not self._is_known(keep))

    def _is_known(self, keep: Assignment) -> bool:
        """Return whether a set will not be built: it was already, or is known to fail."""
        tried = any(keep == plan[0] for plan in self.tried)
        return tried or not keep or self._pointless((keep, USUAL)) or self._hopeless(keep)

    def _confirmed(self, candidate: Candidate) -> bool:
        further = self.builds - len(self.tried[candidate.plan]) - 1
        if further > 0:
            self.expect(repeat(candidate.keep, further))
        return super()._confirmed(candidate)
