"""What a report consists of; how it is drawn is decided elsewhere.

Every string in it is clean: one line, no control characters (see `wording`).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from halfwise.wording import sentence

MOST_ROWS = 12
"""Rows that a table of one report has at most; beyond it they are grouped or counted."""


@dataclass(frozen=True)
class Lines:
    """Sentences under a title.

    Attributes:
        title: What they are about.
        lines: The sentences.
        whole: Whether lines must not be wrapped, because they hold commands to copy.
    """

    title: str
    lines: tuple[str, ...]
    whole: bool = False


@dataclass(frozen=True)
class Column:
    """Heading of a column; figures stand to the right."""

    title: str
    align: Literal["left", "right"] = "left"


@dataclass(frozen=True)
class Table:
    """Rows under a title, as many cells in each as there are columns."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]

    def without_empty_columns(self) -> "Table":
        """Return this table without the columns that say nothing in any row."""
        used = [i for i in range(len(self.columns)) if any(row[i] for row in self.rows)]
        return Table(
            self.title,
            tuple(self.columns[i] for i in used),
            tuple(tuple(row[i] for i in used) for row in self.rows),
        )


def cut(
    rows: Sequence[tuple[str, ...]], whole: int | None = None, *, column: int = 0
) -> tuple[tuple[str, ...], ...]:
    """Return at most `MOST_ROWS` rows, and one that counts those that are left out.

    Args:
        rows: The rows, or the first of them.
        whole: How many there are; None for as many as are given.
        column: Where the last row has its words.
    """
    shown = tuple(rows[:MOST_ROWS])
    left = (len(rows) if whole is None else whole) - len(shown)
    if left <= 0:
        return shown
    return (*shown, tuple(f"and {left} more" * (i == column) for i in range(len(shown[0]))))


def lines_of(title: str, lines: Iterable[str]) -> Lines | None:
    """Return sentences, made clean, under a title; None where there are none."""
    told = tuple(map(sentence, lines))
    return Lines(title, told) if told else None


def present(*parts: Lines | Table | None) -> tuple[Lines | Table, ...]:
    """Return the parts that there are."""
    return tuple(part for part in parts if part is not None)


@dataclass(frozen=True)
class Report:
    """A whole report.

    Attributes:
        title: The result in one line.
        passed: Whether it is good; None where nothing was judged.
        about: What was judged, in one line.
        parts: The rest, in reading order.
        caution: What the result alone would lead to misjudge, in one line; mostly empty.
    """

    title: str
    passed: bool | None
    about: str
    parts: tuple[Lines | Table, ...]
    caution: str = ""
