"""`halfwise diagnose`."""

# ruff: noqa: PLC0415 (imports inside functions: `halfwise --help` does not wait for the library)

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from halfwise.cli.options import (
    Acceptance,
    Arithmetic,
    Building,
    Data,
    InputsOption,
    JsonOption,
    Labels,
    Low,
    ModelArgument,
    Running,
    Target,
    Worker,
    accepts,
)
from halfwise.cli.outcome import conclude
from halfwise.cli.waiting import Waiting


class SearchTime:
    """How long the search of rung 6 may take."""

    time_budget: Annotated[
        float | None,
        typer.Option(
            metavar="S", help="Seconds for the search. Default 300.", rich_help_panel="Plan"
        ),
    ]


@accepts(
    *(Labels, Data, Acceptance, Low, SearchTime, Arithmetic, Running, Waiting),
    *(Target, Worker, Building),
)
def command(
    model: ModelArgument,
    inputs: InputsOption,
    out: Annotated[
        Path, typer.Option("-o", "--out", metavar="RUN", help="Folder to make for the results.")
    ],
    *,
    expected: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="What the framework computes on the inputs: .npz, Polygraphy's .json, or "
            "file.py:factory that returns a torch.nn.Module.",
        ),
    ] = None,
    inputs_b: Annotated[
        str | None,
        typer.Option(metavar="DATA", help="The same samples from a second pipeline."),
    ] = None,
    runner: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Whose outputs, where several runners' are on record."),
    ] = None,
    as_json: JsonOption = False,
    **options: Any,
) -> None:
    """Find the first thing that is wrong, from the inputs up to the kernels."""
    from halfwise.cli.ahead import worker_ahead

    with worker_ahead(options) if "target" in options else nullcontext():
        from halfwise import api
        from halfwise.reporting.terminal import TerminalWatcher

        with TerminalWatcher() as watcher:
            run = api.diagnose(
                model,
                inputs,
                out=out,
                expected=expected,
                inputs_b=inputs_b,
                runner=runner,
                watcher=watcher,
                **options,
            ).run
    conclude(run, as_json=as_json)
