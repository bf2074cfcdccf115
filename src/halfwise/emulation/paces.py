"""How long work will probably take, by what is over."""

from collections.abc import Mapping
from dataclasses import dataclass, field

WORK: Mapping[str, float] = {
    "load": 1.0,
    "reference": 1.0,
    "observe": 3.0,
    "statistics": 8.0,
    "emulate": 2.7,
    "judge": 2.4,
    "store": 3.3,
    "proof": 18.0,
    "compare": 5.4,
}
"""Work of stages per node of the model, where reading it is 1: measured once on 5,000 nodes of
bench/scale.py; `statistics` is all that `halfwise observe` counts.
Models with many samples or large tensors take longer in all but the first, so an estimate may be
off by two or three times until the stage counts."""


@dataclass
class Paces:
    """Seconds of work so far.

    Attributes:
        known: For each kind of work that has a size, its seconds and its size.
    """

    known: dict[str, tuple[float, int]] = field(default_factory=dict)

    def add(self, kind: str, size: int, seconds: float) -> None:
        """Take note of work that is over; `size` ≥ 1 is the number of nodes for kinds in `WORK`."""
        took, sizes = self.known.get(kind, (0.0, 0))
        self.known[kind] = took + seconds, sizes + size

    def expected(self, kind: str, size: int) -> float:
        """Return the seconds that work will probably take, 0 if nothing is known.

        It takes as long as earlier work of its kind, by size; else, if it is in `WORK`, as long as
        what is there took.
        """
        if kind in self.known:
            took, sizes = self.known[kind]
            return took / sizes * size if sizes else 0.0
        staged = [(took, WORK[k] * sizes) for k, (took, sizes) in self.known.items() if k in WORK]
        units = sum(done for _, done in staged)
        if not units:
            return 0.0
        return sum(took for took, _ in staged) / units * WORK.get(kind, 0.0) * size
