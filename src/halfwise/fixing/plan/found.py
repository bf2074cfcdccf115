"""What a search needs, and what it finds."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from halfwise.records import NodeName, Remark

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
