"""Known messages and their meaning; the findings of a log, with similar lines grouped."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from halfwise.records import SEVERITIES, LogFinding, NodeName, Severity
from halfwise.tensorrt.layer_names import names_in
from halfwise.tensorrt.versions import OPERATORS, support

UNKNOWN = "unknown"
MOST_UNKNOWN = 1000
"""Kinds of unknown lines that are kept apart; the rest are counted together."""
_MOST_LINES = 3
_LONGEST = 500
_LAST = ("not-parsed", "not-valid", "engine-refused", "not-built")
"""Errors that only follow from others, so they are listed after them."""
_VARYING = re.compile(r"0x[0-9a-fA-F]+|\d+(?:\.\d+)?")


@dataclass(frozen=True)
class Message:
    r"""A known message, in any of its wordings.

    Attributes:
        kind: Its identifier. Of "a" and "a-b", the former only announces the latter.
        severity: How bad it is.
        pattern: Matches every wording. Its groups `names` (a list) and `layer` (an expression such
            as `a + b`) name nodes; the other groups fill the sentence. Lines may be a mebibyte
            long: a pattern that starts with a repetition is anchored (`(?<!\S)\S+`).
        sentence: What it means, with `{group}` where the message varies.
        hint: What to do about it.
        source: URL of the report or documentation behind it.
    """

    kind: str
    severity: Severity
    pattern: str
    sentence: str
    hint: str
    source: str
    compiled: re.Pattern[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Compile the pattern, once."""
        object.__setattr__(self, "compiled", re.compile(self.pattern))

    def words(self, found: re.Match[str], op: str = "") -> str:
        """Return the sentence for a match; `op` is used if the match names no operator."""
        groups = {name: (text or "").strip() for name, text in found.groupdict().items()}
        if "op" in groups:
            groups["op"] = groups["op"] or op or "that a node needs"
        # Alternatives of a pattern fill different groups; the others are empty.
        return " ".join(self.sentence.format(**groups).split())


@dataclass
class Entry:
    """A finding that may still grow; its attributes are those of `LogFinding`.

    For a parser error, `explained` is true once its reason is known; `op` is the node's operator,
    if any line gave it.
    """

    kind: str
    severity: Severity
    sentence: str
    hint: str = ""
    source: str = ""
    nodes: dict[str, None] = field(default_factory=dict)
    count: int = 0
    lines: list[str] = field(default_factory=list)
    before: str = ""
    explained: bool = False
    op: str = ""

    def heard(self, raw: str) -> None:
        """Count a line."""
        self.count += 1
        if len(self.lines) < _MOST_LINES:
            self.lines.append(raw.strip()[:_LONGEST])

    def record(self) -> LogFinding:
        """Return the finding."""
        return LogFinding(
            kind=self.kind,
            severity=self.severity,
            sentence=self.sentence,
            hint=self.hint,
            source=self.source,
            nodes=tuple(map(NodeName, self.nodes)),
            count=self.count,
            lines=tuple(self.lines),
            before=self.before[:_LONGEST],
        )


class Findings:
    """The findings so far, in the order of the log."""

    def __init__(self) -> None:
        self._entries: dict[object, Entry] = {}
        self._unknown = 0

    def entry(self, key: object, new: Entry) -> Entry:
        """Return the entry of `key`; add `new` if there is none."""
        return self._entries.setdefault(key, new)

    def add(self, message: Message, match: re.Match[str], raw: str) -> tuple[str, ...]:
        """Add a line with a known message; return the names in it."""
        new = described(message, match)
        entry = self.entry((new.kind, new.sentence), new)
        entry.heard(raw)
        groups = match.groupdict()
        names = names_in(groups.get("layer") or groups.get("names") or "")
        entry.nodes.update(dict.fromkeys(names))
        return names

    def keep(self, severity: Literal["error", "warning"], text: str, raw: str) -> None:
        """Add an unknown warning or error; lines that differ only in numbers are counted as one."""
        key = UNKNOWN, severity, _VARYING.sub("#", text)
        if key not in self._entries:
            self._unknown += 1
            if self._unknown > MOST_UNKNOWN:
                key, text = (UNKNOWN, severity, ""), f"More {severity}s of other kinds."
        self.entry(key, Entry(UNKNOWN, severity, text[:_LONGEST])).heard(raw)

    def name(self, kind: str, names: Iterable[str]) -> None:
        """Add names to the last finding of `kind`, or of kinds that begin with it."""
        for entry in reversed(self._entries.values()):
            if entry.kind.startswith(kind):
                entry.nodes.update(dict.fromkeys(names))
                return

    def name_last(self, kind: str, listed: str) -> None:
        """Add the names listed in a line, as `name` does."""
        self.name(kind, names_in(listed))

    def stopped(self, kind: str, at: str, before: str) -> None:
        """Record where the process died, in the last finding of `kind`.

        Args:
            kind: Kind of the finding.
            at: The layer being built, in TensorRT's notation; "" if the log does not tell.
            before: The last line before the process died.
        """
        self.name_last(kind, at)
        for entry in reversed(self._entries.values()):
            if entry.kind == kind:
                entry.before = before.strip()
                return

    def records(self) -> tuple[LogFinding, ...]:
        """Return the findings: errors, then warnings, then infos."""
        kinds = {entry.kind for entry in self._entries.values()}
        merged: dict[tuple[str, str, str], Entry] = {}
        for entry in self._entries.values():
            if any(kind.startswith(f"{entry.kind}-") for kind in kinds) and entry.kind != UNKNOWN:
                continue
            whole = merged.setdefault(
                (entry.kind, entry.severity, entry.sentence),
                Entry(entry.kind, entry.severity, entry.sentence, entry.hint, entry.source),
            )
            whole.before = whole.before or entry.before
            whole.nodes |= entry.nodes
            whole.count += entry.count
            whole.lines += entry.lines[: _MOST_LINES - len(whole.lines)]
        ordered = sorted(
            merged.values(), key=lambda e: (SEVERITIES.index(e.severity), e.kind in _LAST)
        )
        return tuple(entry.record() for entry in ordered)


def described(message: Message, match: re.Match[str], op: str = "") -> Entry:
    """Return what a known message means, with what is known of its operator.

    Args:
        message: The message.
        match: The match of its pattern.
        op: The node's operator, if the message itself names none.
    """
    op = match.groupdict().get("op") or op
    entry = Entry(
        message.kind, message.severity, message.words(match, op), message.hint, message.source
    )
    if message.kind == "plugin-missing" and (known := support(op)):
        entry.kind, entry.source = "operator-unsupported", OPERATORS
        entry.sentence = f"This version of TensorRT does not support the operator {op}."
        entry.hint = known
    return entry


GUIDE = "https://docs.nvidia.com/deeplearning/tensorrt/latest/"
ISSUES = "https://github.com/NVIDIA/TensorRT/issues/"
