"""The parts of a plan: nodes named by a rule or a guard, or of one operator."""

from collections.abc import Iterator
from dataclasses import dataclass

from halfwise.fixing.planner import Planner
from halfwise.graph.model import node_name
from halfwise.records import NodeName, RowKind

Assignment = frozenset[NodeName]

MOST = 12
"""Maximum number of parts of a plan reported separately; each may take two evaluations."""


@dataclass(frozen=True)
class Part:
    """Some of the kept nodes; attributes as in `Row`."""

    kind: RowKind
    name: str
    nodes: Assignment


def parts(planner: Planner, plan: Assignment) -> list[Part]:
    """Return the parts of a plan, at most `MOST`: rules, kinds of guard, operators, each once.

    Guards come most severe first, operators by their number of nodes. Of parts with the same
    nodes only the first is reported. A guard's nodes count even if the plan does not keep them:
    they may have been lowered because others help.

    Args:
        planner: The planner, after its search.
        plan: Compute nodes in FP32.
    """
    found: dict[Assignment, Part] = {}
    for part in (*_rules(planner, plan), *_guards(planner, plan), *_operators(planner, plan)):
        if part.nodes and part.nodes != plan:
            found.setdefault(part.nodes, part)
    return list(found.values())[:MOST]


def _rules(planner: Planner, plan: Assignment) -> Iterator[Part]:
    for rule in filter(None, dict.fromkeys(planner.forced.kept.values())):
        named = frozenset(n for n, own in planner.forced.kept.items() if own == rule)
        yield Part("rule", rule, named & plan)


def _guards(planner: Planner, plan: Assignment) -> Iterator[Part]:
    for kind in dict.fromkeys(guard.kind for guard in planner.guards):
        holdable = (planner.holdable(g) for g in planner.guards if g.kind == kind)
        named = frozenset[NodeName]().union(*holdable)
        if named & plan:
            yield Part("guard", kind, named)


def _operators(planner: Planner, plan: Assignment) -> Iterator[Part]:
    nodes = [node for node in planner.case.network.nodes() if node_name(node) in plan]
    operators = {
        op: frozenset(node_name(n) for n in nodes if n.op_type == op)
        for op in dict.fromkeys(node.op_type for node in nodes)
    }
    for op, named in sorted(operators.items(), key=lambda item: -len(item[1])):
        yield Part("operator", op, named)
