"""halfwise: make low-precision inference right, and show it."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from halfwise.api import (
        Exported,
        Options,
        RepeatOptions,
        Result,
        build,
        check_constraints,
        compare,
        compare_inputs,
        diagnose,
        doctor,
        explain_log,
        export,
        export_torch,
        fix,
        inspect,
        lint,
        modernize,
        observe,
        report,
        verify,
        verify_run,
    )

__all__ = [
    "Exported",
    "Options",
    "RepeatOptions",
    "Result",
    "build",
    "check_constraints",
    "compare",
    "compare_inputs",
    "diagnose",
    "doctor",
    "explain_log",
    "export",
    "export_torch",
    "fix",
    "inspect",
    "lint",
    "modernize",
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
