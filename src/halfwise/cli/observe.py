"""`halfwise observe`."""

# ruff: noqa: PLC0415 (imports inside functions: `halfwise --help` does not wait for the library)

from typing import Annotated, Any

import typer

from halfwise.cli.options import (
    Data,
    InputsOption,
    JsonOption,
    Low,
    ModelArgument,
    RunLimit,
    Running,
    accepts,
)


@accepts(Data, Low, Running, RunLimit)
def command(
    model: ModelArgument,
    inputs: InputsOption,
    *,
    limit: Annotated[
        float, typer.Option(metavar="LIMIT", help="Smallest magnitude that is listed.", min=0)
    ] = 10_000,
    as_json: JsonOption = False,
    **options: Any,
) -> None:
    """List the tensors of the FP32 model that are large or not finite on real inputs."""
    from halfwise import api
    from halfwise.reporting.tensors import observed
    from halfwise.reporting.terminal import TerminalWatcher, print_report

    with TerminalWatcher() as watcher:
        observations = api.observe(model, inputs, watcher=watcher, **options)
    if as_json:
        typer.echo(observations.model_dump_json(indent=1))
    else:
        print_report(observed(observations, limit))
