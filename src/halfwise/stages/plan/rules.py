"""User rules: nodes that must be kept, or must be low, whatever the search would say."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from halfwise.case import Rules
from halfwise.errors import CaseError
from halfwise.graph.model import Network, node_name
from halfwise.graph.patterns import PATTERNS, written_out
from halfwise.graph.roles import Role, Roles
from halfwise.records import NodeName


@dataclass(frozen=True)
class Forced:
    """Rules applied to a network.

    Attributes:
        kept: Kept node → the rule that keeps it, as written on the command line.
        lowered: Node that must be low → the rule.
    """

    kept: Mapping[NodeName, str]
    lowered: Mapping[NodeName, str]


def apply_rules(network: Network, roles: Roles, rules: Rules) -> Forced:
    """Return which nodes the rules decide.

    Nodes that must be FP32 anyway satisfy a keep rule and are left out of the result.

    Raises:
        CaseError: a rule matches nothing, an invalid regular expression, a node that is both kept
            and lowered, or a lowered node that must be FP32.
    """
    kept: dict[NodeName, str] = {}
    lowered: dict[NodeName, str] = {}
    for rule in rules.keep:
        matches = _output_producers(network, roles) if rule == "outputs" else _named(rule, roles)
        _demand(matches, f"--keep {rule}", "node", network)
        kept |= {n: f"--keep {rule}" for n in matches if roles[n].free}
    for op in rules.keep_op:
        matches = [node_name(n) for n in network.nodes() if n.op_type == op]
        if op in PATTERNS:
            matches += [n for group in written_out(network, op) for n in group]
        _demand(matches, f"--keep-op {op}", "operator", network)
        kept |= {n: f"--keep-op {op}" for n in matches if roles[n].free}
    for rule in rules.lower:
        matches = _named(rule, roles)
        _demand(matches, f"--lower {rule}", "node", network)
        for name in matches:
            if roles[name].role is Role.PINNED:
                raise CaseError(
                    f"--lower {rule} matches {name}, which must be FP32: {roles[name].reason}.",
                    "Leave that node out of the rule.",
                )
        lowered |= {n: f"--lower {rule}" for n in matches if roles[n].free}
    for name in kept.keys() & lowered.keys():
        raise CaseError(
            f"{kept[name]} and {lowered[name]} both match node {name}.",
            "Make the rules disjoint.",
        )
    return Forced(kept, lowered)


def _named(rule: str, roles: Roles) -> list[NodeName]:
    if NodeName(rule) in roles:
        return [NodeName(rule)]
    try:
        pattern = re.compile(rule)
    except re.error as error:
        raise CaseError(
            f"{rule!r} is neither a node's name nor a regular expression: {error}.",
            "Quote special characters with a backslash.",
        ) from error
    return [name for name in roles if pattern.fullmatch(name)]


def _output_producers(network: Network, roles: Roles) -> list[NodeName]:
    """Return the compute nodes whose results reach an output through data movement only."""
    names: dict[NodeName, None] = {}
    pending = [v.producer() for v in network.graph.outputs]
    while pending:
        node = pending.pop()
        if node is None or node_name(node) in names:
            continue
        names[node_name(node)] = None
        if roles[node_name(node)].role is Role.MOVEMENT:
            pending += [v.producer() for v in node.inputs if v is not None]
    return list(names)


def _demand(matches: Sequence[NodeName], rule: str, what: str, network: Network) -> None:
    if matches:
        return
    if what == "operator":
        known = sorted({n.op_type for n in network.nodes()})
        raise CaseError(f"{rule} matches no node.", f"The model has: {', '.join(known)}.")
    raise CaseError(
        f"{rule} matches no node.",
        "Give a node's full name or a regular expression that matches the full name; "
        "`halfwise observe` lists the names.",
    )
