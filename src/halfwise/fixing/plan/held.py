"""What the outputs show about nodes that a plan keeps for other reasons."""

from collections.abc import Iterable
from dataclasses import replace

from halfwise.emulation.budget import Budget
from halfwise.fixing.plan.found import Evaluate, Found
from halfwise.records import NodeName

Nodes = frozenset[NodeName]


def not_yet_alone(found: Found, held: Nodes) -> Nodes:
    """Return the nodes that the search did not lower alone in this plan.

    Those are the `held` ones and, if it then took a larger plan that costs less, all needed ones.
    """
    return found.kept & held | (found.needed if found.spare else frozenset())


def with_each_lowered(
    found: Found, nodes: Iterable[NodeName], evaluate: Evaluate, budget: Budget
) -> Found:
    """Add to a plan what each of these of its nodes does alone, while time is left."""
    without, nonfinite = dict(found.excess_without), set(found.nonfinite_without)

    def alone() -> None:
        for node in sorted(nodes):
            budget.check()
            trial = evaluate(found.kept - {node}, confirm=True)
            if not trial.passed:
                without[node] = trial.excess
                nonfinite.update({node} if trial.nonfinite else ())

    budget.within("certify", alone, None)
    return replace(found, excess_without=without, nonfinite_without=frozenset(nonfinite))
