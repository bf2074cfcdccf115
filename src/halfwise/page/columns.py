"""Columns of a page's data, short: texts that occur often once, names without what they share."""

from collections.abc import Iterable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")


class Interned(Generic[T]):
    """Values, each once; `Interned.of` gives the place of one."""

    def __init__(self) -> None:
        self._places: dict[T, int] = {}

    def of(self, value: T) -> int:
        """Return the place of `value` in `all`, at the end where it is new."""
        return self._places.setdefault(value, len(self._places))

    @property
    def all(self) -> list[T]:
        """Every value, in the order in which they came."""
        return list(self._places)


def front_coded(names: Iterable[str]) -> list[int | str]:
    """Return for each name how many characters it shares with the one before, and the rest.

    `names[i] = names[i - 1].slice(0, shared) + rest`; characters are those of JavaScript, where one
    beyond 65,535 counts as two, so no name shares such a one.
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
    """Return `values`, or nothing where all are None."""
    return [] if all(value is None for value in values) else list(values)


def drawn(value: float | None) -> float | None:
    """Return `value`, also infinite or NaN, as a chart takes it: four significant digits."""
    return None if value is None else float(f"{value:.4g}")
