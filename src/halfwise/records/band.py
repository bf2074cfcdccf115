"""What low precision explains of an engine's error."""

from math import inf, log10

from halfwise.records.record import Record


class Band(Record):
    """The errors that low precision explains in an engine, over what the search may use.

    Attributes:
        least: The smallest of them, ≥ 0; 0 where the builder may compute all in FP32 by itself.
        most: The largest, ≥ `least`; inf where values overflow.
        may_overflow: Whether they overflow in one of the ways in which a builder may compute, and
            not in the way that is expected.
    """

    least: float
    most: float
    may_overflow: bool = False

    @property
    def decibels(self) -> float:
        """Its width, 20 log10(most / least): 0 where both are equal, inf where one is 0 or inf."""
        if self.least == self.most:
            return 0.0
        return 20 * log10(self.most / self.least) if self.least and self.most < inf else inf

    def explains(self, measured: float) -> bool:
        """Return whether low precision explains an error: it is no larger than the largest."""
        return measured <= self.most or (self.may_overflow and measured == inf)

    def holds(self, measured: float) -> bool:
        """Return whether an error is inside."""
        return measured >= self.least and self.explains(measured)
