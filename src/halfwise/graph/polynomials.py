"""Polynomials in a tensor x, its mean, the mean of its squares, and a reciprocal root.

However a normalisation is written, it is such a polynomial, and always the same one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Powers = tuple[int, int, int, int]
"""Exponents of x, mean(x), mean(x²), and 1/sqrt(variance or mean square + eps)."""

ONE: Powers = (0, 0, 0, 0)
X: Powers = (1, 0, 0, 0)
MEAN: Powers = (0, 1, 0, 0)
MEAN_SQUARED: Powers = (0, 2, 0, 0)
SQUARES: Powers = (0, 0, 1, 0)
INVERSE: Powers = (0, 0, 0, 1)
ROOT: Powers = (0, 0, 0, -1)
SCALED: Powers = (1, 0, 0, 1)
OFFSET: Powers = (0, 1, 0, 1)

_HIGHEST = 4
"""Highest power; no normalisation has a term of a higher one."""
_LARGEST = 1 << 20
"""Most elements of a coefficient; weights of normalisations are far smaller."""


@dataclass(frozen=True)
class Polynomial:
    """A sum of terms; zero if there are none.

    Attributes:
        terms: Coefficient by powers: f64, any shape that broadcasts to x.
        flat: Whether the reduced axes are dropped, rather than kept with size 1.
    """

    terms: Mapping[Powers, Array]
    flat: bool = False

    def __add__(self, other: "Polynomial") -> "Polynomial | None":
        """Return the sum; None if only one of the two has the reduced axes, or it is too large."""
        terms = dict(self.terms)
        for powers, coefficient in other.terms.items():
            terms[powers] = terms[powers] + coefficient if powers in terms else coefficient
        return _joined(self, other, terms)

    def __mul__(self, other: "Polynomial") -> "Polynomial | None":
        """Return the product; None as for sums, or if a power is too high."""
        terms: dict[Powers, Array] = {}
        for ours, a in self.terms.items():
            for theirs, b in other.terms.items():
                x, mean, squares, inverse = (i + j for i, j in zip(ours, theirs, strict=True))
                powers = (x, mean, squares, inverse)
                if max(map(abs, powers)) > _HIGHEST:
                    return None
                terms[powers] = terms[powers] + a * b if powers in terms else a * b
        return _joined(self, other, terms)

    def scaled(self, factor: float) -> "Polynomial":
        """Return the polynomial times a number."""
        return Polynomial({p: factor * c for p, c in self.terms.items()}, self.flat)

    def reciprocal(self) -> "Polynomial | None":
        """Return 1 / self; None unless that is a polynomial."""
        if len(self.terms) != 1:
            return None
        ((powers, coefficient),) = self.terms.items()
        if powers[:3] != ONE[:3] or not coefficient.all():
            return None
        return Polynomial({(0, 0, 0, -powers[3]): 1 / coefficient}, self.flat)

    def mean(self) -> "Polynomial | None":
        """Return the mean over the reduced axes, which are kept; None if not a polynomial."""
        terms: dict[Powers, Array] = {}
        for (x, mean, squares, inverse), coefficient in self.terms.items():
            if x > 2 or coefficient.size > 1:
                return None
            powers = (0, mean + (x == 1), squares + (x == 2), inverse)
            terms[powers] = terms.get(powers, np.float64(0)) + coefficient
        return _cleaned(terms, flat=self.flat)

    def number(self, powers: Powers) -> float | None:
        """Return a coefficient that is a single number (0 for an absent term), else None."""
        coefficient = self.terms.get(powers)
        if coefficient is None:
            return 0.0
        return float(coefficient.reshape(-1)[0]) if coefficient.size == 1 else None

    @property
    def is_statistic(self) -> bool:
        """Whether it is constant along the reduced axes: no x, and only numbers as coefficients."""
        return all(p[0] == 0 and c.size == 1 for p, c in self.terms.items())

    @property
    def is_number(self) -> bool:
        """Whether it is a single number."""
        return self.terms.keys() <= {ONE} and self.is_statistic


def constant(array: NDArray[Any]) -> Polynomial | None:
    """Return a constant tensor as a polynomial; None if too large for a weight."""
    if array.size > _LARGEST:
        return None
    return _cleaned({ONE: np.asarray(array, np.float64)}, flat=False)


def _joined(one: Polynomial, other: Polynomial, terms: Mapping[Powers, Array]) -> Polynomial | None:
    if one.flat != other.flat and not (one.is_number or other.is_number):
        return None
    flat = (one.flat and not one.is_number) or (other.flat and not other.is_number)
    if flat and any(c.size > 1 for c in terms.values()):
        return None
    return _cleaned(terms, flat=flat)


def _cleaned(terms: Mapping[Powers, Array], *, flat: bool) -> Polynomial | None:
    if any(c.size > _LARGEST for c in terms.values()):
        return None
    return Polynomial({p: np.asarray(c) for p, c in terms.items() if np.any(c)}, flat)
