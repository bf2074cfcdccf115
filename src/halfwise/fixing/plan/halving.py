"""Lower as much of a plan as passes, group by group."""

from collections.abc import Callable, Sequence

from halfwise.fixing.plan.groups import union
from halfwise.records import NodeName

Nodes = frozenset[NodeName]


def lowered(
    kept: Nodes,
    groups: Sequence[Nodes],
    passes: Callable[[Nodes], bool],
    *,
    split: Sequence[NodeName] = (),
) -> Nodes:
    """Return `kept` with as much of `groups` lowered as passes, earlier groups first.

    Args:
        kept: A passing set.
        groups: What to lower, least needed first.
        passes: Whether a set passes.
        split: All nodes in order; used to split a group that cannot be lowered whole.
    """
    groups = [g & kept for g in groups if g & kept]
    if not groups:
        return kept
    together = union(groups)
    if passes(kept - together):
        return kept - together
    if len(groups) == 1:
        ordered = [n for n in split if n in together]
        if len(ordered) < 2:
            return kept
        groups = [frozenset((node,)) for node in ordered]
    half = len(groups) // 2
    kept = lowered(kept, groups[:half], passes, split=split)
    return lowered(kept, groups[half:], passes, split=split)
