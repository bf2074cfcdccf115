"""Larger plans that cost less, because of conversions around nodes that need not be kept."""

from collections.abc import Callable, Sequence
from math import inf

from halfwise.fixing.plan.found import clearly_cheaper
from halfwise.fixing.plan.guide import Guide
from halfwise.records import NodeName

Nodes = frozenset[NodeName]


def cheaper_plans(
    kept: Nodes,
    plans: Sequence[Nodes],
    guide: Guide | None,
    price: Callable[[Nodes], float | None],
    everything: Nodes,
) -> tuple[list[Nodes], list[Nodes]]:
    """Return plans that cost clearly less than `kept`, as in `clearly_cheaper`.

    First those among `plans`. If some keep all of `kept`, then the cheapest plan of all that do so,
    where it has fewer nodes than the cheapest of these or costs clearly less: plans that were tried
    may keep nodes that save nothing. It may fail, which says nothing of the others.

    Args:
        kept: A plan that passes.
        plans: Plans that passed before, at least on the worst samples.
        guide: Finds the cheapest plan; None to return only some of `plans`.
        price: Predicted cost of a plan; None if unknown.
        everything: All nodes that a plan may keep.
    """
    found = clearly_cheaper(plans, price, kept, everything)
    larger = [plan for plan in found if kept <= plan]
    if guide is None or not larger:
        return found, []
    closed, best = guide.cheapest(kept) & everything, min(larger, key=lambda p: price(p) or inf)
    than = kept if len(closed) < len(best) else best
    return found, clearly_cheaper([closed], price, than, everything)
