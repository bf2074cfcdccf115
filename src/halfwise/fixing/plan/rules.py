"""What is known before the search: user rules, custom operators, a starting plan.

Operators of which neither ONNX nor ONNX Runtime has a schema are FP32 unless a rule says that the
runtime has them in low precision; then every float tensor of theirs is low.

A starting plan consists of the nodes that a mixed model of any origin, or an earlier run, keeps in
FP32. The search starts there, but is not bound to it.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

import onnx_ir as ir
from msgspec import Struct

from halfwise.case import Rules
from halfwise.errors import CaseError, RecordMismatch, UsageError
from halfwise.graph.conversion import low_nodes, upcast
from halfwise.graph.dataflow import moves, reached
from halfwise.graph.model import Network, bodies, node_name, with_bodies
from halfwise.graph.roles import Role, Roles
from halfwise.graph.weights import without_weights
from halfwise.graph.written_out import PATTERNS, written_out
from halfwise.records import NodeName, Remark, Repair, Run, replace
from halfwise.wording import meant

ONLY = "--only fp16"
"""The rule that leaves no node in FP32 that may be low."""
ISLAND = ""
"""Takes the place of a rule if the model's file computes a node in FP32 among lower ones."""


class Forced(Struct, frozen=True):
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
    """Return which nodes the user's rules decide, and which the model's author by its `islands`.

    A rule may use halfwise's names and, if these differ, those in the user's file; such a name
    matches every node that bears it. Nodes that must be FP32 anyway satisfy a keep rule and are
    left out of the result. An island that a rule lowers does not count.

    Raises:
        UsageError: a rule matches nothing, a regular expression is invalid, or a node is both kept
            and lowered.
        CaseError: a lowered node must be FP32.
    """
    kept: dict[NodeName, str] = {}
    lowered: dict[NodeName, str] = {}
    for rule in rules.keep:
        outputs = rule == "outputs"
        matches = _output_producers(network, roles) if outputs else named(rule, network)
        _demand_node(matches, "--keep", rule, network)
        kept |= {n: f"--keep {rule}" for n in matches if roles[n].free}
    for op in rules.keep_op:
        matches = _with_bodies(network, {n for n in network.all_nodes() if n.op_type == op})
        if op in PATTERNS:
            matches += [n for group in written_out(network, op) for n in group]
        if not matches:
            ops = ", ".join(sorted({n.op_type for n in network.all_nodes()}))
            raise UsageError(f"--keep-op {op} matches no node.", f"The model has: {ops}.")
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
    if rules.only:
        lowered = {name: ONLY for name, role in roles.items() if role.free} | lowered
    for name in kept.keys() & lowered.keys():
        raise UsageError(
            f"{kept[name]} and {lowered[name]} both match node {name}.",
            "Make the rules disjoint.",
        )
    from_islands = {n: ISLAND for n in islands if roles[n].free and n not in lowered}
    return Forced(from_islands | kept, lowered)


def named(rule: str, network: Network) -> list[NodeName]:
    """Return the nodes that a rule names, in graph order: one by its name, or all that match.

    Raises:
        UsageError: `rule` is neither a node's name nor a regular expression.
    """
    names = _names(network)
    matches = _named(rule, names)
    return _with_bodies(network, {n for n in network.all_nodes() if node_name(n) in matches})


def _named(rule: str, names: Mapping[NodeName, Collection[str]]) -> list[NodeName]:
    exact = [node for node, spellings in names.items() if rule in spellings]
    if exact:
        return exact
    try:
        pattern = re.compile(rule)
    except re.error as error:
        raise UsageError(
            f"{rule!r} is neither a node's name nor a regular expression: {error}.",
            "Quote special characters with a backslash.",
        ) from error
    return [node for node, spellings in names.items() if any(map(pattern.fullmatch, spellings))]


def _with_bodies(network: Network, nodes: Collection[ir.Node]) -> list[NodeName]:
    """Return nodes in graph order; of an If, Loop or Scan, those in its bodies."""
    every = {inner for node in nodes for inner in with_bodies(node)}
    return [node_name(n) for n in network.all_nodes() if n in every and not bodies(n)]


def _names(network: Network) -> dict[NodeName, set[str]]:
    """Return each node's name, and its name in the user's file if it had one."""
    original = network.original_names
    return {n: {n, original.get(n) or n} for n in map(node_name, network.all_nodes())}


def _output_producers(network: Network, roles: Roles) -> list[NodeName]:
    """Return the compute nodes whose results reach an output through data movement only."""

    def makers(values: Iterable[ir.Value | None]) -> list[ir.Node]:
        return [node for v in values if v is not None and (node := v.producer()) is not None]

    start = makers(network.graph.outputs)
    nodes = reached(start, lambda node: makers(node.inputs) if moves(node, roles) else ())
    return [*map(node_name, nodes)]


def _demand_node(matches: Sequence[NodeName], option: str, rule: str, network: Network) -> None:
    if matches:
        return
    every = dict.fromkeys(name for names in _names(network).values() for name in names)
    raise UsageError(
        f"{option} {rule} matches no node.",
        "Give a node's full name or a regular expression that matches the full name. "
        f"{meant(rule, every)}".strip(),
    )


def lowered_by(rules: Rules, network: Network) -> frozenset[NodeName]:
    """Return the nodes that the user's rules lower.

    Raises:
        UsageError: a rule is neither a node's name nor a regular expression.
    """
    return frozenset(node for rule in rules.lower for node in named(rule, network))


SHARED_NODES = 0.5
"""Share of compute nodes that a mixed form of this model must contain. Fusing tools leave most of
them; two models from the same exporter share fewer names.
Our choice."""


class Start(Struct, frozen=True):
    """A starting plan.

    Attributes:
        kept: The compute nodes that it keeps.
        note: How it was read, and whether it passed; None if nothing was read.
    """

    kept: frozenset[NodeName]
    note: Remark | None = None


def starting_plan(
    network: Network, roles: Roles, source: Network | Run, made: Sequence[Repair] = ()
) -> Start:
    """Return the plan that `source` holds, in terms of the nodes of `network`.

    Args:
        network: The FP32 model.
        roles: Roles of its nodes.
        source: A mixed-precision model with the types in its file, or the record of a run.
        made: Repairs already made in `network`. They remove nodes, so a run is only checked against
            the network before them.

    Raises:
        CaseError: the mixed model shares too few nodes with `network`.
        RecordMismatch: the run has no plan, or keeps or first repairs a node that `network` lacks.
    """
    if isinstance(source, Run):
        return _from_run(network, roles.computing, source, repaired=bool(made))
    return _from_model(network, roles.computing, source)


def _from_model(network: Network, computing: frozenset[NodeName], mixed: Network) -> Start:
    matched = _matches(network, mixed)
    common = computing & matched.keys()
    if len(common) < SHARED_NODES * len(computing):
        raise CaseError(
            f"{mixed.path} is not a mixed form of this model: it has only {len(common)} of "
            f"{len(computing)} compute nodes, by name or by operator and outputs.",
            "Start from a mixed-precision model made from this one.",
        )
    low = low_nodes(mixed)
    kept = frozenset(n for n in common if matched[n] not in low)
    numbers = {"found": len(common), "size": len(computing)}
    return Start(kept, Remark(kind="start", names={"path": str(mixed.path)}, numbers=numbers))


def _matches(network: Network, mixed: Network) -> Mapping[NodeName, NodeName]:
    """Return the node of `mixed` that corresponds to each node of `network` found there.

    By name and operator if both files use the same names; else by operator and outputs. Removing
    the Casts restores the former names of values behind them.
    """
    wide, _ = upcast(replace(mixed, model=without_weights(mixed.model)))
    named = {node_name(n): n for n in wide.all_nodes() if node_name(n) not in wide.original_names}
    giving = {_signature(n): n for n in wide.all_nodes()}
    twins = {}
    for node in network.all_nodes():
        name = node_name(node)
        twin = named.get(name) if name not in network.original_names else None
        if twin is None or twin.op_type != node.op_type:
            twin = giving.get(_signature(node))
        if twin is not None:
            twins[name] = node_name(twin)
    return twins


def _signature(node: ir.Node) -> tuple[str | None, ...]:
    return (node.op_type, *(v.name for v in node.outputs))


def _from_run(
    network: Network, computing: frozenset[NodeName], run: Run, *, repaired: bool
) -> Start:
    if run.plan is None:
        raise RecordMismatch(
            f"The run to start from has no plan: `halfwise {run.kind}` made it.",
            "Give a run of `halfwise fix`.",
        )
    plan, note = run.plan, Remark(kind="start", names={"date": run.provenance.date})
    ops = {node_name(n): n.op_type for n in network.all_nodes()}
    strange = [
        f"{kept.op} called {kept.node}" for kept in plan.keep if ops.get(kept.node) != kept.op
    ]
    if plan.repairs:
        # What it keeps may exist only once they are made; later ones build on earlier ones.
        strange = [f"node called {name}" for name in plan.repairs[0].nodes if name not in ops]
    if strange and not repaired:
        raise RecordMismatch(
            f"The run to start from belongs to another model ({run.provenance.model}): this one "
            f"has no {strange[0]}.",
            "Give a run made from this model.",
        )
    if run.provenance.model_sha256 != network.sha256:
        names = {**note.names, "other": "another file"}
        note = Remark(kind="start", names=names)
    return Start(computing & {k.node for k in plan.keep}, note)
