"""Explain the log of an engine builder."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from halfwise.errors import CaseError
from halfwise.files import open_regular, unreadable
from halfwise.graph.protobufs import nodes_in, read_proto
from halfwise.records import LogFinding, LogNode, LogReport, NodeName, Severity, Via
from halfwise.reporting.parts import Column, Lines, Report, Table, first_of, present
from halfwise.tensorrt.log import Explainer, read_lines
from halfwise.wording import MOST_ROWS, clean, count, listed, sentence, shorten

_NUMBERED = re.compile(r"^node (?P<number>\d+)$")
_AGAIN = re.compile(r"_\d+$")
"""Suffix that TensorRT appends to a name already in use."""


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


class NodePlaces:
    """The nodes of a file, bodies included, by name, output tensor and constant.

    Attributes:
        count: Number of nodes.
    """

    def __init__(self, path: Path) -> None:
        """Read the file.

        Raises:
            CaseError: not an ONNX file.
        """
        nodes = list(nodes_in(read_proto(path).graph))
        self._nodes = [node for _, node in nodes]
        self._main = [place for place, (depth, _) in enumerate(nodes) if not depth]
        self.count = len(self._nodes)
        self._names: dict[str, tuple[int, Via]] = {}
        alone = [[node.name] for node in self._nodes]
        outputs = [node.output for node in self._nodes]
        inputs = [node.input for node in self._nodes]
        ways: Mapping[Via, Sequence[Iterable[str]]]
        ways = {"node": alone, "output": outputs, "reader": inputs}
        for via, names in ways.items():
            for place, some in enumerate(names):
                for name in filter(None, some):
                    self._names.setdefault(name, (place, via))
        # Myelin replaces all but letters and digits in constants' names by underscores.
        self._plain = {re.sub(r"\W", "_", name): at for name, at in self._names.items()}

    def find(self, name: str) -> LogNode:
        """Return the node that `name` refers to."""
        if numbered := _NUMBERED.match(name):
            number = int(numbered["number"])
            if number < len(self._main):
                return self._answer(name, self._main[number], "node")
        for names, wanted in self._wanted(name):
            if wanted in names:
                return self._answer(name, *names[wanted])
        return LogNode(name=NodeName(name))

    def _wanted(self, name: str) -> Iterator[tuple[dict[str, tuple[int, Via]], str]]:
        yield self._names, name
        yield self._names, name.removeprefix("node_of_")
        yield self._names, _AGAIN.sub("", name)
        yield self._names, name.removesuffix("_output")
        yield self._plain, re.sub(r"\W", "_", name.removesuffix("_constant"))

    def _answer(self, name: str, place: int, via: Via) -> LogNode:
        node = self._nodes[place]
        # TensorRT's name for a nameless node.
        own = node.name or f"node_of_{next(iter(node.output), '')}"
        return LogNode(
            name=NodeName(name), node=NodeName(own), op=node.op_type, place=place + 1, via=via
        )


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
