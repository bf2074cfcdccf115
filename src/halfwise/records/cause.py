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
"""What engines show about why nothing in the low format passed:

- "lost": the connection was lost in every build and run, so they show nothing;
- "no-engine": no build gave an engine;
- "refused": the builder refused every plan that the emulation predicts to pass, and the others are
  out of tolerance;
- "not-run": no engine runs;
- "ignored": the inspector shows constraints that were not honoured;
- "no-effect": the kept nodes change nothing in the engine;
- "kernel": an engine is off by more than low precision explains, but one with some more nodes in
  FP32 is not;
- "precision": the errors are those that low precision explains;
- "unknown": none of these.
"""


class Cause(Record):
    """One thing that engines show about why nothing in the low format passed.

    Attributes:
        kind: What it is.
        builds: Numbers of the builds that show it.
        nodes: "refused": where all of them were, if that is one place. "ignored": the nodes whose
            constraints were not honoured. "kernel": the nodes that are FP32 in the right engine but
            not in the wrong one.
        excess: Error of the engine that shows it relative to what the search allows, or of the
            nearest that was built; None with a metric.
        other: "no-effect": the error with nothing kept. "unknown": the error that the emulation
            predicts.
        band: Errors that low precision explains in that engine; None if unknown.
    """

    kind: CauseKind
    builds: tuple[int, ...] = ()
    nodes: tuple[NodeName, ...] = ()
    excess: float | None = None
    other: float | None = None
    band: Band | None = None
