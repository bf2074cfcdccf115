"""How long work will probably take, judging by finished work."""

from collections.abc import Mapping
from dataclasses import dataclass, field

WORK: Mapping[str, float] = {
    "load": 1.0,
    "check": 0.4,
    "reference": 2.2,
    "observe": 9.0,
    "emulate": 10.0,
    "judge": 9.0,
    "store": 12.0,
    "proof": 17.0,
    "compare": 11.0,
    "model": 0.6,
}
"""Work of each stage per node of the model, relative to loading it: measured on models of 500,
2,000 and 5,000 nodes of bench/scale.py, where single runs were off by up to 1.6 times. Models with
many samples or large tensors take longer in all stages but the first, so an estimate may be off by
a factor of two or three until the stage itself has run or is counted."""


@dataclass
class Paces:
    """Seconds of work so far.

    Attributes:
        known: For each kind of work, its total seconds and total size.
    """

    known: dict[str, tuple[float, int]] = field(default_factory=dict)

    def add(self, kind: str, size: int, seconds: float) -> None:
        """Record finished work; for kinds in `WORK`, `size` ≥ 1 is the number of nodes."""
        took, sizes = self.known.get(kind, (0.0, 0))
        self.known[kind] = took + seconds, sizes + size

    def expected(self, kind: str, size: int) -> float:
        """Return the seconds that work will probably take; 0 if nothing is known.

        The pace is that of earlier work of the same kind; otherwise, for kinds in `WORK`, that of
        the stages that have run.
        """
        if kind in self.known:
            took, sizes = self.known[kind]
            return took / sizes * size if sizes else 0.0
        staged = [(took, WORK[k] * sizes) for k, (took, sizes) in self.known.items() if k in WORK]
        units = sum(done for _, done in staged)
        if not units:
            return 0.0
        return sum(took for took, _ in staged) / units * WORK.get(kind, 0.0) * size
