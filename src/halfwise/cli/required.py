"""The option that asks for a gain."""

from typing import Annotated

import typer


class Required:
    """What the plan must be worth."""

    require_worth: Annotated[
        float | None,
        typer.Option(
            metavar="X",
            rich_help_panel="Acceptance",
            help="Fail unless the plan costs at most X times what everything low does, as "
            "predicted; with engines, as measured.",
        ),
    ]
