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
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.progress import Progress, ProgressColumn, SpinnerColumn, Task, TextColumn
from rich.progress_bar import ProgressBar
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
            _Bar(8 if self._narrow else 16),
            *wide,
            TextColumn("{task.fields[stage].time}", markup=False),
            console=self._console,
            transient=True,
            disable=not self._draws,
        )
        self._current = self._begun(name)
        self._task = self._progress.add_task("", stage=self._current)
        self._last_line = self._clock()

    def _clock(self) -> float:
        return self._progress.get_time()

    def _begun(self, name: str, total: int | None = None) -> "_Stage":
        now = self._clock()
        return _Stage(name, now, now, self._narrow, self._clock, total)

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
        self._progress.update(self._task, stage=self._current)
        if not self._draws:
            self._console.print(Text(self._current.name))
            self._last_line = self._clock()

    def step(
        self, done: int, total: int | None = None, of: str = "", *, most: bool = False
    ) -> None:
        """Report progress within the stage; a stage with several counts reports each separately."""
        self._current.step(done, total, of, most=most)
        self._say_seldom()

    def left(self, seconds: float) -> None:
        """Report the longest time that the stage may still take; what steps tell comes first."""
        self._current.bounded(seconds)
        self._say_seldom()

    def expect(self, seconds: float, of: str) -> None:
        """Report how long part `of` of the stage will probably take; 0 where it is over.

        Until then, steps are not shown: they may be of less. Only a guess gives way to them.
        """
        self._current.expect(seconds, of)

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
    """What is known of the current stage; the time left counts down as it is read.

    Attributes:
        name: The stage.
        begun: Value of the clock at its begin.
        unknown: Value of the clock when something was last heard of it.
        narrow: Whether to use as few columns as possible.
        clock: Seconds.
        total: Its steps, if they are all of one kind.
        of: The part that is counted; "" for all of it.
        done: Steps of that part, or None if there are none.
        count: Value of the clock and of `done` when that part was first reported.
        until: Value of the clock at which that part ends; None if unknown.
        most: Whether it may end earlier.
        part: The part that is expected to take some time; "" for a guess at all of it.
        span: Values of the clock between which it takes place; None if nothing is expected.
        bound: Value of the clock at which a budget ends the stage; None if none is known.
    """

    name: str
    begun: float
    unknown: float
    narrow: bool
    clock: Callable[[], float]
    total: int | None = None
    of: str = ""
    done: int | None = None
    count: tuple[float, int] = (0.0, 0)
    until: float | None = None
    most: bool = False
    part: str = ""
    span: tuple[float, float] | None = None
    bound: float | None = None

    def step(self, done: int, total: int | None, of: str, *, most: bool) -> None:
        now, most_steps = self.clock(), total or self.total
        if self.done is None or of != self.of or done < self.done:
            self.count = now, done
        self.unknown, self.of, self.done, self.total, self.most = now, of, done, most_steps, most
        self.until = None
        since, first = self.count
        if most_steps and done >= most_steps:
            self.of, self.done = "", None
        elif most_steps and done > first:
            self.until = now + (now - since) / (done - first) * (most_steps - done)

    def expect(self, seconds: float, of: str) -> None:
        now = self.clock()
        self.part, self.span = of, (now, now + seconds) if seconds else None
        self.unknown = now

    def bounded(self, seconds: float) -> None:
        now = self.clock()
        self.bound = None if isinf(seconds) else now + seconds
        self.unknown = now if self.bound is None else self.bound

    @property
    def is_expected(self) -> bool:
        """Whether a part is expected to take a while yet; what steps tell is no guess."""
        if self.span is None or (not self.part and self._counted is not None):
            return False
        return round(self.span[1] - self.clock()) >= 1

    @property
    def _counted(self) -> float | None:
        """`until`, once steps have taken so long that it is more than a guess."""
        return self.until if self.clock() - self.count[0] >= WORTH_TELLING else None

    @property
    def label(self) -> str:
        of = self.part if self.is_expected else self.of
        of = "" if of == PERCENT else of
        if self.narrow:
            return f"{shorten(of or self.name, 12):<12}"
        part = of and of != self.name
        return f"{shorten(f'{self.name}: {of}' if part else self.name, 20):<20}"

    @property
    def steps(self) -> str:
        if self.done is None or self.is_expected:
            return ""
        if self.of == PERCENT:
            return f"{100 * self.done // (self.total or 1)} %"
        return f"{self.done}/{self.total}" if self.total else str(self.done)

    @property
    def share(self) -> float | None:
        """How much of it is over, 0 to 1; None if unknown."""
        if self.done is not None and not self.is_expected:
            return self.done / self.total if self.total else None
        begun, end = self.span if self.span and self.is_expected else (self.begun, self.bound)
        now = self.clock()
        return None if end is None or end <= now else (now - begun) / (end - begun)

    @property
    def took(self) -> float:
        return self.clock() - self.begun

    @property
    def left(self) -> str:
        """The time left, "" in the first `WORTH_TELLING` seconds without one."""
        now = self.clock()
        if now - self.begun < WORTH_TELLING:
            return ""
        ends = (
            (self.span[1] if self.span and self.is_expected else None, "about"),
            (self._counted, "at most" if self.most else "about"),
            (self.bound, "at most"),
        )
        for end, how in ends:
            remaining = 0 if end is None else round(end - now)
            if remaining >= 1:
                return f"{how} {_clock(remaining)} left"
        return f"perhaps {_clock(max(1, now - self.unknown))} left"

    @property
    def time(self) -> str:
        """What is drawn: the time so far, and the time left."""
        took, remaining = _clock(self.took), self.left
        return remaining or took if self.narrow else f"{took} {remaining}"


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=round(max(0.0, seconds))))


class _Bar(ProgressColumn):
    """A bar as long as the part that is over; none where that is unknown."""

    def __init__(self, width: int) -> None:
        self._width = width
        super().__init__()

    def render(self, task: Task) -> RenderableType:
        share = task.fields["stage"].share
        # As wide as the bar: else what follows would jump.
        return " " * self._width if share is None else ProgressBar(1.0, share, self._width)
