"""`halfwise export-torch`."""

# ruff: noqa: PLC0415 (imports inside functions: `halfwise --help` does not wait for the library)

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from halfwise.cli.options import JsonOption, accepts
from halfwise.errors import PASSED, VERDICT_FAILED


class Exporting:
    """How a module is exported, and compared with the export."""

    dynamic: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME:AXIS[=SYMBOL]", help="Leave this size open: x:0=batch. Repeatable."
        ),
    ]
    sizes: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SYMBOL=N,N",
            help="Compare at these sizes. Default: that of the inputs, and one more. Repeatable.",
        ),
    ]
    exporter: Annotated[
        Literal["dynamo", "torchscript"] | None,
        typer.Option(help="Which of PyTorch's exporters. Default dynamo."),
    ]
    opset: Annotated[
        int | None, typer.Option(metavar="N", help="Default 18 (dynamo) or 17 (torchscript).")
    ]
    no_fold: Annotated[
        bool | None, typer.Option("--no-fold", help="Leave constants as they are computed.")
    ]
    tolerance: Annotated[
        float | None,
        typer.Option(
            metavar="X", help="Largest error over the largest value. Default 1e-4.", min=0
        ),
    ]


@accepts(Exporting)
def command(
    factory: Annotated[
        str,
        typer.Argument(
            metavar="FILE:FACTORY",
            help="file.py:function that returns a torch.nn.Module, or it and example inputs.",
        ),
    ],
    out: Annotated[Path, typer.Option("-o", "--out", metavar="MODEL", help="ONNX file to write.")],
    inputs: Annotated[
        str | None,
        typer.Option(
            metavar="DATA",
            help="Arrays of one call, by parameter of forward: .npz, .npy, or file.py:function. "
            "Default: the factory's example.",
        ),
    ] = None,
    *,
    as_json: JsonOption = False,
    **options: Any,
) -> None:
    """Export a PyTorch module to ONNX, and compare both at two sizes of every dynamic axis."""
    from halfwise import api
    from halfwise.reporting.terminal import TerminalWatcher, print_report
    from halfwise.tools.export_torch import exported

    fold = not options.pop("no_fold", False)
    with TerminalWatcher() as watcher:
        record = api.export_torch(factory, out, inputs, fold=fold, watcher=watcher, **options)
    if as_json:
        typer.echo(record.model_dump_json(indent=1))
    else:
        print_report(exported(record))
    raise typer.Exit(PASSED if record.passed else VERDICT_FAILED)
