"""What a search needs, and what it finds."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Protocol

from halfwise.records import LEAST_DEARER, NodeName, Remark

Nodes = frozenset[NodeName]


class Trial(Protocol):
    """What the search needs to know about a trial."""

    @property
    def passed(self) -> bool:
        """Whether the assignment is acceptable."""

    @property
    def excess(self) -> float:
        """Error relative to what is allowed; above 1 fails."""

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
        nonfinite_without: Those nodes that give new NaN or infinities when lowered.
        contributions: Per node, what it or its group contributes alone, if measured.
        exhausted: Whether the budget ended the search.
        steps: Remarks on what happened.
        spare: Kept nodes that a smaller plan lowers, which passes too but costs more.
        r2: R² of predicted against actual differences between plans; None if unknown.
    """

    kept: Nodes
    passed: bool
    minimal: bool
    excess_without: Mapping[NodeName, float]
    nonfinite_without: Nodes
    contributions: Mapping[NodeName, float]
    exhausted: bool
    steps: tuple[Remark, ...]
    r2: float | None = None
    spare: Nodes = frozenset()

    @property
    def needed(self) -> Nodes:
        """The kept nodes, without those kept only because less would cost more."""
        return self.kept - self.spare

    @property
    def futile(self) -> bool:
        """Whether a search for this model ended early because no plan that passes gains."""
        return any(step.kind == "futile" for step in self.steps)


class Hopeless(Exception):
    """Everything in FP32 fails, perhaps against expectation."""


LARGER = 1.1
"""The next earlier passing plan to try is this much larger than the one that failed."""
LAST = 8
"""About this many are tried after the first; then only all of FP32 is left."""


def clearly_cheaper(
    plans: Sequence[Nodes],
    price: Callable[[Nodes], float | None],
    kept: Nodes,
    everything: Nodes,
) -> list[Nodes]:
    """Return the plans that cost clearly less than `kept`, and less than everything kept.

    Lowering one more node may add Casts, or Q/DQ pairs, that cost more than it saves. Of plans that
    gain nothing over everything kept, none is preferred to one with fewer nodes.
    """
    own, most = price(kept), price(everything)
    if own is None or most is None:
        return []
    most = min(most, own / LEAST_DEARER)
    return [plan for plan in plans if (price(plan) or inf) < most]


def confirmed(
    plans: Sequence[Nodes],
    rank: Callable[[Nodes], tuple[float, ...]],
    best: Nodes,
    evaluate: Evaluate,
    everything: Nodes,
) -> Nodes:
    """Return a small plan that passes on all samples and ranks below `best`, else `best`.

    Args:
        plans: Plans that passed, at least on the worst samples.
        rank: The rank of a plan; lower is better.
        best: A plan known to pass.
        evaluate: Evaluates a plan.
        everything: All nodes that a plan may keep.
    """
    larger, tried = LARGER, 0.0
    for kept in sorted(dict.fromkeys(plans), key=rank):
        if larger * tried <= len(kept) and rank(kept) < rank(best):
            if evaluate(kept, confirm=True).passed:
                return kept
            if kept and not tried:
                larger = max(LARGER, (len(everything) / len(kept)) ** (1 / LAST))
            tried = float(len(kept))
    return best
