"""`halfwise inspect`."""

# ruff: noqa: PLC0415 (imports inside functions: `halfwise --help` does not wait for the library)

from pathlib import Path
from typing import Annotated, Any

import typer

from halfwise.cli.options import JsonOption, MaybeInputsOption, Reading, Worker, accepts
from halfwise.cli.waiting import Waiting


@accepts(Reading, Worker, Waiting)
def command(
    engine: Annotated[Path, typer.Argument(metavar="ENGINE", help="Engine file.")],
    model: Annotated[
        Path | None,
        typer.Option(metavar="M", help="The ONNX model: then precision is told node by node."),
    ] = None,
    inputs: MaybeInputsOption = None,
    *,
    as_json: JsonOption = False,
    **options: Any,
) -> None:
    """Show inputs, outputs, layers, precision and speed of a TensorRT engine."""
    from halfwise import api
    from halfwise.reporting.pieces import looked_into
    from halfwise.reporting.terminal import TerminalWatcher, print_report

    with TerminalWatcher() as watcher:
        found = api.inspect(engine, model=model, inputs=inputs, watcher=watcher, **options)
    if as_json:
        typer.echo(found.model_dump_json(indent=1))
    else:
        print_report(looked_into(found))
