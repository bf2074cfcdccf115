"""Read a builder's log and say what it means.

The log may come from the worker, or from a file saved from trtexec, Polygraphy, Python, ONNX
Runtime or PyTorch, with timestamps and colours, in any encoding. The messages of `messages.toml`
are explained; other warnings and errors are kept, and similar ones counted together.

Errors of the ONNX parser take several lines. They name a node, print it as text, and give the
reason in a separate line:

    While parsing node number 12 [If -> "output"]:
    --- Begin node ---
    input: "a"  …  name: "If_12"  op_type: "If"  …
    --- End node ---
    ERROR: file.cpp:4643 In function importIf:
    [8] Assertion failed: …

Python and Polygraphy print `In node 12 with name: If_12 and operator: If (importIf): CODE: …`.
"""

import codecs
import re
import tomllib
from collections.abc import Iterable, Iterator
from functools import cache, lru_cache
from importlib.resources import files
from io import BufferedReader, RawIOBase, TextIOWrapper
from typing import BinaryIO, Literal, NamedTuple, cast

from msgspec import Struct

from halfwise.errors import CaseError
from halfwise.files import BLOCK
from halfwise.records import SEVERITIES, LogFinding, NodeName, Severity
from halfwise.tensorrt.layers import names_in
from halfwise.tensorrt.versions import OPERATORS, logged_version, support
from halfwise.wording import FEW, excerpt

UNKNOWN = "unknown"
MOST_UNKNOWN = 1000
"""Kinds of unknown lines that are kept apart; the rest are counted together."""
_LAST = ("not-parsed", "not-valid", "engine-refused", "not-built")
"""Errors that only follow from others, so they are listed after them."""
_VARYING = re.compile(r"0x[0-9a-fA-F]+|\d+(?:\.\d+)?")


class Message(Struct, frozen=True):
    r"""A known message, in any of its wordings.

    Attributes:
        kind: Its identifier. Of "a" and "a-b", the former only announces the latter.
        severity: How bad it is.
        pattern: Matches every wording. Its groups `names` (a list) and `layer` (an expression such
            as `a + b`) name nodes; the other groups fill the sentence. Lines may be a mebibyte
            long: a pattern that starts with a repetition is anchored (`(?<!\S)\S+`).
        sentence: What it means, with `{group}` where the message varies.
        source: URL of the report or documentation behind it.
        hint: What to do about it; may be empty for an "info".
    """

    kind: str
    severity: Severity
    pattern: re.Pattern[str]
    sentence: str
    source: str
    hint: str = ""

    def words(self, match: re.Match[str], op: str = "") -> str:
        """Return the sentence for a match; `op` is used if the match names no operator."""
        groups = {name: (text or "").strip() for name, text in match.groupdict().items()}
        if "op" in groups:
            groups["op"] = groups["op"] or op or "that a node needs"
        # Alternatives of a pattern fill different groups; the others are empty.
        return " ".join(self.sentence.format(**groups).split())


@cache
def messages() -> tuple[Message, ...]:
    """Return all known messages of TensorRT 8.5 to 11; the first whose pattern matches counts."""
    text = files("halfwise.tensorrt").joinpath("messages.toml").read_text("utf-8")
    return tuple(
        Message(pattern=re.compile("|".join(entry.pop("wordings"))), **entry)
        for entry in tomllib.loads(text)["message"]
    )


@lru_cache(maxsize=4096)
def known(text: str) -> tuple[Message, re.Match[str]] | None:
    """Return the known message in a line (without its prefix); None if there is none."""
    for message in messages():
        if match := message.pattern.search(text):
            return message, match
    return None


class Entry(Struct):
    """A finding that may still grow; its attributes are those of `LogFinding`.

    For a parser error, `explained` is true once its reason is known; `op` is the node's operator,
    if any line gave it.
    """

    kind: str
    severity: Severity
    sentence: str
    hint: str = ""
    source: str = ""
    nodes: dict[str, None] = {}
    count: int = 0
    lines: list[str] = []
    before: str = ""
    explained: bool = False
    op: str = ""

    def heard(self, raw: str) -> None:
        """Count a line."""
        self.count += 1
        if len(self.lines) < FEW:
            self.lines.append(excerpt(raw.strip()))

    def name(self, names: Iterable[str]) -> None:
        """Add names that belong to it."""
        self.nodes.update(dict.fromkeys(names))

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
            before=excerpt(self.before),
        )


class Findings:
    """The findings so far, in the order of the log."""

    def __init__(self) -> None:
        self._entries: dict[object, Entry] = {}
        self._unknown = 0

    def entry(self, key: object, new: Entry) -> Entry:
        """Return the entry of `key`; add `new` if there is none."""
        return self._entries.setdefault(key, new)

    def add(
        self, message: Message, match: re.Match[str], raw: str
    ) -> tuple[Entry, tuple[str, ...]]:
        """Add a line with a known message; return its finding, and the names in the line."""
        new = described(message, match)
        entry = self.entry((new.kind, new.sentence), new)
        entry.heard(raw)
        groups = match.groupdict()
        names = names_in(groups.get("layer") or groups.get("names") or "")
        entry.name(names)
        return entry, names

    def keep(self, severity: Literal["error", "warning"], text: str, raw: str) -> None:
        """Add an unknown warning or error; lines that differ only in numbers are counted as one."""
        key = UNKNOWN, severity, _VARYING.sub("#", text)
        if key not in self._entries:
            self._unknown += 1
            if self._unknown > MOST_UNKNOWN:
                key, text = (UNKNOWN, severity, ""), f"More {severity}s of other kinds."
        self.entry(key, Entry(UNKNOWN, severity, excerpt(text))).heard(raw)

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
            whole.lines += entry.lines[: FEW - len(whole.lines)]
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
    if message.kind == "plugin-missing" and (versions := support(op)):
        entry.kind, entry.source = "operator-unsupported", OPERATORS
        entry.sentence = f"This version of TensorRT does not support the operator {op}."
        entry.hint = versions
    return entry


_KIND = "parse-error"
_START = re.compile(
    r'While parsing node number (?P<number>\d+) \[(?P<op>[^\s\]]*)(?: -> "(?P<output>[^"]*)")?'
)
_PRINTED = re.compile(r"^\s*(?:[a-z_]+ ?[:{]|\}|$)")
_NAME = re.compile(r'^\s*name: "(.+)"$')
_WHERE = re.compile(r"^(?:ERROR: )?\S+\.(?:cpp|hpp|h):\d+ In function (?P<function>\w+):")
_WHY = re.compile(r"^\[(?P<code>\d+)\] ?(?P<reason>.+)")
_ONE_LINE = re.compile(
    r"In node (?P<number>-?\d+)(?: with name: (?P<name>.*?) and operator: (?P<op>\S+))? ?"
    r"\((?P<function>\w+)\): (?P<code>[A-Z_]+): (?P<reason>.+)"
)
_MISSING = re.compile(r"could not find [Pp]lugin:? (?P<op>\S+)")
_IMPORTER = re.compile(r"^import(?!FallbackPluginImporter$)(?P<op>\w+)$")


class ParserErrors:
    """Reads the lines of a log that belong to a parser error."""

    def __init__(self, findings: Findings) -> None:
        """Collect findings in `findings`."""
        self._found = findings
        self._current: Entry | None = None
        self._printing = self._unnamed = False
        self._missing = ""

    def take(self, text: str, raw: str) -> bool:
        """Read a line; return whether it belongs to a parser error.

        Args:
            text: The line without its prefix.
            raw: The whole line.
        """
        if start := _START.search(text):
            self._begin(start, raw)
            return True
        if line := _ONE_LINE.search(text):
            self._take_one_line(line, raw)
            return True
        if missing := _MISSING.search(text):
            # For an operator in a body, the parser names only the If or Loop around it.
            self._missing = missing["op"]
        entry = self._current
        if entry is None or not self._belongs(entry, text):
            return False
        entry.heard(raw)
        return True

    def _begin(self, start: re.Match[str], raw: str) -> None:
        op, name = start["op"], start["output"] or ""
        entry = self._entry(int(start["number"]), op, name)
        entry.heard(raw)
        self._current, self._printing = entry, False

    def _belongs(self, entry: Entry, text: str) -> bool:
        if text.startswith(("--- Begin node", "--- End node")):
            self._printing = self._unnamed = text.startswith("--- Begin")
            return True
        self._printing = self._printing and _PRINTED.match(text) is not None
        if self._printing and self._unnamed:
            # Its name comes before its attributes, which have names too.
            self._unnamed = not text.endswith("{")
            if name := _NAME.match(text):
                entry.nodes, self._unnamed = {name[1]: None}, False
        if self._printing or _WHERE.match(text):
            return True
        if why := _WHY.match(text):
            self._explain(entry, why["reason"])
            self._current = None
            return True
        return False

    def _take_one_line(self, line: re.Match[str], raw: str) -> None:
        importer = _IMPORTER.match(line["function"])
        op = line["op"] or (importer["op"] if importer else "")
        entry = self._entry(int(line["number"]), op, line["name"] or "")
        if line["name"]:
            # Other lines name the node's output, if they name anything.
            entry.nodes = {line["name"]: None}
        entry.heard(raw)
        if not entry.explained:
            self._explain(entry, line["reason"])

    def _explain(self, entry: Entry, reason: str) -> None:
        missing, self._missing = self._missing, ""
        entry.explained, message = True, known(reason)
        if message is None:
            entry.sentence = f"{_refused(entry.op)[:-1]}: {reason.strip()}"
            return
        new = described(*message, missing or entry.op)
        entry.kind, entry.sentence = new.kind, new.sentence
        entry.hint, entry.source = new.hint, new.source

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


LONGEST_LINE = 1 << 20
"""Characters read of a line: bounds the memory for a file without line ends."""

_SEVERITIES = {
    "error": "e error f fatal c critical ! internal_error internal-error",
    "warning": "w warn warning",
    "info": "i info s n notice",
    "verbose": "v verbose x xx d debug trace",
}
_SEVERITY = {word: name for name, words in _SEVERITIES.items() for word in words.split()}
_WORD = r"(?:internal[_ -]?error|critical|verbose|warning|notice|error|fatal|debug|trace|info|warn)"
_COLOUR = re.compile(
    r"(?:\['?)?(?:\x1b|\\x1b|\\033)\[[0-9;?]*[A-Za-z](?:'\])?|[\x00-\x08\x0e-\x1f]"
)
_PREFIX = re.compile(
    rf"""\s*(?:
      \[\d{{1,4}}[-/.:]\d[\d/.,:\ T-]*(?:\s(?P<dated>[A-Za-z_]+))?\]       # [11/20/2026-10:00:00]
    | \[(?:TRT|TensorRT(?:-LLM)?|Torch-TensorRT[^\]]*|MS)\](?:\s-\s)?
    | \[\s?(?P<bracket>[VIWEXFCSD!]|XX|{_WORD})\s*\]
    | \[(?P<runtime>[VIWEF]):onnxruntime[^\]]*\]
    | \[libprotobuf\s(?P<protobuf>[A-Z]+)\s[^\]]*\]
    | \[?(?P<flow>[IWEF])(?:\d{{3,4}}\s[\d:.]+(?:\s+\d+)?)?\s\S+\.\w+:\d+\]      # glog
      (?:\sTF-TRT\sWarning:)?(?:\sDefaultLogger)?
    | \d{{4}}-\d\d-\d\d[\sT]\d\d:\d\d:\d\d[.,\d]*Z?:?(?=\s)
    | \d\d:\d\d:\d\d\.\d+(?=\s)
    | (?P<word>{_WORD})(?::(?:root:|torch_tensorrt\s?\[[^\]]*\]:)?|\s+TRT:)
    | (?:-\s)?(?:[\w.\[\]]+\s)?-\s(?P<logged>{_WORD})\s-(?=\s)                # Python's logging
    | (?P<letter>[EW])\s+(?=[\w.]+:\s|[A-Z][a-z]+\s)                        # RKNN
    | [\w.-]+\s*\|(?=\s*\[)                                                # docker compose
    | [>\#](?=\s)
    | (?:output|noise):(?=\s[^"])                                          # the worker's own
    | &&&&(?=\s(?P<failed>FAILED))
    )""",
    re.VERBOSE | re.IGNORECASE,
)
_PLACE = re.compile(r"^\S+\.(?:cpp|hpp|h|cu):\d+: ")
_AT = re.compile(
    r"(?:Computing costs for|Timing Runner:|Autotuning Op|Parsing node:|Building layer:?) "
    r"(?P<layer>.+?)(?: \([A-Za-z]\w*\[\w+\]\)| \[\w+\])?(?: [*=-]+)?$"
)
"""Where a builder says which layer it is working on."""
_CODE = re.compile(r"\bError Code:? ?\d+|\bError\[\d+\]")
_RAISED = re.compile(
    r"^[\w.]*(?:Error|Exception|NotImplemented|InvalidArgument|InvalidGraph|Fail)(?::|$)"
    r"|\s(?:\w+\.)*[A-Z]\w*[a-z](?:Error|Exception): (?![-+.\d])"
    r"|\[ONNXRuntimeError\] : \d+ :|^terminate called after throwing"
)
"""An exception of Python, ONNX Runtime or C++: an error, whatever it says.

In the middle of a line it has a class's name, and no number follows, as one would an error measure.
"""
_MARKED = re.compile(
    r"(?<![\w-])(?<!\b0 )(?<!\b[Nn][Oo] )(?:ERR|ERROR|FATAL|CRITICAL|FAILED|PANIC)(?![\w-])"
    r"(?!\s*[:=]\s*[-+.\d])"
    r"|(?:\w: |\) |\bfatal )[Ee]rror: (?![-+.\d])|(?<!\b0 )(?<!\bno )\bfailed[.!]?$"
    r"|\blevel\"?[=:]\s?\"?(?:error|fatal|critical|panic)\b"
    r"|(?:^|: )(?:[Ff]ailed|[Uu]nable) to |\bpanicked at |^panic: |^\w*make(?:\[\d+\])?: \*\*\*"
)
"""How other programs mark an error, in a line of no form known here; no number or 0 follows."""
_LAYERNORM = "layernorm-fp16"
_ENDS = ("crash", "killed")
"""Kinds that end a build: the lines before them tell how far it had come."""
_AFFECTED = re.compile(r"^\s*List of affected weights: (?P<names>.*)")


class LogLine(NamedTuple):
    """A line of a log without its prefix.

    Attributes:
        severity: "error", "warning", "info" or "verbose"; "" if the line has none.
        text: The message.
    """

    severity: str
    text: str


def split_line(line: str) -> LogLine:
    """Return a line's severity and text, without colours, timestamps, tags and source location."""
    text, severity = _COLOUR.sub("", line), ""
    while prefix := _PREFIX.match(text):
        if prefix.lastgroup:
            severity = _SEVERITY.get(prefix[prefix.lastgroup].lower(), "error")
        text = text[prefix.end() :]
    return LogLine(severity, _PLACE.sub("", text.strip()))


def explain(lines: Iterable[str]) -> tuple[LogFinding, ...]:
    """Return the findings in `lines`: errors, then warnings, then infos.

    Every warning and error counts in some finding; the sentence of an "unknown" one is the
    builder's own text. A message that only announces others ("weights") is dropped if those
    followed.

    Args:
        lines: Lines of a file or of a build. They may contain line ends.
    """
    explainer = Explainer()
    for line in lines:
        explainer.add(line)
    return explainer.findings()


class Explainer:
    """Reads a log line by line and keeps only its findings.

    Attributes:
        lines: Lines read.
        tensorrt: Version of TensorRT, once a line gave it.
    """

    def __init__(self) -> None:
        self.lines = 0
        self.tensorrt: str | None = None
        self._at = self._before = ""
        self._found = Findings()
        self._parser = ParserErrors(self._found)
        self._weights: tuple[str, ...] = ()
        self._affected: Entry | None = None
        self._named_next: Entry | None = None

    def add(self, line: str) -> None:
        """Read a line, or a message of several lines, of which only the first is counted."""
        first, *rest = line.split("\n")
        split = split_line(first)
        self._take(split, line)
        self._before = first if split.text else self._before
        for raw in rest:
            self._take(split_line(raw), raw)
        self.lines += 1 + len(rest)

    def findings(self) -> tuple[LogFinding, ...]:
        """Return the findings so far."""
        return self._found.records()

    def _take(self, line: LogLine, raw: str) -> None:
        if not line.text:
            return
        self.tensorrt = self.tensorrt or logged_version(line.text)
        if self._parser.take(line.text, raw):
            return
        self._at = at_layer(line.text) or self._at
        if line.severity == "verbose":
            self._take_names(line.text)
            return
        message = known(line.text)
        if message is not None:
            self._take_known(*message, raw)
        elif line.severity in ("error", "warning"):
            self._found.keep("error" if line.severity == "error" else "warning", line.text, raw)
        elif (
            _CODE.search(line.text)
            or _RAISED.search(line.text)
            or (not line.severity and _MARKED.search(line.text))
        ):
            self._found.keep("error", line.text, raw)

    def _take_known(self, message: Message, match: re.Match[str], raw: str) -> None:
        groups = match.groupdict()
        entry, names = self._found.add(message, match, raw)
        follow = message.kind == _LAYERNORM and "Detected" in match[0] and not names
        self._named_next = entry if follow else None
        if message.kind in _ENDS:
            entry.name(names_in(self._at))
            entry.before = self._before.strip()
        if message.kind == "weights" and groups.get("layer"):
            self._weights = names
        elif message.kind.startswith("weights-"):
            self._affected = entry
            entry.name(() if "quantity" in groups else self._weights)

    def _take_names(self, text: str) -> None:
        """Read a verbose line that only lists the names announced by the line before it."""
        listed = _AFFECTED.match(text)
        if listed and self._affected:
            self._affected.name(names_in(listed["names"]))
        elif self._named_next and ", " in text and ": " not in text:
            self._named_next.name(names_in(text))
        self._named_next = None


def at_layer(text: str) -> str:
    """Return the layer that a builder says it is working on; "" if the line does not say."""
    match = _AT.search(text)
    return match["layer"] if match else ""


def read_lines(stream: BinaryIO, source: str) -> Iterator[str]:
    """Yield the lines of a log with any line ends, holding one at a time; the stream is closed.

    Reads UTF-8, or UTF-16 as PowerShell writes it; bytes that are neither become U+FFFD.

    Raises:
        CaseError: the file is empty or not text.
    """
    with BufferedReader(cast("RawIOBase", stream), BLOCK) as buffered:
        head = buffered.peek()
        encoding = _encoding(head)
        _demand_text(head.decode(encoding, "replace"), source)
        text = TextIOWrapper(buffered, encoding, "replace")
        while line := text.readline(LONGEST_LINE):
            yield line.removesuffix("\n")
            while len(line) == LONGEST_LINE and not line.endswith("\n"):
                line = text.readline(LONGEST_LINE)


def _encoding(head: bytes) -> str:
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    if head[1:200:2].count(0) > 0.8 * len(head[1:200:2]) > 1:
        return "utf-16-le"
    return "utf-8-sig"


def _demand_text(head: str, source: str) -> None:
    """Reject a file that is empty, or mostly not text, such as a model or an engine."""
    if not head:
        raise CaseError(f"{source} is empty.", "Give the output of trtexec, Polygraphy or Python.")
    foreign = head.count("\N{REPLACEMENT CHARACTER}")
    # Colours (ESC) and progress bars (backspace) are text.
    control = sum(c < "\x07" or "\x0e" <= c < "\x1b" for c in head)
    if foreign > 0.3 * len(head) or control > 0.02 * len(head):
        raise CaseError(
            f"{source} is not text, so it is not a log.",
            "Give the output of trtexec, Polygraphy or Python; pass a model with --model.",
        )
