"""How long a command waits, beside how long an inference may take."""

from typing import Annotated

import typer

from halfwise.cli.options import RunLimit


class Waiting(RunLimit):
    """How long an inference may take, and how long it may wait for the GPU."""

    wait_timeout: Annotated[
        float | None,
        typer.Option(
            rich_help_panel="Engines",
            metavar="S",
            help="Seconds for a GPU that another build has. Default 3600.",
        ),
    ]
