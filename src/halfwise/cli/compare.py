"""`halfwise compare`."""

# ruff: noqa: PLC0415 (imports inside functions: `halfwise --help` does not wait for the library)

from typing import Annotated, Any

import typer

from halfwise.cli.options import (
    Arithmetic,
    Building,
    Data,
    InputsOption,
    JsonOption,
    ModelArgument,
    Running,
    Worker,
    accepts,
)
from halfwise.cli.waiting import Waiting
from halfwise.errors import PASSED, VERDICT_FAILED


class Budget:
    """How many engines may be built to look into one."""

    max_builds: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Builds that each engine may take. Default 6.",
            rich_help_panel="Engines",
        ),
    ]


@accepts(Data, Arithmetic, Running, Waiting, Worker, Building, Budget)
def command(
    model: ModelArgument,
    inputs: InputsOption,
    b: Annotated[
        str,
        typer.Option(
            "--b",
            metavar="SOURCE",
            help="The other side: ort, ort:optimised, emulation[:fp16|bf16|tf32|FILE.onnx], "
            "engine[:fp32|tf32|fp16|bf16], another ONNX file, or saved outputs (.npz, .json).",
            show_default=False,
        ),
    ],
    a: Annotated[
        str, typer.Option("--a", metavar="SOURCE", help="The side that is taken for right.")
    ] = "ort",
    *,
    runner: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Whose outputs, where several runners' are on record."),
    ] = None,
    as_json: JsonOption = False,
    **options: Any,
) -> None:
    """Say where two computations of a model part: where each error is born, or inherited."""
    from halfwise import api
    from halfwise.reporting.terminal import TerminalWatcher, print_report
    from halfwise.tools.compare.report import comparison

    with TerminalWatcher() as watcher:
        found = api.compare(model, inputs, a=a, b=b, runner=runner, watcher=watcher, **options)
    if as_json:
        typer.echo(found.model_dump_json(indent=1))
    else:
        print_report(comparison(found))
    raise typer.Exit(VERDICT_FAILED if found.different else PASSED)
