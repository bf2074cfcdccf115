"""Read a builder's log and say what it means.

The log may come from the worker, or from a file saved from trtexec, Polygraphy, Python, ONNX
Runtime or PyTorch, with timestamps and colours, in any encoding. Known messages are explained;
unknown warnings and errors are kept, and similar ones counted together. The wordings in `KNOWN`
are from logs that users published; each message cites such a report or the documentation.
"""

import codecs
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import BinaryIO, NamedTuple

from halfwise.errors import CaseError
from halfwise.records import LogFinding
from halfwise.tensorrt.log.findings import Findings, Message
from halfwise.tensorrt.log.messages_builder import BUILDING, ENGINES, PARSING
from halfwise.tensorrt.log.messages_model import PRECISION, SHAPES
from halfwise.tensorrt.log.messages_quantised import QUANTISATION
from halfwise.tensorrt.log.messages_system import CRASHES, ENVIRONMENT, POLYGRAPHY, STOPPED
from halfwise.tensorrt.log.parser_errors import ParserErrors
from halfwise.tensorrt.versions import logged_version

KNOWN: tuple[Message, ...] = (
    *QUANTISATION,
    *PRECISION,
    *PARSING,
    *SHAPES,
    *ENGINES,
    *ENVIRONMENT,
    *BUILDING,
    *POLYGRAPHY,
    *CRASHES,
)
"""All known messages of TensorRT 8.5 to 11. The first pattern that matches counts, so specific
ones come first."""
LONGEST_LINE = 1 << 20
"""Characters read of a line: bounds the memory for a file without line ends."""
_CHUNK = 1 << 16

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
    | \[(?P<bracket>[VIWEXFCSD!]|XX|{_WORD})\]
    | \[(?P<runtime>[VIWEF]):onnxruntime[^\]]*\]
    | \[libprotobuf\s(?P<protobuf>[A-Z]+)\s[^\]]*\]
    | (?P<flow>[IWEF])\s\S+\.cc:\d+\](?:\sTF-TRT\sWarning:)?(?:\sDefaultLogger)?
    | \d{{4}}-\d\d-\d\d[\sT]\d\d:\d\d:\d\d[.,\d]*Z?:?(?=\s)
    | \d\d:\d\d:\d\d\.\d+(?=\s)
    | (?P<word>{_WORD})(?::(?:root:|torch_tensorrt\s?\[[^\]]*\]:)?|\s+TRT:)
    | [\w.-]+\s*\|(?=\s*\[)                                                # docker compose
    | [>\#](?=\s)
    | (?:output|noise):(?=\s[^"])                                          # the worker's own
    | &&&&(?=\s(?P<failed>FAILED))
    )""",
    re.VERBOSE | re.IGNORECASE,
)
_PLACE = re.compile(r"^\S+\.(?:cpp|hpp|h|cu):\d+: ")
_COMMAND = re.compile(
    r"RUNNING TensorRT\.trtexec[^#]*# (?P<trtexec>.+)"
    r"|RUNNING \| Command: (?P<polygraphy>.+)"
    r"|(?:[)\uff09]|(?:^|[:\uff1a]\s*)\d+\s+\D+?)\s+(?P<shell>\S*trtexec\s.+)"
)
_AT = re.compile(
    r"(?:Computing costs for|Timing Runner:|Autotuning Op|Parsing node:|Building layer:?) "
    r"(?P<layer>.+?)(?: \([A-Za-z]\w*\[\w+\]\)| \[\w+\])?(?: [*=-]+)?$"
)
"""Where a builder says which layer it is working on."""
_CODE = re.compile(r"\bError Code:? ?\d+|\bError\[\d+\]")
_LAYERNORM = "layernorm-fp16"
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
    while found := _PREFIX.match(text):
        if found.lastgroup:
            severity = _SEVERITY.get(found[found.lastgroup].lower(), "error")
        text = text[found.end() :]
    return LogLine(severity, _PLACE.sub("", text.strip()))


def explain(lines: Iterable[str | LogLine]) -> tuple[LogFinding, ...]:
    """Return the findings in `lines`: errors, then warnings, then infos.

    Every warning and error counts in some finding; the sentence of an "unknown" one is the
    builder's own text. A message that only announces others ("weights") is dropped if those
    followed.

    Args:
        lines: Lines of a file, or lines with their severity from the worker. They may contain line
            ends.
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
        command: The command that was run, once a line gave it; empty before.
    """

    def __init__(self) -> None:
        self.lines = 0
        self.tensorrt: str | None = None
        self.command = ""
        self._at = self._before = ""
        self._found = Findings()
        self._parser = ParserErrors(self._found)
        self._weights: tuple[str, ...] = ()
        self._names_follow = False

    def add(self, line: str | LogLine) -> None:
        """Read a line, or a message of several lines, of which only the first is counted."""
        severity, text = ("", line) if isinstance(line, str) else line
        first, *rest = text.split("\n")
        own = split_line(first)
        severity = own.severity or _SEVERITY.get(severity.lower(), "")
        self._take(LogLine(severity, own.text), text)
        self._before = first if own.text else self._before
        for raw in rest:
            self._take(split_line(raw), raw)
        self.lines += 1 + len(rest)

    def findings(self) -> tuple[LogFinding, ...]:
        """Return the findings so far."""
        return self._found.records()

    def _take(self, line: LogLine, raw: str) -> None:
        if not line.text:
            return
        self._note_call(line.text)
        if self._parser.take(line.text, raw, known):
            return
        self._at = at_layer(line.text) or self._at
        if line.severity == "verbose":
            self._take_names(line.text)
            return
        found = known(line.text)
        if found is not None:
            self._take_known(*found, raw)
        elif line.severity in ("error", "warning"):
            self._found.keep("error" if line.severity == "error" else "warning", line.text, raw)
        elif _CODE.search(line.text):
            self._found.keep("error", line.text, raw)

    def _take_known(self, message: Message, match: re.Match[str], raw: str) -> None:
        groups = match.groupdict()
        names = self._found.add(message, match, raw)
        self._names_follow = message.kind == _LAYERNORM and "Detected" in match[0] and not names
        if message.kind in STOPPED:
            self._found.stopped(message.kind, self._at, self._before)
        if message.kind == "weights" and groups.get("layer"):
            self._weights = names
        elif message.kind.startswith("weights-") and "quantity" not in groups:
            self._found.name(message.kind, self._weights)

    def _take_names(self, text: str) -> None:
        """Read a verbose line that only lists the names announced by the line before it."""
        if listed := _AFFECTED.match(text):
            self._found.name_last("weights-", listed["names"])
        elif self._names_follow and ", " in text and ": " not in text:
            self._found.name_last(_LAYERNORM, text)
        self._names_follow = False

    def _note_call(self, text: str) -> None:
        if not self.command and (called := _COMMAND.search(text)):
            self.command = next(group for group in called.groups() if group).strip()
        self.tensorrt = self.tensorrt or logged_version(text)


def at_layer(text: str) -> str:
    """Return the layer that a builder says it is working on; "" if the line does not say."""
    found = _AT.search(text)
    return found["layer"] if found else ""


@lru_cache(maxsize=4096)
def known(text: str) -> tuple[Message, re.Match[str]] | None:
    """Return the known message in a line (without its prefix); None if there is none."""
    for message in KNOWN:
        if match := message.compiled.search(text):
            return message, match
    return None


def read_lines(stream: BinaryIO, source: str) -> Iterator[str]:
    """Yield the lines of a log with any line ends, holding one at a time.

    Reads UTF-8, or UTF-16 as PowerShell writes it; bytes that are neither become U+FFFD.

    Raises:
        CaseError: the file is empty or not text.
    """
    chunk = stream.read(_CHUNK)
    if not chunk:
        raise CaseError(f"{source} is empty.", "Give the output of trtexec, Polygraphy or Python.")
    encoding = _encoding(chunk)
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    rest, cut = decoder.decode(chunk), False
    _demand_text(rest, source)
    while chunk:
        *lines, rest = re.split(r"\r\n|\r|\n", rest)
        if lines and cut:
            lines, cut = lines[1:], False
        yield from lines
        if cut:
            rest = ""
        elif len(rest) > LONGEST_LINE:
            yield rest[:LONGEST_LINE]
            rest, cut = "", True
        chunk = stream.read(_CHUNK)
        rest += decoder.decode(chunk, final=not chunk)
    if rest and not cut:
        yield rest


def _encoding(head: bytes) -> str:
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    if head[1:200:2].count(0) > 0.8 * len(head[1:200:2]) > 1:
        return "utf-16-le"
    return "utf-8-sig"


def _demand_text(head: str, source: str) -> None:
    """Reject a file that is mostly not text, such as a model or an engine."""
    foreign = head.count("\N{REPLACEMENT CHARACTER}")
    # Colours (ESC) and progress bars (backspace) are text.
    control = sum(c < "\x07" or "\x0e" <= c < "\x1b" for c in head)
    if foreign > 0.3 * len(head) or control > 0.02 * len(head):
        raise CaseError(
            f"{source} is not text, so it is not a log.",
            "Give the output of trtexec, Polygraphy or Python; pass a model with --model.",
        )
