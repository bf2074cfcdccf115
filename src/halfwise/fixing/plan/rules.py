"""User rules: nodes that must be kept, or must be low, whatever the search would say."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from halfwise.case import Rules
from halfwise.errors import CaseError
from halfwise.graph.model import Network, node_name
from halfwise.graph.patterns import PATTERNS, written_out
from halfwise.graph.roles import Role, Roles, bodies
from halfwise.records import NodeName

ISLAND = "Kept by the model itself: its file computes this node in FP32 among lower ones."
"""Why an island is kept."""


@dataclass(frozen=True)
class Forced:
    """Rules applied to a network.

    Attributes:
        kept: Kept node → the rule that keeps it, as written on the command line, or `ISLAND`.
        lowered: Node that must be low → the rule.
    """

    kept: Mapping[NodeName, str]
    lowered: Mapping[NodeName, str]


def apply_rules(
    network: Network,
    roles: Roles,
    rules: Rules,
    islands: frozenset[NodeName] = frozenset(),
) -> Forced:
    """Return which nodes the rules decide, and the author of the model by its `islands`.

    A rule may use halfwise's names and, where these differ, those in the user's file: there a name
    stands for every node that bears it. Nodes that must be FP32 anyway satisfy a keep rule and are
    left out of the result. An island that a rule lowers is none.

    Raises:
        CaseError: a rule matches nothing, an invalid regular expression, a node that is both kept
            and lowered, or a lowered node that must be FP32.
    """
    kept: dict[NodeName, str] = {}
    lowered: dict[NodeName, str] = {}
    for rule in rules.keep:
        outputs = rule == "outputs"
        matches = _output_producers(network, roles) if outputs else named(rule, network)
        _demand_node(matches, "--keep", rule, network)
        kept |= {n: f"--keep {rule}" for n in matches if roles[n].free}
    for op in rules.keep_op:
        matches = [node_name(n) for n in network.nodes() if n.op_type == op]
        if op in PATTERNS:
            matches += [n for group in written_out(network, op) for n in group]
        if not matches:
            known = ", ".join(sorted({n.op_type for n in network.nodes()}))
            raise CaseError(f"--keep-op {op} matches no node.", f"The model has: {known}.")
        kept |= {n: f"--keep-op {op}" for n in matches if roles[n].free}
    for rule in rules.lower:
        matches = named(rule, network)
        _demand_node(matches, "--lower", rule, network)
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
    own = {n: ISLAND for n in islands if roles[n].free and n not in lowered}
    return Forced(own | kept, lowered)


def named(rule: str, network: Network) -> list[NodeName]:
    """Return the nodes that a rule names, in graph order: one by its name, or all that it matches.

    Raises:
        CaseError: `rule` is neither a node's name nor a regular expression.
    """
    names = _names(network)
    exact = [node for node, known in names.items() if rule in known]
    if exact:
        return exact
    try:
        pattern = re.compile(rule)
    except re.error as error:
        raise CaseError(
            f"{rule!r} is neither a node's name nor a regular expression: {error}.",
            "Quote special characters with a backslash.",
        ) from error
    return [node for node, known in names.items() if any(map(pattern.fullmatch, known))]


def _names(network: Network) -> dict[NodeName, set[str]]:
    """Return each node's name, and the user's own one where it had one."""
    own = network.original_names
    return {n: {n, own.get(n) or n} for n in map(node_name, network.nodes())}


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


def _demand_node(matches: Sequence[NodeName], option: str, rule: str, network: Network) -> None:
    if matches:
        return
    if outer := _around(rule, network):
        raise CaseError(
            f"{option} {rule} names a node in a body of {outer}, which decides for it.",
            f"Name {outer}: its bodies are low or kept with it, but for what must be FP32.",
        )
    known = dict.fromkeys(name for names in _names(network).values() for name in names)
    close = get_close_matches(rule, known)
    meant = f" Did you mean {' or '.join(close)}?" if close else ""
    raise CaseError(
        f"{option} {rule} matches no node.",
        f"Give a node's full name or a regular expression that matches the full name.{meant}",
    )


def _around(name: str, network: Network) -> NodeName | None:
    """Return the node of the main graph that has a node called `name` in its bodies."""
    for node in network.nodes():
        if any(inner.name == name for body in bodies(node) for inner in body.all_nodes()):
            return node_name(node)
    return None
