"""`halfwise explain-log`."""

# ruff: noqa: PLC0415 (imports inside functions: `halfwise --help` does not wait for the library)

import sys
from pathlib import Path
from typing import Annotated

import typer

from halfwise.cli.options import JsonOption
from halfwise.errors import PASSED, VERDICT_FAILED


def command(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="What trtexec or another builder printed; - reads it."),
    ],
    model: Annotated[
        Path | None,
        typer.Option(metavar="M", help="The ONNX model: tells which nodes the log names."),
    ] = None,
    *,
    as_json: JsonOption = False,
) -> None:
    """Explain a TensorRT build log: every known message in a sentence, and which nodes it names."""
    from halfwise import api
    from halfwise.reporting.terminal import print_report
    from halfwise.tools.explain_log import explained

    log = sys.stdin.buffer if str(file) == "-" else file
    report = api.explain_log(log, model=model)
    if as_json:
        typer.echo(report.model_dump_json(indent=1))
    else:
        print_report(explained(report))
    wrong = any(finding.severity == "error" for finding in report.findings)
    raise typer.Exit(VERDICT_FAILED if wrong else PASSED)
