"""Explain the log of an engine builder."""

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from halfwise.errors import CaseError
from halfwise.files import open_regular, unreadable
from halfwise.records import LogFinding, LogReport, Severity
from halfwise.reporting.parts import Lines, Report, first_of, present
from halfwise.tensorrt.log import Explainer, read_lines
from halfwise.wording import MOST_ROWS, clean, count, listed, sentence


def explain_log(log: str | Path | BinaryIO) -> LogReport:
    """Explain a builder's log in plain words, with the nodes it names.

    Args:
        log: Path, or an open binary stream: output of TensorRT, trtexec, Polygraphy or a runtime
            that uses TensorRT, verbose or not, in any encoding, of any length.

    Raises:
        CaseError: the log cannot be read, is empty or not text.
    """
    if not isinstance(log, str | Path):
        return _explained(log, "the log")
    path = Path(log)
    try:
        with open_regular(path) as stream:
            return _explained(stream, str(path))
    except OSError as error:
        raise CaseError(
            unreadable(path, error, "log"),
            "Give a file with the builder's output, or - for standard input.",
        ) from error


def _explained(stream: BinaryIO, source: str) -> LogReport:
    explainer = Explainer()
    for line in read_lines(stream, source):
        explainer.add(line)
    return LogReport(
        source=source,
        lines=explainer.lines,
        tensorrt=explainer.tensorrt,
        findings=explainer.findings(),
    )


_TITLES: dict[Severity, str] = {"error": "Errors", "warning": "Warnings", "info": "Infos"}


def explained(log: LogReport) -> Report:
    """Return the report on a log: findings by severity."""
    findings = [finding for finding in log.findings if finding.kind != "unknown"]
    parts: list[Lines | None] = []
    for severity, title in _TITLES.items():
        lines = [line for f in findings if f.severity == severity for line in _lines(f)]
        parts.append(Lines(title, tuple(lines)) if lines else None)
    parts.insert(2, _unknown([f for f in log.findings if f.kind == "unknown"]))
    about = [sentence(log.source), count(log.lines, "line")]
    if log.tensorrt:
        about.append(f"TensorRT {clean(log.tensorrt)}")
    return Report(_title(log), None, " · ".join(about), present(*parts))


def _title(log: LogReport) -> str:
    quantities = [
        count(number, severity)
        for severity in _TITLES
        if (number := sum(f.severity == severity for f in log.findings))
    ]
    if not quantities:
        return "Nothing to explain: no known message, no line marked as a warning or an error"
    unknown = sum(f.kind == "unknown" for f in log.findings)
    return f"{', '.join(quantities)}{f'; {unknown} not known' if unknown else ''}"


def _lines(finding: LogFinding) -> Iterator[str]:
    yield _counted(finding)
    if finding.nodes:
        yield f"  → At: {listed(finding.nodes)}."
    elif finding.before:
        yield "  → The log does not name the layer; build with --verbose to see it."
    if finding.before:
        yield f"  → The last line before it: {sentence(finding.before)}"
    if finding.hint:
        yield f"  → {sentence(finding.hint)}"
    if finding.severity == "error" and finding.source:
        yield f"  → See {clean(finding.source)}"


def _counted(finding: LogFinding) -> str:
    often = f" ({count(finding.count, 'line')})" if finding.count > 1 else ""
    return f"{sentence(finding.sentence)}{often}"


def _unknown(findings: list[LogFinding]) -> Lines | None:
    lines = []
    for severity in _TITLES:
        some = [f for f in findings if f.severity == severity]
        shown = [f"{severity}: {_counted(f)}" for f in some]
        lines += first_of(shown, f"more of {severity}", MOST_ROWS)
    return Lines("Not known, in the builder's words", tuple(lines)) if lines else None
