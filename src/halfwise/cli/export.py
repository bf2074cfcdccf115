"""`halfwise export`."""

# ruff: noqa: PLC0415 (imports inside functions: `halfwise --help` does not wait for the library)

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from halfwise.cli.options import accepts


class Building:
    """What will build the engine, and from what."""

    trt_version: Annotated[
        str | None,
        typer.Option(
            metavar="V",
            help="TensorRT that will build: 8.5 to 11. Default: that of the run's engines, "
            "or 10.16.",
        ),
    ]
    typing: Annotated[
        Literal["weak", "strong"] | None,
        typer.Option(
            help="Layer constraints, or Casts in the ONNX file. Default: weak for 8.x, else strong."
        ),
    ]
    model: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The model of the run, where it has moved (for weak)."),
    ]
    min_shapes: Annotated[
        list[str] | None,
        typer.Option("--minShapes", metavar="SHAPES", help="As trtexec takes them. Repeatable."),
    ]
    opt_shapes: Annotated[
        list[str] | None,
        typer.Option("--optShapes", metavar="SHAPES", help="Likewise: NAME:1x3x224x224,…"),
    ]
    max_shapes: Annotated[
        list[str] | None, typer.Option("--maxShapes", metavar="SHAPES", help="Likewise.")
    ]


@accepts(Building)
def command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder that was named with -o.")],
    kind: Annotated[
        Literal["trtexec", "python", "cpp", "polygraphy", "json"],
        typer.Option("--as", help="What to write."),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--out",
            metavar="PATH",
            help="Folder, or file where it ends in .sh, .py or .json. Default: standard output.",
        ),
    ] = None,
    **options: Any,
) -> None:
    """Write a recipe that builds the engine of a run with your TensorRT, without halfwise."""
    from halfwise import api
    from halfwise.errors import UsageError
    from halfwise.wording import clean

    exported = api.export(run, kind, out=out, **options)
    if out is None and len(exported.texts) > 1:
        raise UsageError(
            f"This recipe has {len(exported.texts)} files: {', '.join(exported.texts)}.",
            "Name a folder with -o.",
        )
    if out is None:
        typer.echo(next(iter(exported.texts.values())), nl=False)
    for path in exported.written:
        typer.echo(clean(f"written: {path}"))
    for note in exported.recipe.notes:
        typer.echo(clean(f"note: {note}"), err=True)
