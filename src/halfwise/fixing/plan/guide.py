"""Plans to try if nothing stands out: those of least predicted cost for their error."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from math import inf, log

import numpy as np

from halfwise.fixing.plan.cut import Cut, Terms
from halfwise.fixing.plan.sites import Site, Sites, explained
from halfwise.records import NodeName

Nodes = frozenset[NodeName]

TRUSTED = 0.8
"""R² below which predictions choose nothing."""
WEIGHTS = tuple(10.0 ** (i / 8 - 4) for i in range(96))
"""Prices of all error, in multiples of all other costs: from keeping nothing to everything."""
EARLY = 2
"""Plans between the cheapest and the first that may pass, tried for information."""
TRIALS = 5
"""Maximum number of plans tried each time that contributions are refined twofold."""


class Guide:
    """Predicts errors of plans from contributions, and proposes plans.

    Attributes:
        explained: Last value returned by `r2`; None before.
        is_fitted: Whether contributions were taken.
    """

    def __init__(self, sites: Sequence[Site], terms: Callable[[], Terms]) -> None:
        """Take where values are rounded, and the terms of costs."""
        self._all, self._terms = tuple(sites), terms
        self._sites = Sites(sites)
        self.explained: float | None = None
        self.is_fitted = False

    @cached_property
    def _cut(self) -> Cut:
        return Cut(self._terms(), self._all)

    def fit(self, contributions: Mapping[Nodes, float]) -> None:
        """Fit to the errors of assignments, given by their low nodes."""
        self._sites.fit(contributions)
        self.is_fitted = True

    def predicted(self, low: Nodes) -> float:
        """Return the excess expected with these nodes low; 0 before any fit."""
        return self._sites.predicted(low)

    def merit(self, low: Nodes, node: NodeName, saved: float) -> float:
        """Return the squared error that lowering one more node adds per unit of cost saved.

        Infinite if it saves none.
        """
        added = self.predicted(low | {node}) ** 2 - self.predicted(low) ** 2
        return added / saved if saved > 0 else inf

    def plans(self, nodes: Nodes, always: Nodes) -> list[Nodes]:
        """Return plans that keep `always` and some of `nodes`; the cheapest and worst first."""

        @cache
        def kept(place: int) -> Nodes:
            found = self._cut.kept(self._sites.added, WEIGHTS[place], always)
            return found & nodes | always

        def between(first: int, last: int) -> list[Nodes]:
            # A larger weight only grows a plan.
            if last - first < 2 or kept(first) == kept(last):
                return [kept(first), kept(last)]
            middle = (first + last) // 2
            return [*between(first, middle), *between(middle, last)]

        return list(dict.fromkeys(between(0, len(WEIGHTS) - 1)))

    def cheapest(self, always: Nodes) -> Nodes:
        """Return the plan of least cost of all that keep at least `always`."""
        return self._cut.kept(np.zeros(len(self._all)), 0.0, always)

    def r2(self, tried: Iterable[tuple[Nodes, float]]) -> float | None:
        """Return R², the share of differences between errors that predictions explain, if known.

        Args:
            tried: Low nodes and excess, of assignments that were not fitted.
        """
        self.explained = explained([(self.predicted(low), excess) for low, excess in tried])
        return self.explained


def aims(errors: Sequence[float], limit: float = 1.0, *, first: bool) -> Iterator[float | None]:
    """Yield the predicted errors of the plans to try; None for the middle.

    Args:
        errors: Predicted errors of all plans, relative to what is allowed.
        limit: The predicted error at which plans are expected to just pass.
        first: Whether no plan was tried yet. Then some far from the limit come first.
    """
    largest = max(errors, default=0.0)
    if first and largest > 2:
        yield from (largest ** (1 - part / (EARLY + 1)) for part in range(1, EARLY + 1))
    yield limit
    yield from [None] * (TRIALS - 1)


def nearest(errors: Sequence[float], failing: int, passing: int, aim: float | None) -> int:
    """Return the index of the plan to try, between one that failed and one that passed.

    Args:
        errors: Predicted errors, falling.
        failing: An index, or -1 if none failed.
        passing: An index beyond `failing` + 1, or one past the last if none passed.
        aim: The error to look for; None for the middle between both.
    """
    logs = [log(max(error, 1e-3)) for error in errors]
    middle = (logs[max(failing, 0)] + logs[min(passing, len(logs) - 1)]) / 2
    wanted = middle if aim is None else log(aim)
    return min(range(failing + 1, passing), key=lambda i: abs(logs[i] - wanted))
