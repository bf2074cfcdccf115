"""Reports and progress on a terminal."""

import io
import sys
from collections.abc import Mapping
from datetime import timedelta
from typing import Self, TextIO

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table as Grid
from rich.text import Text

from halfwise.reporting.parts import NARROW, SCREEN, Lines, Report, Table, brief, shortened
from halfwise.wording import clean, sentence, shorten

WIDTH = 100
"""Columns used if the terminal has as many; a file or pipe does."""


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


def first_screen(report: Report, more: str) -> str:
    """Return as much of a report as fits one screen, and `more` below it, as text."""
    return f"{_text(fitted(report, more))}{clean(more)}".rstrip("\n")


def _height(report: Report) -> int:
    """Return how many lines a report takes on a terminal of `NARROW` columns."""
    return sum(map(_lines_of, _text(report).splitlines()))


def _text(report: Report) -> str:
    drawn = io.StringIO()
    console = Console(
        file=drawn, width=NARROW, markup=False, highlight=False, emoji=False, force_jupyter=False
    )
    _draw(report, console)
    return drawn.getvalue()


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
    if shown.reason:
        console.print(Text(shown.reason))
    if shown.caution:
        console.print(Text(shown.caution, style="bold yellow"))
    console.print(Text(shown.about, style="dim", overflow="fold"))
    for part in shown.parts:
        console.print()
        note = f": {part.note}" if isinstance(part, Table) and part.note else ""
        console.print(Text(f"{part.title}{note}", style="bold"))
        if isinstance(part, Table):
            console.print(Padding(_grid(part), (0, 0, 0, 2), expand=False))
        else:
            _draw_lines(part, console)


def _draw_lines(part: Lines, console: Console) -> None:
    for line in part.shown:
        text = Text(f"  {line}") if part.whole else indented(line, console)
        console.print(text, soft_wrap=part.whole)


def indented(line: str, console: Console, style: str = "") -> Text:
    """Return `line` wrapped to the console and indented, with a hanging indent."""
    # Not Padding: it fills lines with spaces up to the width.
    wrapped = Text(line, style=style).wrap(console, console.width - 4, overflow="fold")
    for part in wrapped:
        part.rstrip()
    return Text.assemble("  ", Text("\n    ").join(wrapped))


def _grid(table: Table) -> Grid:
    grid = Grid(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    for i, column in enumerate(table.columns):
        # Headings of figures are wrapped where words need their room, figures never.
        figures = column.align == "right"
        whole = (*(row[i] for row in table.shown), *column.title.split()) if figures else ()
        widest = max(map(cell_len, whole), default=None)
        grid.add_column(Text(column.title), justify=column.align, overflow="fold", min_width=widest)
    for row in table.shown:
        grid.add_row(*map(Text, row))
    return grid


SELDOM = 60.0
"""Seconds between two lines about one stage in a file or pipe."""


class TerminalWatcher:
    """Shows a run's progress on standard error; use it in a `with` block.

    A terminal gets one bar, with the steps of the current stage, or of the part of it that goes on,
    and the time that it took; it vanishes at the end. A file or pipe gets one line per stage, and
    one a minute about a long stage.
    """

    def __init__(self, name: str = "start") -> None:
        """Take what a terminal is told before the first stage, while the library is imported."""
        self._console = terminal(sys.stderr)
        self._draws = self._console.is_terminal and not self._console.is_dumb_terminal
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(8),
            TextColumn("{task.fields[steps]}", markup=False),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
            disable=not self._draws,
        )
        self._begin(name)

    def _begin(self, name: str, total: int | None = None) -> None:
        self._name, self._total = name, total
        self._task = self._progress.add_task(_padded(name), total=None, steps="")
        self._began = self._last_line = self._progress.get_time()

    def __enter__(self) -> Self:
        """Start drawing."""
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the bar."""
        self._progress.stop()

    def stage(self, name: str, total: int | None = None) -> None:
        """Begin stage `name` with `total` steps, None if unknown."""
        # A task whose share was known cannot become one of unknown length.
        self._progress.remove_task(self._task)
        self._begin(clean(name), total)
        if not self._draws:
            self._console.print(Text(self._name))

    def step(self, done: int, total: int | None = None, of: str = "") -> None:
        """Show the steps of the stage, or of a part, that are over.

        Where there is no bar, a line says so if the last one is a minute old.
        """
        self._total = total or self._total
        share = done / self._total if self._total else 0.0
        named = f"{self._name}: {of}" if share < 1 and of not in ("", self._name) else self._name
        steps = "" if share >= 1 else f"{done}/{self._total}" if self._total else str(done)
        # The clock of what is complete would stop.
        self._progress.update(
            self._task,
            total=1.0 if self._total else None,
            completed=min(share, 0.999),
            description=_padded(named),
            steps=steps,
        )
        now = self._progress.get_time()
        if not self._draws and now - self._last_line >= SELDOM:
            self._last_line = now
            facts = filter(None, (steps, f"after {timedelta(seconds=round(now - self._began))}"))
            line = f"  {_padded(named).rstrip()}: {', '.join(facts)}"
            self._console.print(Text(line, style="dim"), soft_wrap=True)

    def note(self, line: str) -> None:
        """Print a note."""
        self._console.print(indented(sentence(line), self._console, style="dim"))


def _padded(name: str) -> str:
    """Return a name of one width, so that nothing jumps."""
    return f"{shorten(name, 20):<20}"
