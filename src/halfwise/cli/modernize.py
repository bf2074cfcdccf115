"""`halfwise modernize`."""

# ruff: noqa: PLC0415 (imports inside functions: `halfwise --help` does not wait for the library)

from pathlib import Path
from typing import Annotated, Any

import typer

from halfwise.cli.options import (
    Acceptance,
    Data,
    JsonOption,
    Labels,
    ModelArgument,
    RunLimit,
    Running,
    Worker,
    accepts,
)


@accepts(Labels, Data, Acceptance, Running, RunLimit, Worker)
def command(
    model: ModelArgument,
    out: Annotated[
        Path,
        typer.Option(
            "-o", "--out", metavar="NEW", help="ONNX file to write; NEW.map.json comes beside it."
        ),
    ],
    inputs: Annotated[
        str | None,
        typer.Option(metavar="DATA", help="Real inputs, as for fix. Default: random numbers."),
    ] = None,
    *,
    trt_version: Annotated[
        str | None,
        typer.Option(
            metavar="V",
            help="TensorRT that shall read it. Default: that of the worker that is configured, "
            "else 10.0.",
        ),
    ] = None,
    transpose: Annotated[
        bool,
        typer.Option(
            "--transpose", help="Rewrite norms over other axes too, between two Transposes."
        ),
    ] = False,
    as_json: JsonOption = False,
    **options: Any,
) -> None:
    """Raise the opset and make LayerNorms, GELUs and the like one node each, proven equal."""
    from halfwise import api
    from halfwise.reporting.terminal import TerminalWatcher, print_report
    from halfwise.tools.modernize.command import modernized

    with TerminalWatcher() as watcher:
        record = api.modernize(
            model,
            out,
            inputs or "random",
            trt_version=trt_version,
            transpose=transpose,
            watcher=watcher,
            **options,
        )
    if as_json:
        typer.echo(record.model_dump_json(indent=1))
    else:
        print_report(modernized(record))
