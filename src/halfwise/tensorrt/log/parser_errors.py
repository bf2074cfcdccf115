"""Read the errors of the ONNX parser, which take several lines each.

They name a node, print it as text, and give the reason in a separate line:

    While parsing node number 12 [If -> "output"]:
    --- Begin node ---
    input: "a"  …  name: "If_12"  op_type: "If"  …
    --- End node ---
    ERROR: file.cpp:4643 In function importIf:
    [8] Assertion failed: …

Python and Polygraphy print `In node 12 with name: If_12 and operator: If (importIf): CODE: …`.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from halfwise.tensorrt.log.findings import Entry, Findings, Message, described
from halfwise.tensorrt.versions import OPERATORS, support

_KIND = "parse-error"
_START = re.compile(
    r'While parsing node number (?P<number>\d+) \[(?P<op>[^\s\]]*)(?: -> "(?P<output>[^"]*)")?'
)
_PRINTED = re.compile(r"^\s*(?:[a-z_]+ ?[:{]|\}|$)")
_FIELD = re.compile(r'^\s*(?P<field>name|op_type): "(?P<value>.*)"$')
_WHERE = re.compile(r"^(?:ERROR: )?\S+\.(?:cpp|hpp|h):\d+ In function (?P<function>\w+):")
_WHY = re.compile(r"^\[(?P<code>\d+)\] ?(?P<reason>.+)")
_ONE_LINE = re.compile(
    r"In node (?P<number>-?\d+)(?: with name: (?P<name>.*?) and operator: (?P<op>\S+))? ?"
    r"\((?P<function>\w+)\): (?P<code>[A-Z_]+): (?P<reason>.+)"
)
_MISSING = re.compile(r"could not find [Pp]lugin:? (?P<op>\S+)")
_IMPORTER = re.compile(r"^import(?!FallbackPluginImporter$)(?P<op>\w+)$")

Lookup = Callable[[str], tuple[Message, re.Match[str]] | None]


@dataclass
class _Node:
    """The node that the current error is about."""

    entry: Entry
    printed: bool = False
    depth: int = 0


class ParserErrors:
    """Reads the lines of a log that belong to a parser error."""

    def __init__(self, found: Findings) -> None:
        """Collect findings in `found`."""
        self._found = found
        self._node: _Node | None = None
        self._missing = ""

    def take(self, text: str, raw: str, lookup: Lookup) -> bool:
        """Read a line; return whether it belongs to a parser error.

        Args:
            text: The line without its prefix.
            raw: The whole line.
            lookup: Finds the known message in a text.
        """
        if start := _START.search(text):
            self._begin(start, raw)
            return True
        if line := _ONE_LINE.search(text):
            self._take_one_line(line, raw, lookup)
            return True
        if missing := _MISSING.search(text):
            # For an operator in a body, the parser names only the If or Loop around it.
            self._missing = missing["op"]
        node = self._node
        if node is None:
            return False
        if not self._belongs(node, text, lookup):
            return False
        node.entry.heard(raw)
        return True

    def _begin(self, start: re.Match[str], raw: str) -> None:
        op, name = start["op"], start["output"] or ""
        entry = self._entry(int(start["number"]), op, name)
        entry.heard(raw)
        self._node = _Node(entry)

    def _belongs(self, node: _Node, text: str, lookup: Lookup) -> bool:
        if text.startswith(("--- Begin node", "--- End node")):
            node.printed, node.depth = text.startswith("--- Begin"), 0
            return True
        if node.printed:
            if _PRINTED.match(text):
                _read_field(node, text)
                return True
            node.printed = False
        if _WHERE.match(text):
            return True
        if why := _WHY.match(text):
            self._explain(node.entry, why["reason"], lookup)
            self._node = None
            return True
        return False

    def _take_one_line(self, line: re.Match[str], raw: str, lookup: Lookup) -> None:
        importer = _IMPORTER.match(line["function"])
        op = line["op"] or (importer["op"] if importer else "")
        entry = self._entry(int(line["number"]), op, line["name"] or "")
        if line["name"]:
            # Other lines name the node's output, if they name anything.
            entry.nodes = {line["name"]: None}
        entry.heard(raw)
        if not entry.explained:
            self._explain(entry, line["reason"], lookup)

    def _explain(self, entry: Entry, reason: str, lookup: Lookup) -> None:
        missing, self._missing = self._missing, ""
        entry.explained, known = True, lookup(reason)
        if known is None:
            entry.sentence = f"{_refused(entry.op)[:-1]}: {reason.strip()}"
            return
        told = described(*known, missing or entry.op)
        entry.kind, entry.sentence = told.kind, told.sentence
        entry.hint, entry.source = told.hint, told.source

    def _entry(self, number: int, op: str, name: str) -> Entry:
        new = Entry(_KIND, "error", _refused(op), support(op), OPERATORS, op=op)
        # Node -1 means none: the parser failed before it reached a node.
        key = (_KIND, number) if number >= 0 else (_KIND, number, op)
        entry = self._found.entry(key, new)
        entry.op = entry.op or op
        if name and not entry.nodes:
            entry.nodes[name] = None
        elif number >= 0 and not entry.nodes:
            entry.nodes[f"node {number}"] = None
        return entry


def _refused(op: str) -> str:
    return f"The parser rejects the operator {op}." if op else "The parser rejects the model."


def _read_field(node: _Node, text: str) -> None:
    """Read the node's own name; fields of attributes are nested deeper."""
    found = _FIELD.match(text)
    if found and node.depth == 0 and found["value"]:
        if found["field"] == "name":
            node.entry.nodes = {found["value"]: None}
        else:
            node.entry.op = found["value"]
    node.depth += text.count("{") - text.count("}")
