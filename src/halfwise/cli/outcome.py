"""Call the library while the terminal tells how far it is; show what it returns, and end."""

# ruff: noqa: PLC0415 (imports inside functions: `halfwise --help` does not wait for the library)

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import typer

from halfwise.declarations.engines import Worker
from halfwise.errors import PASSED, VERDICT_FAILED, UsageError

if TYPE_CHECKING:
    from halfwise.progress import Watcher
    from halfwise.records import Run
    from halfwise.records.record import Record
    from halfwise.reporting.parts import Report

R = TypeVar("R")
Shown = TypeVar("Shown", bound="Record")


def watched(call: "Callable[[Watcher], R]", worker: Mapping[str, Any] | None = None) -> R:
    """Return what the library returns to `call`, which gets what tells of progress.

    Args:
        call: Calls the library.
        worker: Options that name a worker to start while the library is imported.
    """
    with nullcontext() if worker is None else worker_ahead(worker):
        from halfwise.reporting.terminal import TerminalWatcher

        with TerminalWatcher() as watcher:
            return call(watcher)


@contextmanager
def worker_ahead(options: Mapping[str, Any]) -> Iterator[None]:
    """Start the worker that `options` name; the first that is asked for in the block is that one.

    What is wrong with the options is left to the command itself.
    """
    from halfwise.tensorrt.worker.transport import started
    from halfwise.tensorrt.workers import resolve

    named = {name: options[name] for name in Worker.__annotations__.keys() & options}
    if isinstance(named.get("trt_worker"), list):
        named["trt_worker"] = named["trt_worker"][0]
    try:
        specs = resolve(**named)
    except UsageError:
        specs = []
    for spec in specs[:1]:
        spec.announce()
    with started(specs[0].command) if specs else nullcontext():
        yield


def show(found: Shown, view: "Callable[[Shown], Report]", *, as_json: bool) -> None:
    """Print a record as JSON, or the report that `view` makes of it."""
    from halfwise.reporting.terminal import print_report

    if as_json:
        typer.echo(found.model_dump_json(indent=1))
    else:
        print_report(view(found))


def end(*, passed: bool) -> NoReturn:
    """End the command with the exit code of a verdict."""
    raise typer.Exit(PASSED if passed else VERDICT_FAILED)


def conclude(run: "Run", *, as_json: bool) -> NoReturn:
    """Print the run and exit with 0 where its verdict passed, else 10."""
    from halfwise.reporting.terminal import print_report
    from halfwise.reporting.view import report
    from halfwise.store import run_json

    if as_json:
        typer.echo(run_json(run), nl=False)
    else:
        print_report(report(run))
    end(passed=run.verdict.passed)
