"""`halfwise constraints check`."""

# ruff: noqa: PLC0415 (imports inside functions: `halfwise --help` does not wait for the library)

import sys
from pathlib import Path
from typing import Annotated

import typer

from halfwise.cli.options import JsonOption
from halfwise.errors import PASSED, VERDICT_FAILED

app = typer.Typer(no_args_is_help=True, help="Check precision constraints in trtexec's notation.")


@app.callback()
def _constraints() -> None:
    """Check precision constraints in trtexec's notation."""


# Options of trtexec are part of what is checked.
@app.command("check", context_settings={"ignore_unknown_options": True})
def command(
    spec: Annotated[
        list[str],
        typer.Argument(
            metavar="SPEC",
            help="A trtexec command, --layerPrecisions=… and --layerOutputTypes=…, or the value of "
            "the former; - reads standard input.",
            show_default=False,
        ),
    ],
    trt_version: Annotated[
        str,
        typer.Option(
            "--trt-version", metavar="V", help="trtexec that is to read it.", show_default=False
        ),
    ],
    model: Annotated[
        Path | None,
        typer.Option(metavar="M", help="The ONNX model. Default: that of the command."),
    ] = None,
    *,
    as_json: JsonOption = False,
) -> None:
    """Check constraints as that trtexec would read them, and print them corrected."""
    from halfwise import api
    from halfwise.linting.report import checked
    from halfwise.reporting.terminal import print_report

    given = sys.stdin.read() if spec == ["-"] else spec
    report = api.check_constraints(given, trt_version=trt_version, model=model)
    if as_json:
        typer.echo(report.model_dump_json(indent=1))
    else:
        print_report(checked(report))
    wrong = any(finding.severity != "info" for finding in report.findings)
    raise typer.Exit(VERDICT_FAILED if wrong else PASSED)
