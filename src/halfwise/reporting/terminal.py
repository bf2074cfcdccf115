"""Draw reports on a terminal with rich.

Everything is printed as plain `Text`: a model's strings must not become markup.
"""

import io
import sys
from collections.abc import Mapping
from textwrap import fill
from typing import TextIO

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from halfwise.reporting.parts import Lines, Report, Table, brief, shortened
from halfwise.wording import clean

WIDTH = 100
"""Columns used if the terminal has as many; a file or pipe does."""
SCREEN, NARROW = 24, 80
"""Most lines and columns of a report's first screen, whatever it is printed on."""


def print_report(report: Report, more: str = "") -> None:
    """Print a report to standard output, and below it where to find more."""
    console = terminal(sys.stdout)
    _draw(report, console)
    if more:
        console.print(Text(clean(more), style="dim"), soft_wrap=True)


def print_verdict(report: Report) -> None:
    """Print only the verdict of a report, on one line, to standard output."""
    terminal(sys.stdout).print(Text(report.title), soft_wrap=True)


def fitted(report: Report, more: str) -> Report:
    """Return as much of a report as fits one screen, without the ends of its lists.

    Args:
        report: The report.
        more: What `print_report` prints below it.
    """
    report, room = brief(report), SCREEN - _lines_of(clean(more))
    while _height(report) > room:
        shorter = shortened(report)
        if shorter is None:
            break
        report = shorter
    return report


def _height(report: Report) -> int:
    """Return how many lines a report takes on a terminal of `NARROW` columns."""
    drawn = io.StringIO()
    _draw(report, Console(file=drawn, markup=False, highlight=False, emoji=False, width=NARROW))
    return sum(map(_lines_of, drawn.getvalue().splitlines()))


def _lines_of(line: str) -> int:
    return max(1, -(-cell_len(line) // NARROW))


def print_facts(facts: Mapping[str, str]) -> None:
    """Print names and facts to standard output."""
    grid = Grid(box=None, show_header=False, pad_edge=False, padding=(0, 3, 0, 0))
    for name, value in facts.items():
        grid.add_row(Text(clean(name), style="bold"), Text(clean(value), overflow="fold"))
    terminal(sys.stdout).print(grid)


def terminal(file: TextIO) -> Console:
    """Return a console on `file`, without markup, at most `WIDTH` wide."""
    console = Console(file=file, markup=False, highlight=False, emoji=False)
    console.width = min(console.width, WIDTH) if console.is_terminal else WIDTH
    return console


def _draw(shown: Report, console: Console) -> None:
    colour = {True: "bold green", False: "bold red", None: "bold"}[shown.passed]
    console.print(Text(shown.title, style=colour))
    if shown.caution:
        console.print(Text(shown.caution, style="bold yellow"))
    console.print(Text(shown.about, style="dim", overflow="fold"))
    for part in shown.parts:
        console.print()
        note = f": {part.note}" if isinstance(part, Table) and part.note else ""
        console.print(Text(f"{part.title}{note}", style="bold"))
        if isinstance(part, Table):
            console.print(Padding(_grid(part, console.width - 2), (0, 0, 0, 2), expand=False))
        else:
            _draw_lines(part, console)


def _draw_lines(part: Lines, console: Console) -> None:
    for line in part.lines:
        if part.whole:
            console.print(Text(f"  {line}"), soft_wrap=True)
        else:
            console.print(indented(line, console))


def indented(line: str, console: Console, style: str = "") -> Text:
    """Return `line` wrapped to the console and indented, with a hanging indent."""
    # Not Padding: it fills lines with spaces up to the width.
    wrapped = Text(line, style=style).wrap(console, console.width - 4, overflow="fold")
    for part in wrapped:
        part.rstrip()
    return Text.assemble("  ", Text("\n    ").join(wrapped))


LONGEST_WORD = 12
"""Columns kept for a word of a cell, next to any figures; longer words are names."""


def _grid(table: Table, width: int) -> Grid:
    grid = Grid(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    for column, title in zip(table.columns, _headings(table, width), strict=True):
        figures = column.align == "right"
        grid.add_column(
            Text(title),
            justify=column.align,
            overflow="fold",
            no_wrap=figures,
        )
    for row in table.shown:
        grid.add_row(*map(Text, row))
    return grid


def _headings(table: Table, width: int) -> list[str]:
    """Return the headings; those of figures are wrapped if they leave no room for words."""
    titles, needed = [column.title for column in table.columns], 0
    slim = list(titles)
    for i, column in enumerate(table.columns):
        cells = [row[i] for row in table.shown]
        if column.align == "right":
            most = max(map(cell_len, (*cells, *titles[i].split())), default=1)
            slim[i] = fill(titles[i], max(most, 1), break_long_words=False, break_on_hyphens=False)
            needed += max(map(cell_len, (titles[i], *cells)))
        else:
            words = (word for text in (titles[i], *cells) for word in text.split())
            needed += min(LONGEST_WORD, max(map(cell_len, words), default=0))
    gaps = 2 * len(titles)
    return titles if needed + gaps <= width else slim
