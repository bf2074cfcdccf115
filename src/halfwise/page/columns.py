"""Compact columns for a page's data: repeated texts once, names without shared prefixes."""

from collections.abc import Iterable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")


class Interned(Generic[T]):
    """Values, each once; `Interned.of` gives a value's index."""

    def __init__(self) -> None:
        self._places: dict[T, int] = {}

    def of(self, value: T) -> int:
        """Return the index of `value` in `all`, appending it if new."""
        return self._places.setdefault(value, len(self._places))

    @property
    def all(self) -> list[T]:
        """All values, in order of first use."""
        return list(self._places)


def front_coded(names: Iterable[str]) -> list[int | str]:
    """Return for each name how many characters it shares with the previous one, and the rest.

    `names[i] = names[i - 1].slice(0, shared) + rest`; lengths are JavaScript's, where a character
    beyond 65,535 counts as two, so none of these is shared.
    """
    found: list[int | str] = []
    before = ""
    for name in names:
        pairs = zip(before, name, strict=False)
        least = min(len(before), len(name))
        shared = next((i for i, (a, b) in enumerate(pairs) if a != b), least)
        shared = 0 if max(name[:shared], default="") > "\uffff" else shared
        found += [shared, name[shared:]]
        before = name
    return found


def sparse(values: Sequence[T | None]) -> list[T | None]:
    """Return `values`, or an empty list if all are None."""
    return [] if all(value is None for value in values) else list(values)


def drawn(value: float | None) -> float | None:
    """Return `value`, also infinite or NaN, with the four significant digits that a chart needs."""
    return None if value is None else float(f"{value:.4g}")
