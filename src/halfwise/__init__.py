"""halfwise: make low-precision inference right, and show it."""

from halfwise.api import Options, Result, doctor, fix, observe, report, verify

__all__ = ["Options", "Result", "doctor", "fix", "observe", "report", "verify"]
