"""How and where a builder refused a build, by its outcome and its log, and how that is reported."""

from collections.abc import Mapping
from dataclasses import dataclass

from halfwise.errors import BuildFailed
from halfwise.records import BuildOutcome, LogFinding, RefusalKind
from halfwise.tensorrt.layers import foreign_region, names_in
from halfwise.tensorrt.log import at_layer, explain, known, split_line
from halfwise.wording import MOST_ROWS

_OTHER = "Try another --engine optimization-level=N, other tactic-sources, or another TensorRT."
_UNPARSED = (
    "No builder option helps the parser: `halfwise lint MODEL` names what the parser may "
    "reject. An operator that the parser "
    "lacks needs a plugin (--engine plugin=PATH) or another version of TensorRT. `halfwise "
    "explain-log` reads the log of trtexec."
)
LOST = (
    "Try again (`halfwise fix` with --resume). A connection through ssh lasts longer with "
    "ServerAliveInterval."
)
_ADVICE = {
    "timeout": "Give it more time: --budget build-timeout=SECONDS.",
    "skipped": "A smaller --engine workspace=SIZE or a lower optimization-level makes it a "
    "different build, which is tried; remove the journal next to the run folder to try all "
    "builds again.",
    "lost": LOST,
}


_KINDS: Mapping[str, RefusalKind] = {
    "no-kernel": "no-kernel",
    "no-format": "no-kernel",
    "myelin": "compiler",
    "cask": "compiler",
    "assertion": "compiler",
}
"""Kind of message → kind of refusal. In this order, the first one found in a log counts."""
_ENDED: Mapping[str, RefusalKind] = {"crashed": "crash", "timeout": "timeout"}


@dataclass(frozen=True)
class Blamed:
    """How a build was refused.

    Attributes:
        kind: Kind of refusal.
        layer: The layer it named, in the builder's notation: `{ForeignNode[a...b]}`, `a + b`; empty
            if it named none.
        line: The builder's last message of that kind; if no message is known, its last error
            without the severity; empty if it logged no error.
    """

    kind: RefusalKind
    layer: str = ""
    line: str = ""

    @property
    def ends(self) -> tuple[str, ...]:
        """The first and the last layer; empty if no layer was named."""
        names = names_in(self.layer)
        return foreign_region(self.layer) or (*names[:1], *names[-1:])


def how_refused(build: BuildOutcome) -> Blamed:
    """Return how a build was refused, from its message and log.

    The last known message that names a layer counts; if none does, the layer that the builder was
    working on.
    """
    kinds: dict[RefusalKind, str] = {}
    layer = at = error = ""
    for line in (*build.message.splitlines(), *build.log):
        severity, text = split_line(line)
        error = text if severity == "error" and text else error
        at = at_layer(text) or at
        found = known(text)
        if found is None or found[0].kind not in _KINDS:
            continue
        kinds[_KINDS[found[0].kind]] = _inner(text[found[1].start() :])
        layer = found[1].groupdict().get("layer") or _fused(text) or layer
    kind: RefusalKind = next((kind for kind in _KINDS.values() if kind in kinds), "unknown")
    line = kinds.get(kind) or error
    return Blamed(_ENDED.get(build.status, kind), (layer or at).strip(), line)


def _inner(text: str) -> str:
    """Return the text without a closing bracket whose opening bracket is not in it."""
    return text[:-1].rstrip() if text.endswith(")") and text.count(")") > text.count("(") else text


def _fused(text: str) -> str:
    """Return the text from the name of a fused block onwards; "" without one."""
    start = text.find("{ForeignNode[")
    return text[start:] if start >= 0 else ""


def build_failed(build: BuildOutcome, what: str) -> BuildFailed:
    """Return the error for a build without an engine, with everything its log says.

    Args:
        build: The build.
        what: What is missing, such as "no FP32 engine of this model".
    """
    by = f" by {build.signal}" if build.signal else ""
    found = [finding for finding in explain(build.log) if finding.severity != "info"]
    # Do not repeat what the message already says.
    told = [_line(finding, build.message) for finding in found]
    lines = [line for line in told if line]
    if len(lines) > MOST_ROWS:
        lines[MOST_ROWS:] = [
            f"and {len(lines) - MOST_ROWS} more; halfwise explain-log shows all of a log."
        ]
    advised = any(finding.hint and finding.kind != "not-parsed" for finding in found)
    if not build.parsed and not advised:
        lines.append(_UNPARSED)
    lines = lines or [_ADVICE.get(build.status, _OTHER)]
    return BuildFailed(
        f"TensorRT builds {what} ({build.status}{by}): {build.message}", "\n".join(lines)
    )


def _line(finding: LogFinding, said: str) -> str:
    where = f"{', '.join(finding.nodes)}: " if finding.nodes else ""
    sentence = "" if finding.sentence.rstrip(".") in said else f"{where}{finding.sentence}"
    hint = "" if finding.hint in said else finding.hint
    return f"{sentence} {hint}".strip()
