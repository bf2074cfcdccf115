"""What the linter says of a fault."""

from tests.faults import FAULTS, linted


def said(name: str, tmp_path) -> str:
    """Return the message of the first finding of the fault's own rule."""
    fault = next(f for f in FAULTS if f.name == name)
    report = linted(fault.make(True), tmp_path, fault.tensorrt)
    return next(f.message for f in report.findings if f.rule == fault.rule)
