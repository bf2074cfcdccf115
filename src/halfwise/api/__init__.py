"""The library: what the commands do, as functions. The only place that chooses backends."""

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
