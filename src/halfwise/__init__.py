"""halfwise: make low-precision inference right, and show it."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from halfwise.api import (
        Exported,
        Options,
        Result,
        build,
        compare,
        diagnose,
        doctor,
        explain_log,
        export,
        fix,
        inspect,
        observe,
        report,
        verify,
        verify_run,
    )

__all__ = [
    "Exported",
    "Options",
    "Result",
    "build",
    "compare",
    "diagnose",
    "doctor",
    "explain_log",
    "export",
    "fix",
    "inspect",
    "observe",
    "report",
    "verify",
    "verify_run",
]


def __getattr__(name: str) -> object:
    """Import the library when it is first used: `halfwise --help` needs none of it."""
    if name not in __all__:
        raise AttributeError(name)
    from halfwise import api  # noqa: PLC0415 - the reason is above

    return getattr(api, name)
