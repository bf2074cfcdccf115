"""What engines show about why nothing of the low format passed."""

from typing import Literal

from halfwise.records.band import Band
from halfwise.records.record import NodeName, Record

CauseKind = Literal[
    "lost",
    "no-engine",
    "refused",
    "not-run",
    "ignored",
    "no-effect",
    "kernel",
    "precision",
    "unknown",
]
"""What engines show about why nothing of the low format passed: the connection was lost in every
build and run, so none shows anything; no build gave an engine; the builder refused every plan that
the emulation predicts to pass, and others are off; none of
them runs; the inspector shows constraints that were not honoured; what is kept changes nothing
in the engine; an engine is off by more than low precision explains, and one that has some nodes
more in FP32 is not; the errors are those that low precision explains; nothing of all this."""


class Cause(Record):
    """One thing that engines show about why nothing of the low format passed.

    Attributes:
        kind: What it is.
        builds: Numbers of the builds that show it.
        nodes: "refused": where all of them were, if that is one place. "ignored": the
            nodes whose constraints were not honoured. "kernel": those
            that the engine that is right has in FP32 beyond those of the one that is wrong.
        excess: Error of the engine that shows it over what the search may use, or of the nearest
            that was built; None with a metric.
        other: "no-effect": the error with nothing kept. "unknown": what the emulation
            predicts.
        band: What low precision explains in that engine; None where that cannot be told.
    """

    kind: CauseKind
    builds: tuple[int, ...] = ()
    nodes: tuple[NodeName, ...] = ()
    excess: float | None = None
    other: float | None = None
    band: Band | None = None
