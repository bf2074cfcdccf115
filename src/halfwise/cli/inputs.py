"""`halfwise inputs compare`."""

# ruff: noqa: PLC0415 (imports inside functions: `halfwise --help` does not wait for the library)

from pathlib import Path
from typing import Annotated

import typer

from halfwise.cli.options import JsonOption
from halfwise.errors import PASSED, VERDICT_FAILED

app = typer.Typer(no_args_is_help=True, help="Compare what two preprocessing pipelines make.")

_Pipeline = "What {} made: .npz, .npy or a folder of them; or its function, file.py:function."


@app.command("compare")
def compare(
    a: Annotated[str, typer.Argument(metavar="A", help=_Pipeline.format("pipeline A"))],
    b: Annotated[str, typer.Argument(metavar="B", help=_Pipeline.format("pipeline B"))],
    samples: Annotated[
        str | None,
        typer.Option(
            metavar="RAW",
            help="Raw samples that functions are called with: a folder of images (they get the "
            "path), or arrays. Also names the resize kernels behind arrays.",
        ),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(metavar="M", help="FP32 model: shows what the difference does to outputs."),
    ] = None,
    code: Annotated[
        Path | None,
        typer.Option(
            "-o", "--code", metavar="FILE", help="Write the Python that turns A into B to FILE."
        ),
    ] = None,
    *,
    as_json: JsonOption = False,
) -> None:
    """Name what two preprocessing pipelines do differently; exits with 10 where they differ."""
    from halfwise import api
    from halfwise.reporting.terminal import TerminalWatcher, print_report
    from halfwise.tools.preprocessing.report import compared

    with TerminalWatcher() as watcher:
        report = api.compare_inputs(a, b, samples=samples, model=model, code=code, watcher=watcher)
    if as_json:
        typer.echo(report.model_dump_json(indent=1))
    else:
        print_report(compared(report))
    raise typer.Exit(PASSED if report.same else VERDICT_FAILED)
