"""Say in one sentence, with numbers, why each kept node is kept."""

from collections.abc import Mapping, Sequence

from halfwise.graph.model import Network, node_name
from halfwise.records import Growth, Guard, KeptNode, NodeName


def kept_nodes(
    network: Network,
    kept: frozenset[NodeName],
    guards: Sequence[Guard],
    forced: Mapping[NodeName, str],
    excess_without: Mapping[NodeName, float],
) -> tuple[KeptNode, ...]:
    """Return a record for each kept node, in graph order.

    Args:
        network: The model.
        kept: Names of the kept nodes.
        guards: Suspicions, gravest first.
        forced: Nodes that a user rule keeps → the rule.
        excess_without: Excess over the tolerance when the node alone is lowered.
    """
    causes: dict[NodeName, Guard] = {}
    for guard in guards:
        causes.setdefault(guard.node, guard)
    for guard in guards:
        for name in guard.nodes:
            causes.setdefault(name, guard)
    records = []
    for node in network.nodes():
        name = node_name(node)
        if name in kept:
            guard = None if name in forced else causes.get(name)
            reason = _reason(name, guard, forced.get(name), excess_without.get(name))
            records.append(
                KeptNode(
                    node=name,
                    op=node.op_type,
                    reason=reason,
                    guard=guard.kind if guard else None,
                    error_without=excess_without.get(name),
                )
            )
    return tuple(records)


def _reason(name: NodeName, guard: Guard | None, rule: str | None, excess: float | None) -> str:
    if rule is not None:
        return f"Kept by the rule {rule}."
    effect = "" if excess is None else f"; low, it {_effect(excess)}"
    if guard is None:
        return f"No single number stands out here{effect}." if effect else "Part of the best plan."
    cause = guard.message if guard.node == name else f"needed by {guard.node}: {guard.message}"
    fix = f" Usual fix: {guard.fix}" if guard.fix else ""
    return f"{cause[0].upper()}{cause[1:]}{effect}.{fix}"


def _effect(excess: float) -> str:
    if excess == float("inf"):
        return "gives NaN or infinite outputs"
    return f"brings the error to at least {excess:.3g} × what is allowed"


def depth_note(plan: Sequence[KeptNode], growth: Sequence[Growth]) -> str | None:
    """Return a sentence where no guard explains most kept nodes, with the error's growth."""
    unexplained = [k for k in plan if k.guard is None and not k.reason.startswith("Kept by")]
    if len(unexplained) * 2 <= len(plan) or not growth:
        return None
    marks = [growth[round(i * (len(growth) - 1) / 3)] for i in range(4)]
    path = ", ".join(f"{m.error:.2g} at {m.node}" for m in marks)
    return (
        f"No node stands out for {len(unexplained)} of {len(plan)} kept nodes: the error accumulates "
        f"with depth (relative RMS error, everything low: {path})."
    )
