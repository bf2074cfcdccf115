"""Reports and progress on a terminal."""

import io
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from math import isinf
from textwrap import fill
from typing import Self, TextIO

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn
from rich.table import Table as Grid
from rich.text import Text

from halfwise.progress import PERCENT, WORTH_TELLING
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
            console.print(Padding(_grid(part, console.width - 2), (0, 0, 0, 2), expand=False))
        else:
            _draw_lines(part, console)


def _draw_lines(part: Lines, console: Console) -> None:
    for line in part.shown:
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


SELDOM = 60.0
"""Seconds between two lines about one stage in a file or pipe."""


class TerminalWatcher:
    """Shows a run's progress on standard error; use it in a `with` block.

    A terminal gets one bar, with the remaining time of the current stage, or of the part of it that
    is named; it vanishes at the end. "At most" says that only a budget bounds it, "perhaps" that
    nothing is known about it: it is then given as long again. A file or pipe gets one line per
    stage, and one a minute about a long stage.
    """

    def __init__(self, name: str = "start") -> None:
        """Take what a terminal is told before the first stage, while the library is imported."""
        self._console = terminal(sys.stderr)
        self._draws = self._console.is_terminal and not self._console.is_dumb_terminal
        self._narrow = self._console.width < NARROW
        wide = () if self._narrow else (TextColumn("{task.fields[stage].steps}", markup=False),)
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.fields[stage].label}", markup=False),
            BarColumn(8 if self._narrow else 16),
            *wide,
            TextColumn("{task.fields[stage].time}", markup=False),
            console=self._console,
            transient=True,
            disable=not self._draws,
        )
        self._current = self._begun(name)
        self._task = self._progress.add_task("", total=None, stage=self._current)
        self._last_line = self._clock()

    def _clock(self) -> float:
        return self._progress.get_time()

    def _begun(self, name: str, total: int | None = None) -> "_Stage":
        return _Stage(name, self._clock(), self._narrow, self._clock, total)

    def __enter__(self) -> Self:
        """Start drawing."""
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the bar."""
        self._progress.stop()

    def stage(self, name: str, total: int | None = None) -> None:
        """Begin stage `name` with `total` steps, None if unknown."""
        self._current = self._begun(clean(name), total)
        # A task whose share was known cannot become one of unknown length.
        self._progress.remove_task(self._task)
        self._task = self._progress.add_task("", total=None, stage=self._current)
        if not self._draws:
            self._console.print(Text(self._current.name))
            self._last_line = self._clock()

    def step(
        self,
        done: int,
        total: int | None = None,
        of: str = "",
        *,
        most: bool = False,  # noqa: ARG002 (no time is told that could be too long)
    ) -> None:
        """Show the steps of the stage, or of a part, that are over."""
        self._current.step(done, total, of)
        share = self._current.share
        self._progress.update(
            self._task, total=None if share is None else 1.0, completed=share or 0.0
        )
        self._say_seldom()

    def left(self, seconds: float) -> None:
        """Show the longest time that the stage may take; inf: unknown."""
        self._current.bound = None if isinf(seconds) else self._clock() + seconds
        self._say_seldom()

    def expect(self, seconds: float, of: str) -> None:
        """Name the part that goes on; 0 seconds: it is over."""
        self._current.part = of if seconds else ""

    def note(self, line: str) -> None:
        """Print a note."""
        self._console.print(indented(sentence(line), self._console, style="dim"))

    def _say_seldom(self) -> None:
        """Print a line about the stage where there is no bar, if the last one is a minute old."""
        if not self._draws and self._clock() - self._last_line >= SELDOM:
            self._last_line = self._clock()
            stage = self._current
            facts = (stage.steps, f"after {_clock(stage.took)}", stage.left)
            line = f"{stage.label.strip()}: {', '.join(filter(None, facts))}"
            self._console.print(Text(f"  {line}", style="dim"), soft_wrap=True)


@dataclass
class _Stage:
    """A stage, or the part of it that goes on.

    Attributes:
        name: Its name.
        begun: When it began, by `clock`.
        narrow: Whether there is room for few words.
        clock: The time in seconds.
        total: Its steps; None if unknown.
        of: The part whose steps are counted; "" for the stage itself.
        done: Steps that are over; None if none are counted.
        part: A part without steps; "" for none.
        bound: When it ends at the latest; None if unknown.
    """

    name: str
    begun: float
    narrow: bool
    clock: Callable[[], float]
    total: int | None = None
    of: str = ""
    done: int | None = None
    part: str = ""
    bound: float | None = None

    def step(self, done: int, total: int | None, of: str) -> None:
        """Note steps that are over; of all of them, that none is counted any more."""
        self.total = total or self.total
        over = self.total is not None and done >= self.total
        self.of, self.done = ("", None) if over else (of, done)

    @property
    def label(self) -> str:
        """The name of the stage and its part, padded so that nothing jumps."""
        of = self.part or ("" if self.of == PERCENT else self.of)
        if self.narrow:
            return f"{shorten(of or self.name, 12):<12}"
        named = f"{self.name}: {of}" if of and of != self.name else self.name
        return f"{shorten(named, 20):<20}"

    @property
    def steps(self) -> str:
        """The steps that are over; "" if none are counted."""
        if self.done is None or self.part:
            return ""
        if self.of == PERCENT:
            return f"{100 * self.done // (self.total or 1)} %"
        return f"{self.done}/{self.total}" if self.total else str(self.done)

    @property
    def share(self) -> float | None:
        """The share of the steps that are over; None if unknown."""
        return self.done / self.total if self.done is not None and self.total else None

    @property
    def took(self) -> float:
        """Seconds since it began."""
        return self.clock() - self.begun

    @property
    def left(self) -> str:
        """The longest time left; "" if nothing bounds it, as a guess would not hold."""
        remaining = 0 if self.bound is None else round(self.bound - self.clock())
        told = remaining >= 1 and self.took >= WORTH_TELLING
        return f"at most {_clock(remaining)} left" if told else ""

    @property
    def time(self) -> str:
        """How long it took, and the time left; one of them where there is little room."""
        took, remaining = _clock(self.took), self.left
        return remaining or took if self.narrow else f"{took} {remaining}"


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=round(max(0.0, seconds))))
