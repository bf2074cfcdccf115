"""The library: what the commands do, as functions. The only place that chooses backends."""

from halfwise.api.commands import doctor, fix, observe, report, verify
from halfwise.api.logs import explain_log
from halfwise.api.options import Options
from halfwise.api.preprocessing import compare_inputs
from halfwise.api.result import Result

__all__ = [
    "Options",
    "Result",
    "compare_inputs",
    "doctor",
    "explain_log",
    "fix",
    "observe",
    "report",
    "verify",
]
