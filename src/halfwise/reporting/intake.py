"""Word what was repaired in a model's file when it was read."""

from collections.abc import Iterable, Sequence

from halfwise.graph.intake import Flaw, Repair
from halfwise.wording import count

_MOST_NAMES = 4
"""Values that a note names; the rest is counted."""


def repair_notes(repairs: Iterable[Repair]) -> list[str]:
    """Return a sentence for each repair; the file itself stays as it is."""
    return [f"repaired on the way in: {_sentence(repair)}" for repair in repairs]


def _sentence(repair: Repair) -> str:
    names = _listed(repair.names)
    match repair.flaw:
        case Flaw.NAMELESS:
            return "the graph has no name"
        case Flaw.SPARSE:
            return f"sparse constants are dense now ({names})"
        case Flaw.REPEATED:
            return f"values are described more than once, and the first counts ({names})"
        case Flaw.SHAPELESS:
            return f"inputs or outputs have no shape ({names})"
        case Flaw.UNSORTED:
            return "nodes stand before those that they read from"
        case Flaw.MISDECLARED:
            return f"declared shapes are not what the nodes compute, and are passed over ({names})"


def _listed(names: Sequence[str]) -> str:
    rest = len(names) - _MOST_NAMES
    more = [f"and {count(rest, 'more value')}"] if rest > 0 else []
    return ", ".join([*names[:_MOST_NAMES], *more])
