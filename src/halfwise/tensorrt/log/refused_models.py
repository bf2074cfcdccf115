"""Why the parser refused a model, node by node and in plain words."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx

from halfwise.tensorrt.log.log import explain

_VERB = " cannot parse the model"


def named(answer: Mapping[str, Any], model: Path) -> dict[str, Any]:
    """Return a refusal; one of the parser with the name of every node, and its message plain.

    TensorRT before 9 tells only the place of a node in the file.

    Args:
        answer: The worker's answer.
        model: The ONNX file that it speaks of.
    """
    if answer.get("code") != "parse":
        return dict(answer)
    nodes = onnx.load(model, load_external_data=False).graph.node
    errors = [_named(error, nodes) for error in answer.get("errors", ())]
    changed = {**answer, "errors": errors}
    if not errors:
        return changed
    first, told = errors[0], explain(parser_lines(errors[:1]))
    where = f" at node {first['node']} ({first['op']})" if first["node"] else ""
    who = str(answer.get("message", "")).partition(_VERB)[0]
    changed["message"] = f"{who}{_VERB}{where}: {told[0].sentence if told else first['text']}"
    changed["hint"] = answer.get("hint") or (told[0].hint if told else "")
    return changed


def parser_lines(errors: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line for every error, in the words in which Polygraphy prints them."""
    lines = []
    for number, error in enumerate(errors):
        index = error.get("index")
        # Errors without a place stay apart by numbers of their own.
        place = index if isinstance(index, int) and index >= 0 else -1 - number
        name = f" with name: {error['node']} and operator: {error['op']}" if error["node"] else ""
        lines.append(f"error: In node {place}{name} (parser): ERROR: {error.get('text', '')}")
    return lines


def _named(error: Mapping[str, Any], nodes: Sequence[onnx.NodeProto]) -> dict[str, Any]:
    index = error.get("index")
    if error.get("node") or not isinstance(index, int) or not 0 <= index < len(nodes):
        return {"node": "", "op": "", **error}
    return {**error, "node": nodes[index].name, "op": nodes[index].op_type}
