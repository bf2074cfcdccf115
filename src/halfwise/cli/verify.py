"""`halfwise verify`."""

# ruff: noqa: PLC0415 (imports inside functions: `halfwise --help` does not wait for the library)

from pathlib import Path
from typing import Annotated, Any

import typer

from halfwise.cli.options import (
    Acceptance,
    Arithmetic,
    Data,
    InputsOption,
    JsonOption,
    Labels,
    ModelArgument,
    Running,
    accepts,
)
from halfwise.cli.outcome import conclude


@accepts(Labels, Data, Acceptance, Arithmetic, Running)
def command(
    model: ModelArgument,
    candidate: Annotated[
        Path,
        typer.Argument(
            metavar="CANDIDATE",
            help="Mixed, FP16 or BF16 model, or outputs on record: Polygraphy's .json, or .npz.",
        ),
    ],
    inputs: InputsOption,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", metavar="RUN", help="Folder to make for the record."),
    ] = None,
    *,
    runner: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Whose outputs to judge, where several runners' are recorded; its beginning "
            "is enough.",
        ),
    ] = None,
    as_json: JsonOption = False,
    **options: Any,
) -> None:
    """Judge any mixed, FP16 or BF16 model, or an engine's outputs, against the FP32 model."""
    from halfwise import api
    from halfwise.render.terminal import TerminalWatcher

    with TerminalWatcher() as watcher:
        run = api.verify(
            model, candidate, inputs, out=out, watcher=watcher, runner=runner, **options
        ).run
    conclude(run, as_json=as_json)
