"""Limits the work of the programs for exponents."""

from dataclasses import dataclass

_LARGEST = 10_000
"""Names of one program: above this, one may take minutes."""
WORK = 50_000
"""Names of all programs of one model together, counted once per program: about 10 s. Work is
limited, not time, so that the result is the same however busy a machine is."""


@dataclass
class Allowance:
    """Number of names that programs may still have."""

    left: int = WORK

    def covers(self, size: int) -> bool:
        """Return whether a program with this many names may be solved."""
        return size <= min(self.left, _LARGEST)
