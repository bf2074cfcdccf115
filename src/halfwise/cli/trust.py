"""The option that trusts a halfwise.toml."""

# ruff: noqa: PLC0415 (imports inside functions: `halfwise --help` does not wait for the library)

from typing import Annotated

import typer


def _trust(asked: bool) -> None:
    if asked:
        from halfwise.tensorrt.workers import trust_nearest

        trust_nearest()


class Trust:
    """Whether the nearest halfwise.toml may name commands."""

    trust_config: Annotated[
        bool | None,
        typer.Option(
            "--trust-config",
            rich_help_panel="TensorRT",
            help="Trust the nearest halfwise.toml to name commands until it changes. Once is "
            "enough.",
            callback=_trust,
            is_eager=True,
            expose_value=False,
        ),
    ]
