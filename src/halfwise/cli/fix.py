"""`halfwise fix`."""

# ruff: noqa: PLC0415 (imports inside functions: `halfwise --help` does not wait for the library)

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from halfwise.cli.options import (
    Acceptance,
    Arithmetic,
    Building,
    BuildLimit,
    Data,
    Heldout,
    InputsOption,
    JsonOption,
    Labels,
    Low,
    ModelArgument,
    Plan,
    Running,
    Target,
    Worker,
    accepts,
)
from halfwise.cli.outcome import conclude
from halfwise.cli.required import Required
from halfwise.cli.waiting import Waiting


@accepts(
    *(Heldout, Labels, Data, Acceptance, Required, Low, Plan, Arithmetic, Running),
    *(Target, Worker, Building, BuildLimit, Waiting),
)
def command(
    model: ModelArgument,
    inputs: InputsOption,
    out: Annotated[
        Path, typer.Option("-o", "--out", metavar="RUN", help="Folder to make for the results.")
    ],
    *,
    as_json: JsonOption = False,
    **options: Any,
) -> None:
    """Find the nodes that FP16 (or BF16) breaks, write a mixed model, judge it on held-out data."""
    from halfwise.cli.ahead import worker_ahead

    with worker_ahead(options) if "target" in options else nullcontext():
        from halfwise import api
        from halfwise.reporting.terminal import TerminalWatcher

        with TerminalWatcher() as watcher:
            run = api.fix(model, inputs, out=out, watcher=watcher, **options).run
    conclude(run, as_json=as_json)
