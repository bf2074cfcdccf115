"""The library: what the commands do, as functions. The only place that chooses backends."""

from halfwise.api.commands import doctor, fix, observe, report, verify
from halfwise.api.exporting import export_torch
from halfwise.api.logs import explain_log
from halfwise.api.modernizing import modernize
from halfwise.api.options import Options
from halfwise.api.result import Result

__all__ = [
    "Options",
    "Result",
    "doctor",
    "explain_log",
    "export_torch",
    "fix",
    "modernize",
    "observe",
    "report",
    "verify",
]
