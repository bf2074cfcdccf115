"""The words and parts of a report, independent of how it is drawn.

`words.toml` has the words of every kind of fact: a template for each kind in each group.

Every string in it is clean: one line, no control characters (see `wording`).
"""

import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Literal, TypeVar

from msgspec import Struct

from halfwise.records import replace
from halfwise.wording import FEW, MOST_ROWS, clean, filled, number, sentence, shorten

WORDS: Mapping[str, Mapping[str, str]] = tomllib.loads(
    Path(__file__).with_name("words.toml").read_text(encoding="utf-8")
)
"""Templates by group and kind, see `wording.filled`."""
PRECISIONS: Mapping[str, str] = WORDS["precision"]
"""Names of formats, and of the rungs of a ladder."""


def say(group: str, kind: str, /, *sources: object, **facts: object) -> str:
    """Return the words of a fact: the template of its kind, filled.

    Args:
        group: A table of `words.toml`.
        kind: An entry of it.
        sources: Records and mappings with facts of the template.
        facts: Further facts by name, which override those of the sources.

    Raises:
        KeyError: the template asks for a fact that is not given.
    """
    return filled(WORDS[group][kind], *sources, facts)


T = TypeVar("T")
SCREEN, NARROW = 24, 80
"""Most lines and columns of a report's first screen, whatever it is printed on."""


class Lines(Struct, frozen=True):
    """Sentences under a title.

    Attributes:
        title: Their subject.
        lines: The sentences.
        whole: Whether lines must not be wrapped, because they hold commands to copy.
        first: Whether a first screen cuts it last.
        hidden: How many more lines the whole report has.
    """

    title: str
    lines: tuple[str, ...]
    whole: bool = False
    first: bool = False
    hidden: int = 0

    @property
    def shown(self) -> tuple[str, ...]:
        """The lines, and one that counts the hidden ones."""
        more = (f"… and {self.hidden} more: --full",) if self.hidden and not self.whole else ()
        return self.lines + more


class Column(Struct, frozen=True):
    """Heading of a column.

    Attributes:
        title: Its words.
        align: Figures are right-aligned.
        width: Most characters of a cell on a terminal; None for all.
        minor: Whether a page shows it only where all columns have room.
    """

    title: str
    align: Literal["left", "right"] = "left"
    width: int | None = None
    minor: bool = False


class Table(Struct, frozen=True):
    """Rows under a title, as many cells in each as there are columns.

    Attributes:
        title: Their subject.
        columns: Their headings.
        rows: All rows: a page shows them, and its CSV file holds them.
        most: Most rows on a terminal, and on a page at first; None for all.
        note: What the figures are, next to the title.
    """

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    most: int | None = None
    note: str = ""

    @property
    def first(self) -> int:
        """How many rows a terminal shows, and a page at first."""
        return min(len(self.rows), len(self.rows) if self.most is None else self.most)

    @property
    def shown(self) -> tuple[tuple[str, ...], ...]:
        """The rows on a terminal, and one that counts the others."""
        rows = tuple(
            tuple(
                cell if column.width is None else shorten(cell, column.width)
                for cell, column in zip(row, self.columns, strict=True)
            )
            for row in self.rows[: self.first]
        )
        if not (hidden := len(self.rows) - self.first):
            return rows
        words = next((i for i, c in enumerate(self.columns) if c.align == "left"), 0)
        return (*rows, tuple(f"and {hidden} more" * (i == words) for i in range(len(self.columns))))

    def only(self, used: Sequence[int]) -> "Table":
        """Return this table with some of its columns."""

        def of(row: tuple[T, ...]) -> tuple[T, ...]:
            return tuple(row[i] for i in used)

        return replace(self, columns=of(self.columns), rows=tuple(map(of, self.rows)))


Row = TypeVar("Row")
Columns = Sequence[tuple[Column, Callable[[Row], str]]]


def table_of(
    title: str, rows: Iterable[Row], columns: Columns[Row], most: int | None = None, note: str = ""
) -> Table | None:
    """Return a table of records, each column with what shows its cell; None without rows.

    Columns without any cell are left out.
    """
    cells = tuple(tuple(show(row) for _, show in columns) for row in rows)
    heads = tuple(column for column, _ in columns)
    used = [i for i in range(len(heads)) if any(row[i] for row in cells)]
    return Table(title, heads, cells, most, note=note).only(used) if cells else None


N = TypeVar("N", int, float)


def known(value: N | None, show: Callable[[N], str] = number) -> str:
    """Return a number; "" if it is unknown."""
    return "" if value is None else show(value)


def lines_of(title: str, lines: Iterable[str], *, first: bool = False) -> Lines | None:
    """Return cleaned sentences under a title, without empty ones; None if there are none."""
    sentences = tuple(map(sentence, filter(None, lines)))
    return Lines(title, sentences, first=first) if sentences else None


def first_of(lines: Sequence[str], more: str = "more", most: int = FEW) -> list[str]:
    """Return the first `most` lines, then how many `more` there are."""
    rest = len(lines) - most
    return [*lines[:most], f"And {rest} {more}."] if rest > 0 else list(lines)


def commands(title: str, steps: tuple[str, ...]) -> Lines | None:
    """Return as many first steps as a quarter of a first screen holds; commands stay whole."""
    told = [*map(clean, steps)]
    rows = accumulate(-(-len(step) // (NARROW - 2)) for step in told)
    shown = tuple(step for step, used in zip(told, rows, strict=True) if used <= SCREEN // 4)
    return Lines(title, shown, whole=True) if shown else None


def present(*parts: Lines | Table | None) -> tuple[Lines | Table, ...]:
    """Return the parts that are not None."""
    return tuple(part for part in parts if part is not None)


class Report(Struct, frozen=True):
    """A whole report.

    Attributes:
        title: The result in one line.
        passed: Whether the result is good; None if nothing was judged, or if what passed is the
            FP32 model.
        about: What was judged, in one line.
        parts: The rest, in reading order.
        caution: Warning against misreading the result, in one line; mostly empty.
        reason: Why the result is what it is, in one sentence; "" if the title says it.
    """

    title: str
    passed: bool | None
    about: str
    parts: tuple[Lines | Table, ...]
    caution: str = ""
    reason: str = ""


LONGEST = 4 * NARROW
"""Most characters of a sentence on a first screen."""


def brief(report: Report) -> Report:
    """Return a report with overlong sentences truncated; commands stay whole."""
    parts = (
        replace(part, lines=tuple(map(_cut, part.lines)))
        if isinstance(part, Lines) and not part.whole
        else part
        for part in report.parts
    )
    return Report(
        _cut(report.title),
        report.passed,
        _cut(report.about),
        tuple(parts),
        _cut(report.caution),
        _cut(report.reason),
    )


def _cut(text: str) -> str:
    """Return the first sentences or clauses of a text, where all of it is too long."""
    if len(text) <= LONGEST:
        return text
    start = text[:LONGEST]
    end = max(map(start.rfind, (". ", "; ", " · ")))
    end = end if end > 0 else start.rfind(" ")
    return f"{start[:end] if end > 0 else start}. More: --full."


def shortened(report: Report) -> Report | None:
    """Return a report without the end of its longest list, or without a part; else None.

    The first command to copy stays; tables stay while lists of sentences or commands can go.
    """
    longest = max(report.parts, key=_spare, default=None)
    if longest is None or _spare(longest) == (0, 0):
        return None
    shorter: Lines | Table | None = None
    if isinstance(longest, Lines) and len(longest.lines) > 1:
        hidden = longest.hidden + 1
        shorter = replace(longest, lines=longest.lines[:-1], hidden=hidden)
    if isinstance(longest, Table) and longest.first > 1:
        shorter = replace(longest, most=min(longest.first - 1, 2 * MOST_ROWS))
    return replace(report, parts=present(*(shorter if p is longest else p for p in report.parts)))


def _spare(part: Lines | Table) -> tuple[int, int]:
    """Return what can go first: lists, commands, tables, one-liners, the result, small tables."""
    lines = len(part.shown if isinstance(part, Table) else part.lines)
    if isinstance(part, Table):
        return (2, lines) if lines > FEW else (0, 1)
    if part.first or (part.whole and lines == 1):
        return 0, 2 * int(lines > 1)
    return (3 if part.whole else 4 if lines > 1 else 1), lines
