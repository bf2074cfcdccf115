"""`halfwise doctor`."""

# ruff: noqa: PLC0415 (imports inside functions: `halfwise --help` does not wait for the library)

from typing import Any

from halfwise.cli.options import Worker, accepts


@accepts(Worker)
def command(**options: Any) -> None:
    """Show the versions and devices that a run depends on, and every TensorRT worker."""
    from halfwise import api
    from halfwise.reporting.terminal import print_facts

    print_facts(api.doctor(**options))
