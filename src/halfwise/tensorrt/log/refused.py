"""Read from a builder's log why a build failed, and which layer it named as the cause."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from halfwise.records import RefusalKind
from halfwise.tensorrt.layer_names import foreign_region, names_in
from halfwise.tensorrt.log.log import at_layer, known, split_line

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


def blamed(status: str, lines: Iterable[str]) -> Blamed:
    """Return how a build was refused.

    Args:
        status: `BuildOutcome.status`.
        lines: The builder's log. The last known message that names a layer counts; if none does,
            the layer that the builder was working on.
    """
    kinds: dict[RefusalKind, str] = {}
    layer = at = error = ""
    for line in lines:
        severity, text = split_line(line)
        error = text if severity == "error" and text else error
        at = at_layer(text) or at
        found = known(text)
        if found is None or found[0].kind not in _KINDS:
            continue
        kinds[_KINDS[found[0].kind]] = _inner(text[found[1].start() :])
        layer = found[1].groupdict().get("layer") or _fused(text) or layer
    told: RefusalKind = next((kind for kind in _KINDS.values() if kind in kinds), "unknown")
    line = kinds.get(told) or error
    return Blamed(_ENDED.get(status, told), (layer or at).strip(), line)


def _inner(text: str) -> str:
    """Return the text without a closing bracket whose opening bracket is not in it."""
    return text[:-1].rstrip() if text.endswith(")") and text.count(")") > text.count("(") else text


def _fused(text: str) -> str:
    """Return the text from the name of a fused block onwards; "" without one."""
    start = text.find("{ForeignNode[")
    return text[start:] if start >= 0 else ""
