"""Explain the log of an engine builder."""

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from halfwise.errors import CaseError
from halfwise.files import open_regular, unreadable
from halfwise.graph.loading import NodePlaces
from halfwise.records import LogFinding, LogNode, LogReport, Severity
from halfwise.reporting.parts import Column, Lines, Report, Table, first_of, present
from halfwise.tensorrt.log import Explainer, read_lines
from halfwise.wording import MOST_ROWS, clean, count, listed, sentence, shorten


def explain_log(log: str | Path | BinaryIO, *, model: str | Path | None = None) -> LogReport:
    """Explain a builder's log in plain words, with the nodes it names.

    Args:
        log: Path, or an open binary stream: output of TensorRT, trtexec, Polygraphy or a runtime
            that uses TensorRT, verbose or not, in any encoding, of any length.
        model: The ONNX file that was built, to look up names in.

    Raises:
        CaseError: the log cannot be read, is empty or not text, or the model is not ONNX.
    """
    places = None if model is None else NodePlaces(Path(model))
    if isinstance(log, str | Path):
        path = Path(log)
        try:
            with open_regular(path) as stream:
                return _explained(stream, str(path), places)
        except OSError as error:
            raise CaseError(
                unreadable(path, error, "log"),
                "Give a file with the builder's output, or - for standard input.",
            ) from error
    return _explained(log, "the log", places)


def _explained(stream: BinaryIO, source: str, places: NodePlaces | None) -> LogReport:
    explainer = Explainer()
    for line in read_lines(stream, source):
        explainer.add(line)
    findings = explainer.findings()
    nodes = None
    if places is not None:
        names = dict.fromkeys(name for finding in findings for name in finding.nodes)
        nodes = tuple(map(places.find, names))
    return LogReport(
        source=source,
        lines=explainer.lines,
        tensorrt=explainer.tensorrt,
        findings=findings,
        nodes=nodes,
        model_nodes=None if places is None else places.count,
    )


_TITLES: dict[Severity, str] = {"error": "Errors", "warning": "Warnings", "info": "Infos"}


def explained(log: LogReport) -> Report:
    """Return the report on a log: findings by severity, and the nodes it names."""
    findings = [finding for finding in log.findings if finding.kind != "unknown"]
    parts: list[Lines | Table | None] = []
    for severity, title in _TITLES.items():
        lines = [line for f in findings if f.severity == severity for line in _lines(f)]
        parts.append(Lines(title, tuple(lines)) if lines else None)
    parts.insert(2, _unknown([f for f in log.findings if f.kind == "unknown"]))
    parts.append(_nodes(log))
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


def _nodes(log: LogReport) -> Table | Lines | None:
    if not log.nodes:
        return None
    nodes = [node for node in log.nodes if node.node is not None]
    title = (
        f"Named nodes ({len(nodes)} of {count(len(log.nodes), 'name')} found among "
        f"{count(log.model_nodes or 0, 'node')})"
    )
    columns = (
        Column("name in the log"),
        Column("node"),
        Column("operator"),
        Column("place", "right"),
    )
    return Table(title, columns, tuple(map(_row, log.nodes)), most=MOST_ROWS)


def _row(node: LogNode) -> tuple[str, str, str, str]:
    if node.node is None:
        return shorten(node.name, 36), "not in the model", "", ""
    how = {"output": " makes it", "reader": " reads it"}.get(node.via, "")
    same = "same" if node.node == node.name else shorten(node.node, 28)
    return shorten(node.name, 36), f"{same}{how}", shorten(node.op, 16), str(node.place)
