"""Put a plan on record: each kept node with its reason, in one sentence with numbers."""

from collections.abc import Container, Iterator, Mapping, Sequence

import onnx_ir as ir

from halfwise.formats import Format
from halfwise.graph.casts import adjusted_constants
from halfwise.graph.model import Network, node_name
from halfwise.graph.roles import Role, Roles, bodies
from halfwise.records import Growth, Guard, KeptNode, NodeName, Plan, TensorName, Unsupported
from halfwise.stages.plan.rules import ISLAND

BORN_HERE = 0.2
"""An error is born at a node, not inherited, where its inputs have less than this part of it."""

# A sentence that begins with a tensor's name leaves the name as it is.
_ENGLISH = ("the ", "a ", "needed ", "inside ", "operands ", "storing ")


def kept_nodes(
    network: Network,
    kept: frozenset[NodeName],
    guards: Sequence[Guard],
    forced: Mapping[NodeName, str],
    excess_without: Mapping[NodeName, float],
    *,
    nonfinite_without: frozenset[NodeName] = frozenset(),
    contributions: Mapping[NodeName, float] | None = None,
    limit: float | None = None,
    metric: str | None = None,
    growth: Sequence[Growth] = (),
    held: Sequence[Guard] = (),
) -> tuple[KeptNode, ...]:
    """Return a record for each kept node, in graph order.

    Args:
        network: The model.
        kept: Names of the kept nodes.
        guards: Suspicions, gravest first.
        forced: Nodes that a user rule or the model itself keeps → the rule, or `ISLAND`.
        excess_without: Excess over the tolerance when the node alone is lowered.
        nonfinite_without: Nodes that give new NaN or infinities when lowered.
        contributions: What a node or its group contributes to the error alone, over what is
            allowed.
        metric: Name of the task metric, where one decides.
        limit: The range beyond which every producer is kept, where that was asked for.
        growth: The error's way through the model, where it was followed.
        held: What keeps nodes although the outputs pass; it names the cause of those without
            excess.
    """
    causes = _causes(guards, held, excess_without)
    records, path = [], {step.node: step for step in growth}
    for node in network.nodes():
        name = node_name(node)
        if name in kept:
            cause = None if name in forced or limit is not None else causes.get(name)
            rule = forced.get(name) or (f"--keep-above {limit:g}" if limit is not None else None)
            excess = excess_without.get(name)
            if name in nonfinite_without:
                effect = "; low, it gives NaN or infinite outputs"
            elif excess is not None:
                effect = f"; low, it {_effect(excess, metric)}"
            elif contributions and name in contributions:
                share = contributions[name]
                effect = f"; it or its group alone contributes {share:.3g} × what is allowed"
            else:
                effect = ""
            records.append(
                KeptNode(
                    node=name,
                    op=node.op_type,
                    reason=_reason(node, cause, rule, effect, path),
                    guard=cause.kind if cause is not None else None,
                    error_without=excess,
                )
            )
    return tuple(records)


def _causes(
    guards: Sequence[Guard], held: Sequence[Guard], needed: Container[NodeName]
) -> dict[NodeName, Guard]:
    causes: dict[NodeName, Guard] = {}
    for guard in guards:
        causes.setdefault(guard.node, guard)
    for guard in guards:
        for name in guard.nodes:
            causes.setdefault(name, guard)
    for guard in held:
        causes |= {name: guard for name in guard.nodes if name not in needed}
    return causes


def _reason(
    node: ir.Node,
    guard: Guard | None,
    rule: str | None,
    effect: str,
    path: Mapping[NodeName, Growth],
) -> str:
    if rule is not None:
        return rule if rule == ISLAND else f"Kept by the rule {rule}."
    if guard is None:
        if not effect:
            return "Not lowered before the search ended; nothing is known of it."
        beyond = " around it, and those inside its bodies are not observed" if bodies(node) else ""
        return f"No single number stands out{beyond or ' here'}{effect}{_grown(node, path)}."
    cause = guard.message if guard.node == node.name else f"needed by {guard.node}: {guard.message}"
    fix = f" Usual fix: {guard.fix}" if guard.fix else ""
    if cause.startswith(_ENGLISH):
        cause = cause[0].upper() + cause[1:]
    return f"{cause}{effect}.{fix}"


def _grown(node: ir.Node, path: Mapping[NodeName, Growth]) -> str:
    """Return how large the error is behind `node` and where it grows most after it, if known.

    That is where a single node makes at least `1 / BORN_HERE` of what it inherits. The numbers are
    of the model in which only explained nodes are FP32; what grows is the error of all others.
    """
    own = path.get(node_name(node))
    if own is None or not 0 < own.error < float("inf"):
        return ""
    behind: dict[ir.Node, None] = {}
    waiting = [node]
    while waiting:
        uses = (u.node for v in waiting.pop().outputs for u in v.uses())
        readers = dict.fromkeys(n for n in uses if n not in behind)
        behind |= readers
        waiting += readers
    steps = [(n, step) for n in behind if (step := path.get(node_name(n))) and step.inherited > 0]
    reader, most = max(steps, key=lambda s: s[1].error / s[1].inherited, default=(node, own))
    here = f"; with explained nodes alone in FP32, the error is {own.error:.2g} here (relative RMS)"
    if reader is node or most.error * BORN_HERE < most.inherited:
        return here
    jump = f"from {most.inherited:.2g} to {most.error:.2g}"
    return f"{here} and grows later {jump} at {reader.name} ({reader.op_type})"


def _effect(excess: float, metric: str | None) -> str:
    if excess == float("inf"):
        return "changes an output's shape, or a value that has to be exact"
    if metric is not None:
        return f"lowers {metric} by {excess - 1:.3g} more than is allowed"
    return f"brings the error to at least {excess:.3g} × what is allowed"


def plan_record(
    network: Network,
    roles: Roles,
    fmt: Format,
    placed: frozenset[NodeName],
    casts: int,
    *,
    keep: tuple[KeptNode, ...],
    minimal: bool,
    growth: Sequence[Growth],
    lowered: Mapping[NodeName, str] | None = None,
    remarks: Sequence[str] = (),
    low_io: frozenset[TensorName] = frozenset(),
) -> Plan:
    """Return the record of a plan.

    Args:
        network: The model.
        roles: Roles of its nodes.
        fmt: The low format.
        placed: All free nodes that are FP32 in the rewritten model.
        casts: Number of Casts in it.
        keep: The kept compute nodes.
        minimal: Whether lowering any of them was seen to fail.
        growth: The error's way through the all-low model, where it was followed.
        lowered: Node that a rule lowered → the rule.
        remarks: Sentences about the plan as a whole.
        low_io: Float graph inputs and outputs that have the low type.
    """
    notes = [*remarks]
    if note := depth_note(keep, growth):
        notes.append(note)
    nodes = {node_name(n): n for n in network.nodes()}
    return Plan(
        low=fmt.name,
        keep=keep,
        data_movement=tuple(n for n in nodes if n in placed and roles[n].role is Role.MOVEMENT),
        constants=adjusted_constants(network, roles, placed, fmt, low_io),
        unsupported=tuple(_unsupported(network, roles)),
        minimal=minimal,
        candidates=sum(r.role is Role.COMPUTE for r in roles.values()),
        casts=casts,
        lowered=dict(lowered or {}),
        notes=tuple(notes),
    )


def _unsupported(network: Network, roles: Roles) -> Iterator[Unsupported]:
    """Yield the nodes that must be FP32, in bodies only where the rest of the body need not be."""
    for node in network.model.graph.all_nodes():
        part = roles.part(node)
        in_pinned_body = part.decider != node.name and not roles[part.decider].free
        if part.role.role is Role.PINNED and not in_pinned_body:
            yield Unsupported(node=node_name(node), op=node.op_type, reason=part.role.reason)


def depth_note(plan: Sequence[KeptNode], growth: Sequence[Growth]) -> str | None:
    """Return where the error comes from, in a sentence, if no guard explains most kept nodes.

    Args:
        plan: The kept nodes.
        growth: Relative RMS errors along the graph, with the explained nodes kept.
    """
    lacking = unexplained(plan)
    if len(lacking) * 2 <= len(plan) or not growth:
        return None
    where = f"No guard explains {len(lacking)} of {len(plan)} kept nodes"
    if step := birth(growth):
        return (
            f"{where}: most of the error is born at {step.node}, where it jumps from "
            f"{step.inherited:.2g} to {step.error:.2g} (relative RMS)."
        )
    places = dict.fromkeys(round(i * (len(growth) - 1) / 3) for i in range(4))
    path = ", ".join(f"{growth[place].error:.2g} at {growth[place].node}" for place in places)
    return f"{where}: the error accumulates with depth (relative RMS: {path})."


def unexplained(plan: Sequence[KeptNode]) -> list[KeptNode]:
    """Return the kept nodes that neither a guard nor a rule of the user explains."""
    return [k for k in plan if k.guard is None and not k.reason.startswith("Kept by")]


def birth(growth: Sequence[Growth]) -> Growth | None:
    """Return the first step that makes most of the error that is left at the end, if one does.

    Args:
        growth: Relative RMS errors along the graph; may be empty.
    """
    born = (g for g in growth if g.inherited <= g.error * BORN_HERE)
    return next((g for g in born if g.error >= growth[-1].error / 2), None)
