"""Drop what is not needed from a set: halves first, then quarters, down to single nodes.

Delta debugging by complements (ddmin, Zeller and Hildebrandt 2002).
"""

from collections.abc import Callable, Sequence
from itertools import pairwise

from halfwise.records import NodeName


def ddmin(
    kept: frozenset[NodeName],
    order: Sequence[NodeName],
    passes: Callable[[frozenset[NodeName], int], bool | None],
) -> tuple[frozenset[NodeName], bool]:
    """Return the smallest subset found to pass, and whether it is certain to be minimal.

    Args:
        kept: A set that passes.
        order: All nodes in graph order; nodes dropped together are adjacent in it.
        passes: Returns whether a smaller set passes, given how many nodes it drops; None ends the
            search. It may be called more than once for a set.

    Returns:
        The subset, and true if it fails without any single one of its nodes.
    """
    parts = 2
    while kept:
        before = kept
        for chunk in split([n for n in order if n in kept], min(parts, len(kept))):
            passed = passes(kept - chunk, len(chunk))
            if passed is None:
                return kept, False
            if passed:
                kept -= chunk
        if kept == before and parts >= len(kept):
            break
        parts = 2 if kept != before and len(kept) < parts else parts * 2
    return kept, True


def split(names: Sequence[NodeName], parts: int) -> list[frozenset[NodeName]]:
    """Split `names` into `parts` (≥ 1) runs of nearly equal length, omitting empty ones."""
    edges = [round(i * len(names) / parts) for i in range(parts + 1)]
    return [frozenset(names[a:b]) for a, b in pairwise(edges) if b > a]
