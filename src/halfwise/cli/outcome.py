"""End a command with its result on standard output and the exit code of its verdict."""

# ruff: noqa: PLC0415 (imports inside functions: `halfwise --help` does not wait for the library)

from typing import TYPE_CHECKING

import typer

from halfwise.errors import PASSED, VERDICT_FAILED

if TYPE_CHECKING:
    from halfwise.records import Run


def conclude(run: "Run", *, as_json: bool) -> None:
    """Print the run and exit with 0 where its verdict passed, else 10."""
    from halfwise.reporting.terminal import print_report
    from halfwise.reporting.view import report
    from halfwise.store import run_json
    from halfwise.tools.diagnose.report import diagnosed

    if as_json:
        typer.echo(run_json(run), nl=False)
    else:
        print_report(diagnosed(run) if run.kind == "diagnose" else report(run))
    raise typer.Exit(PASSED if run.verdict.passed else VERDICT_FAILED)
