"""The library: what the commands do, as functions. The only place that chooses backends."""

from halfwise.api.commands import doctor, fix, observe, report, verify
from halfwise.api.lint import check_constraints, lint
from halfwise.api.logs import explain_log
from halfwise.api.options import Options
from halfwise.api.result import Result

__all__ = [
    "Options",
    "Result",
    "check_constraints",
    "doctor",
    "explain_log",
    "fix",
    "lint",
    "observe",
    "report",
    "verify",
]
