"""Explain the log of an engine builder."""

from pathlib import Path
from typing import BinaryIO

from halfwise.errors import CaseError
from halfwise.files import open_regular
from halfwise.graph.places import NodePlaces
from halfwise.records import LogReport
from halfwise.tensorrt.log.log import Explainer, read_lines


def explain_log(log: str | Path | BinaryIO, *, model: str | Path | None = None) -> LogReport:
    """Return what a builder's log says, in plain words, and the nodes that it names.

    Args:
        log: Path, or an open binary stream: what TensorRT, trtexec, Polygraphy or a runtime that
            uses TensorRT printed, verbose or not, in any encoding, of any length.
        model: The ONNX file that was built; with it, each name is looked up there.

    Raises:
        CaseError: the log cannot be read, is empty or no text, or the model is no ONNX file.
    """
    places = None if model is None else NodePlaces(Path(model))
    if isinstance(log, str | Path):
        path = Path(log)
        try:
            with open_regular(path) as stream:
                return _explained(stream, str(path), places)
        except OSError as error:
            raise CaseError(
                f"The log {path} cannot be read: {error.strerror}.",
                "Give a file that holds what the builder printed, or - for standard input.",
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
        command=explainer.command,
        nodes=nodes,
        model_nodes=None if places is None else places.count,
    )
