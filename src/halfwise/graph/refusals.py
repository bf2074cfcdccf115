"""What ONNX says about a graph that it refuses, as one sentence."""

import re

_CONTEXT = re.compile(
    r"(?P<what>.*?)\.?\s*==> Context: Bad node spec(?: for node\. Name: (?P<name>.*?)\s*OpType: "
    r"(?P<op>\S+))?.*"
)
"""ONNX's checker about a node; older ones print the whole node after it (onnx, checker.cc)."""
_SIGNATURE = re.compile(r"Node(?:\((?P<name>.*?)\))? with schema\(.*?::\w+:(?P<since>\d+)\) has ")
"""How it begins if the number of inputs or outputs is wrong (onnx, defs/schema.cc)."""
_UNSORTED = re.compile(
    r"Nodes in a graph must be topologically sorted, however input '(?P<value>.*)' of node: "
    r"name: (?P<name>.*?)\s*OpType: (?P<op>\S+) is not output of any previous nodes\."
)


def said(error: Exception) -> str:
    """Return what ONNX says first, on one line, beginning with the node it is about.

    onnx-ir wraps ONNX's errors in its own.
    """
    first: BaseException = error
    while first.__cause__ is not None:
        first = first.__cause__
    if isinstance(first, UnicodeDecodeError):
        return "a name in it is not UTF-8, so the file is probably damaged"
    text = " ".join(str(first).split()) or type(first).__name__
    if unsorted := _UNSORTED.fullmatch(text):
        node = _named(unsorted["name"], unsorted["op"])
        return f"{node} reads {unsorted['value']!r}, which no node before it computes"
    found = _CONTEXT.fullmatch(text)
    if found is None:
        return text
    what, name, op = found["what"], found["name"], found["op"]
    if begin := _SIGNATURE.match(what):
        # Inside a body, the context is the node that has it.
        inner = f"{begin['name']!r} in it has " if name not in (None, begin["name"] or "") else ""
        what = (inner or "it has ") + what[begin.end() :]
    return f"{_named(name, op)}: {what}" if op else what


def _named(name: str | None, op: str) -> str:
    return f"node {name!r} ({op})" if name else f"a {op} without a name"
