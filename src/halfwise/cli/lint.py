"""`halfwise lint`."""

# ruff: noqa: PLC0415 (imports inside functions: `halfwise --help` does not wait for the library)

from pathlib import Path
from typing import Annotated, Literal

import typer

from halfwise.cli.options import JsonOption
from halfwise.errors import PASSED, VERDICT_FAILED


def command(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="ONNX model.", show_default=False)],
    trt_version: Annotated[
        str | None,
        typer.Option(
            "--trt-version", metavar="V", help="TensorRT that is to parse it, such as 8.6."
        ),
    ] = None,
    fail_on: Annotated[
        Literal["error", "warning", "info"],
        typer.Option("--fail-on", help="Exit with 10 from this severity on."),
    ] = "error",
    ignore: Annotated[
        list[str] | None,
        typer.Option("--ignore", metavar="RULE", help="Leave a rule out; may be repeated."),
    ] = None,
    *,
    as_json: JsonOption = False,
) -> None:
    """Name known faults of a model, also of one that other commands refuse, and how to fix them."""
    from halfwise import api
    from halfwise.linting.report import linted
    from halfwise.records import SEVERITIES
    from halfwise.reporting.terminal import print_report

    report = api.lint(model, trt_version=trt_version, ignore=ignore or ())
    if as_json:
        typer.echo(report.model_dump_json(indent=1))
    else:
        print_report(linted(report))
    counted = SEVERITIES[: SEVERITIES.index(fail_on) + 1]
    failed = any(finding.severity in counted for finding in report.findings)
    raise typer.Exit(VERDICT_FAILED if failed else PASSED)
