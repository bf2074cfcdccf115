"""Loggers, and how the other parts log."""

import sys
import time

from tests.fake_tensorrt.enums import Severity
from tests.fake_tensorrt.versions import Callback

RANKS = {Severity.INTERNAL_ERROR: 0, Severity.ERROR: 1, Severity.WARNING: 2}
RANKS |= {Severity.INFO: 3, Severity.VERBOSE: 4}


class ILogger(Callback):
    Severity = Severity
    INTERNAL_ERROR = Severity.INTERNAL_ERROR
    ERROR = Severity.ERROR
    WARNING = Severity.WARNING
    INFO = Severity.INFO
    VERBOSE = Severity.VERBOSE

    def log(self, severity, msg):
        raise NotImplementedError("Tried to call pure virtual function ILogger::log")


class Logger(ILogger):
    def __init__(self, min_severity=Severity.WARNING):
        super().__init__()
        self.min_severity = min_severity

    def log(self, severity, msg):
        if RANKS[severity] <= RANKS[self.min_severity]:
            stamp = time.strftime("%m/%d/%Y-%H:%M:%S")
            print(f"[{stamp}] [TRT] [{severity.name[0]}] {msg}", file=sys.stderr)  # noqa: T201


def need_logger(given):
    """Return a logger, as whoever takes one checks it."""
    if not isinstance(given, ILogger):
        raise TypeError("incompatible constructor arguments: a tensorrt.ILogger is needed")
    return ILogger.check(given)
