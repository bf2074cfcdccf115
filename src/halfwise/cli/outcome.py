"""Call the library while the terminal shows progress; show the result, and exit."""

# ruff: noqa: PLC0415 (imports inside functions: `halfwise --help` does not wait for the library)

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeVar

import typer

from halfwise.cli.options import Display
from halfwise.errors import PASSED, VERDICT_FAILED
from halfwise.wording import argument, command

if TYPE_CHECKING:
    from halfwise.progress import Watcher
    from halfwise.records import Run
    from halfwise.records.record import Record
    from halfwise.reporting.parts import Report

WHOLE = "This is only part of the report; --full prints all of it."
"""Printed below a partial report that is not stored."""

R = TypeVar("R")
Shown = TypeVar("Shown", bound="Record")


def watched(
    call: "Callable[[Watcher], R]",
    display: Display,
    *,
    name: str = "start",
) -> R:
    """Return the result of `call`, which gets a watcher that shows progress.

    Args:
        call: Calls the library.
        display: What to print.
        name: What the bar says until the call reports a stage.
    """
    if display.quiet:
        from halfwise.progress import Silent

        return call(Silent())
    from halfwise.reporting.terminal import TerminalWatcher

    with TerminalWatcher(name) as watcher:
        return call(watcher)


def show(record: Shown, view: "Callable[[Shown], Report]", display: Display) -> None:
    """Print a record as JSON, or the report that `view` makes of it."""
    from halfwise.reporting.terminal import fitted, print_report, print_verdict

    if display.as_json:
        typer.echo(record.model_dump_json(indent=1))
    elif display.quiet:
        print_verdict(view(record))
    elif display.full is False:
        whole = view(record)
        shown = fitted(whole, WHOLE)
        print_report(shown, WHOLE * (shown != whole))
    else:
        print_report(view(record))


def end(*, passed: bool) -> NoReturn:
    """End the command with the exit code of a verdict."""
    raise typer.Exit(PASSED if passed else VERDICT_FAILED)


def conclude(run: "Run", display: Display, folder: Path | None) -> NoReturn:
    """Print the run and exit with 0 where its verdict passed, else 10.

    `folder` is the run folder; None if it is not stored.
    """
    from halfwise.reporting.terminal import fitted, print_report, print_verdict
    from halfwise.reporting.view import report, screen
    from halfwise.store import run_json

    if display.as_json:
        typer.echo(run_json(run), nl=False)
    elif display.quiet:
        print_verdict(report(run))
    elif display.full:
        print_report(report(run))
    else:
        print_report(fitted(screen(run), more := _more(folder)), more)
    end(passed=run.verdict.passed)


def _more(folder: Path | None) -> str:
    """Return where to find the whole report."""
    if folder is None:
        return WHOLE
    page = folder / "report.html"
    where = f", or open {argument(page)}" if page.is_file() else ""
    return f"Whole report: {command('halfwise', 'report', folder, '--full')}{where}"
