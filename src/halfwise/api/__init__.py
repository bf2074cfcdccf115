"""The library: what the commands do, as functions. The only place that chooses backends.

Each is imported when it is first asked for, so that no command waits for what others need.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from halfwise.api.building import build
    from halfwise.api.commands import doctor, fix, observe, report, verify
    from halfwise.api.comparing import compare
    from halfwise.api.diagnosing import diagnose
    from halfwise.api.exporting import Exported, export
    from halfwise.api.exporting_torch import export_torch
    from halfwise.api.inspecting import inspect
    from halfwise.api.linting import check_constraints, lint
    from halfwise.api.logs import explain_log
    from halfwise.api.modernizing import modernize
    from halfwise.api.options import Options
    from halfwise.api.preprocessing import compare_inputs
    from halfwise.api.repeating import RepeatOptions, verify_run
    from halfwise.api.result import Result

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

_MODULES = {
    "Exported": "exporting",
    "Options": "options",
    "RepeatOptions": "repeating",
    "Result": "result",
    "build": "building",
    "check_constraints": "linting",
    "compare": "comparing",
    "compare_inputs": "preprocessing",
    "diagnose": "diagnosing",
    "doctor": "commands",
    "explain_log": "logs",
    "export": "exporting",
    "export_torch": "exporting_torch",
    "fix": "commands",
    "inspect": "inspecting",
    "lint": "linting",
    "modernize": "modernizing",
    "observe": "commands",
    "report": "commands",
    "verify": "commands",
    "verify_run": "repeating",
}


def __getattr__(name: str) -> object:
    """Import what is asked for."""
    if name not in _MODULES:
        raise AttributeError(name)
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
