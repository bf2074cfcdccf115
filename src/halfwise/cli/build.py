"""`halfwise build`."""

# ruff: noqa: PLC0415 (imports inside functions: `halfwise --help` does not wait for the library)

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from halfwise.cli.options import (
    Building,
    BuildLimit,
    JsonOption,
    MaybeInputsOption,
    ModelArgument,
    Reading,
    Worker,
    accepts,
)
from halfwise.cli.waiting import Waiting


@accepts(Reading, Worker, Building, BuildLimit, Waiting)
def command(
    model: ModelArgument,
    out: Annotated[Path, typer.Option("-o", "--out", metavar="ENGINE", help="Engine to make.")],
    inputs: MaybeInputsOption = None,
    *,
    to: Annotated[
        Literal["fp32", "fp16", "bf16"] | None,
        typer.Option(help="Lowest format the builder may choose (weak typing). Default fp32."),
    ] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option(metavar="N", help="Constrain these nodes to FP32, as in fix. Repeatable."),
    ] = None,
    keep_op: Annotated[
        list[str] | None,
        typer.Option(metavar="TYPE", help="Constrain all nodes of this type. Repeatable."),
    ] = None,
    layer_precisions: Annotated[
        list[str] | None,
        typer.Option(
            "--layerPrecisions",
            metavar="SPEC",
            help="As for trtexec: name:fp32,… with * in names; constrains these alone.",
        ),
    ] = None,
    as_json: JsonOption = False,
    **options: Any,
) -> None:
    """Build a TensorRT engine of a model as it is asked for, and show what came out."""
    from halfwise.cli.ahead import worker_ahead

    with worker_ahead(options):
        from halfwise import api
        from halfwise.reporting.pieces import built
        from halfwise.reporting.terminal import TerminalWatcher, print_report

        with TerminalWatcher() as watcher:
            made = api.build(
                model,
                out,
                inputs=inputs,
                to=to,
                keep=keep or (),
                keep_op=keep_op or (),
                layer_precisions=layer_precisions or (),
                watcher=watcher,
                **options,
            )
    if as_json:
        typer.echo(made.model_dump_json(indent=1))
    else:
        print_report(built(made))
