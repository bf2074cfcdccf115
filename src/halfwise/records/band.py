"""The part of an engine's error that low precision explains."""

from math import inf, log10

from halfwise.records.record import Record


class Band(Record):
    """Errors that low precision explains in an engine, relative to what the search allows.

    Attributes:
        least: The smallest, ≥ 0; 0 if the builder may compute everything in FP32.
        most: The largest, ≥ `least`; inf if values overflow.
        may_overflow: Whether values overflow in one of the ways in which a builder may compute, but
            not in the expected one.
    """

    least: float
    most: float
    may_overflow: bool = False

    @property
    def decibels(self) -> float:
        """Its width, 20 log10(most / least): 0 if both are equal, inf if one is 0 or inf."""
        if self.least == self.most:
            return 0.0
        return 20 * log10(self.most / self.least) if self.least and self.most < inf else inf

    def explains(self, measured: float) -> bool:
        """Return whether low precision explains an error: it is at most `most`."""
        return measured <= self.most or (self.may_overflow and measured == inf)

    def holds(self, measured: float) -> bool:
        """Return whether an error is inside the band."""
        return measured >= self.least and self.explains(measured)
