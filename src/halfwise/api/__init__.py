"""The library: what the commands do, as functions. The only place that chooses backends."""

from halfwise.api.building import build
from halfwise.api.commands import doctor, fix, observe, report, verify
from halfwise.api.comparing import compare
from halfwise.api.diagnosing import diagnose
from halfwise.api.exporting import Exported, export
from halfwise.api.inspecting import inspect
from halfwise.api.logs import explain_log
from halfwise.api.options import Options
from halfwise.api.repeating import RepeatOptions, verify_run
from halfwise.api.result import Result

__all__ = [
    "Exported",
    "Options",
    "RepeatOptions",
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
