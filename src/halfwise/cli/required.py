"""The options that ask for a gain, and for less than everything."""

from typing import Annotated

import typer


class Required:
    """What the plan must be worth, and what need not be judged."""

    require_worth: Annotated[
        float | None,
        typer.Option(
            metavar="X",
            rich_help_panel="Acceptance",
            help="Fail unless the plan costs at most X times what everything low does, as "
            "predicted; with engines, as measured.",
        ),
    ]
    allow_unjudged: Annotated[
        bool | None,
        typer.Option(
            "--allow-unjudged",
            rich_help_panel="Acceptance",
            help="Accept that no sample tests an output, a branch, a loop's body or the metric.",
        ),
    ]
