"""How likely plans are to pass, by the errors predicted for them and by what passed before."""

from math import log

import numpy as np

SPREAD = 0.17
"""Scale of a logistic distribution: how far, in logarithms, measured errors are from predicted
ones. A standard deviation of 0.3, as on the digits transformer and PP-OCRv3 in INT8."""
SURE = 1.0
"""Standard deviation, in logarithms, of the limit around where it is expected before any trial."""
WIDTH = 5.0
"""Logarithm of the largest over the smallest predicted error at which the limit may be."""
_PLACES = 200


class Odds:
    """Belief about the predicted error up to which plans pass: a distribution, learnt by trial."""

    def __init__(self, largest: float, expected: float | None) -> None:
        """Take the largest predicted error, > 0, and the limit's expected place, if there is one.

        Without one, the limit is equally likely anywhere below the largest, on a logarithmic scale.
        """
        top = log(largest)
        self._logs = np.linspace(top - WIDTH, top + 1.0, _PLACES)
        if expected is None:
            self._weights = (self._logs <= top).astype(float)
        else:
            self._weights = np.exp(-0.5 * ((self._logs - log(expected)) / SURE) ** 2)
        self._weights /= self._weights.sum()

    def chance(self, predicted: float) -> float:
        """Return the probability that a plan with this predicted error passes, in [0, 1]."""
        return float(self._weights @ self._passing(predicted))

    def learn(self, predicted: float, *, passed: bool) -> None:
        """Take the result of a trial."""
        passing = self._passing(predicted)
        weights = self._weights * (passing if passed else 1 - passing)
        # A result that nothing explains leaves the belief as it was.
        if (whole := weights.sum()) > 0:
            self._weights = weights / whole

    def _passing(self, predicted: float) -> np.ndarray:
        beyond = (self._logs - log(max(predicted, 1e-9))) / SPREAD
        return 1 / (1 + np.exp(-np.clip(beyond, -50, 50)))
