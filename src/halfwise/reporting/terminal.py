"""Draw reports and progress on a terminal with rich.

Everything is printed as plain `Text`: a model's strings must not become markup.
"""

import io
import sys
from collections.abc import Mapping
from datetime import timedelta
from math import isinf
from textwrap import fill
from typing import Self, TextIO

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table as Grid
from rich.text import Text

from halfwise.reporting.parts import Lines, Report, Table, brief, shortened
from halfwise.wording import clean, sentence, shorten

WIDTH = 100
"""Columns used if the terminal has as many; a file or pipe does."""
SCREEN, NARROW = 24, 80
"""Most lines and columns of a report's first screen, whatever it is printed on."""

SHORT = 2.0
"""Seconds of a stage before the remaining time is shown: earlier, it would be a guess."""


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
        console.print(Text(part.title, style="bold"))
        if isinstance(part, Table):
            console.print(Padding(_grid(part, console.width - 2), (0, 0, 0, 2), expand=False))
        else:
            _draw_lines(part, console)


def _draw_lines(part: Lines, console: Console) -> None:
    for line in part.lines:
        if part.whole:
            console.print(Text(f"  {line}"), soft_wrap=True)
        else:
            console.print(_indented(line, console))


def _indented(line: str, console: Console, style: str = "") -> Text:
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


class TerminalWatcher:
    """Shows a run's progress on standard error; use it in a `with` block.

    A terminal gets one bar for the current stage, with the remaining time; it vanishes at the end.
    A file or pipe gets one line per stage.
    """

    def __init__(self) -> None:
        self._console = terminal(sys.stderr)
        self._draws = self._console.is_terminal and not self._console.is_dumb_terminal
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24 if self._console.width >= NARROW else 8),
            TextColumn("{task.fields[steps]}", markup=False),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}", markup=False),
            console=self._console,
            transient=True,
            disable=not self._draws,
        )
        self._task: TaskID | None = None
        self._done, self._since = 0, 0.0

    def __enter__(self) -> Self:
        """Start drawing."""
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the bar."""
        self._progress.stop()

    def stage(self, name: str, total: int | None = None) -> None:
        """Begin stage `name` with `total` steps, None if unknown."""
        if not self._draws:
            self._console.print(Text(clean(name)))
            return
        if self._task is not None:
            self._progress.remove_task(self._task)
        self._done, self._since = 0, 0.0
        label = f"{shorten(name, 24):<12}"
        self._task = self._progress.add_task(label, total=total, steps="", left="")

    def step(self, done: int, total: int | None = None) -> None:
        """Report progress within the stage; a stage with several counts reports each separately."""
        if self._task is None:
            return
        task = self._progress.tasks[0]
        known, now = total or task.total, task.elapsed or 0.0
        if done < self._done:
            self._since = now
        self._done = done
        steps, left = f"{done}/{known:.0f}" if known else str(done), ""
        if known and done >= known:
            steps = ""
        elif known and done and now - self._since >= SHORT:
            left = f"about {_clock((now - self._since) / done * (known - done))} left"
        self._progress.update(self._task, completed=done, total=known, steps=steps, left=left)

    def left(self, seconds: float) -> None:
        """Report the longest time that the stage may still take; reported steps take precedence."""
        if self._task is None or self._progress.tasks[0].fields["steps"]:
            return
        took = self._progress.tasks[0].elapsed or 0.0
        if took < SHORT or isinf(seconds):
            return
        told = f"at most about {_clock(seconds)} left"
        self._progress.update(self._task, completed=took, total=took + seconds, left=told)

    def note(self, line: str) -> None:
        """Print a note."""
        self._console.print(_indented(sentence(line), self._console, style="dim"))


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=round(max(0.0, seconds))))
