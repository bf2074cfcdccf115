"""Extends plans that nearly passed by a little more.

Near the limit errors also cancel: of two similar plans one passes and the other fails, and no
prediction says which. So a few plans are tried that differ in one group.
"""

from collections.abc import Callable, Iterator, Sequence

from halfwise.records import NodeName

Nodes = frozenset[NodeName]

NEAR = 2.0
"""Plans that exceed what is allowed by up to this factor are worth extending."""
BASES, MOST, TOGETHER, ALONE = 3, 16, (1, 2, 3, 5), 4
"""Number of plans to extend; of the groups that contribute most; of groups added together, best for
their cost first; and of the first groups added alone."""


def extensions(
    bases: Sequence[Nodes], needed: Sequence[tuple[Nodes, float]], cost: Callable[[Nodes], float]
) -> Iterator[Nodes]:
    """Yield plans to try, with more of the groups that contribute most for their cost.

    Args:
        bases: Plans that failed, the most promising first.
        needed: Groups and their contributions, ≥ 0, the largest first.
        cost: Cost of keeping a group.
    """
    worth = {group: c * c / max(1e-9, cost(group)) for group, c in needed[:MOST]}
    for base in bases[:BASES]:
        more = sorted((g for g in worth if not g <= base), key=lambda g: -worth[g])
        choices = [*(more[:count] for count in TOGETHER), *([g] for g in more[1:ALONE])]
        yield from dict.fromkeys(base.union(*groups) for groups in choices if groups)
