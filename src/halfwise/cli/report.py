"""`halfwise report`."""

# ruff: noqa: PLC0415 (imports inside functions: `halfwise --help` does not wait for the library)

from pathlib import Path
from typing import Annotated

import typer

from halfwise.cli.options import JsonOption
from halfwise.cli.outcome import conclude


def command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder that was named with -o.")],
    as_json: JsonOption = False,
) -> None:
    """Show the report of a saved run again; exits as that run did."""
    from halfwise import api

    conclude(api.report(run), as_json=as_json)
