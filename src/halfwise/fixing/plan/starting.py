"""A starting plan: the nodes that a mixed model of any origin, or an earlier run, keeps in FP32.

It is where the search starts, and binds it to nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import onnx_ir as ir

from halfwise.errors import CaseError, RecordMismatch
from halfwise.graph.model import Network, node_name
from halfwise.graph.roles import Role, Roles
from halfwise.graph.widen import low_nodes, widened
from halfwise.records import NodeName, Run

ENOUGH = 0.5
"""The part of the compute nodes that a mixed model of this one has to show. Fusing tools leave
most of them; two models that share an exporter's names share fewer."""


@dataclass(frozen=True)
class Start:
    """A starting plan.

    Attributes:
        kept: The compute nodes that it keeps.
        note: How it was read, in one sentence without a full stop.
    """

    kept: frozenset[NodeName]
    note: str


def starting_plan(network: Network, roles: Roles, source: Network | Run) -> Start:
    """Return the plan that `source` holds, in the nodes of `network`.

    Args:
        network: The FP32 model.
        roles: Roles of its nodes.
        source: A mixed-precision model in the types of its file, or the record of a run.

    Raises:
        CaseError: the mixed model has too few nodes in common with `network`.
        RecordMismatch: the run has no plan, keeps a node that `network` does not have, or keeps
            none and was made from another file with more or fewer compute nodes.
    """
    computing = frozenset(n for n, role in roles.items() if role.role is Role.COMPUTE)
    if isinstance(source, Run):
        return _from_run(network, computing, source)
    return _from_model(network, computing, source)


def _from_model(network: Network, computing: frozenset[NodeName], mixed: Network) -> Start:
    matched = _matches(network, mixed)
    known = computing & matched.keys()
    if len(known) < ENOUGH * len(computing):
        raise CaseError(
            f"{mixed.path} is no mixed form of this model: of {len(computing)} compute nodes only "
            f"{len(known)} are in it, by name or by operator and outputs.",
            "Start from a mixed-precision model that was made from this one.",
        )
    low = low_nodes(mixed)
    kept = frozenset(n for n in known if matched[n] not in low)
    return Start(kept, f"{len(known)} of {len(computing)} compute nodes are found in {mixed.path}")


def _matches(network: Network, mixed: Network) -> Mapping[NodeName, NodeName]:
    """Return the node of `mixed` that stands for each node of `network` found there.

    By name and operator, where the name is the file's own in both; else by operator and outputs.
    Without the Casts, what stood behind them has its former name again.
    """
    wide, _ = widened(mixed)
    named = {node_name(n): n for n in wide.nodes() if node_name(n) not in wide.original_names}
    giving = {_signature(n): n for n in wide.nodes()}
    found = {}
    for node in network.nodes():
        name = node_name(node)
        twin = named.get(name) if name not in network.original_names else None
        if twin is None or twin.op_type != node.op_type:
            twin = giving.get(_signature(node))
        if twin is not None:
            found[name] = node_name(twin)
    return found


def _signature(node: ir.Node) -> tuple[str | None, ...]:
    return (node.op_type, *(v.name for v in node.outputs))


def _from_run(network: Network, computing: frozenset[NodeName], run: Run) -> Start:
    if run.plan is None:
        raise RecordMismatch(
            f"The run to start from has no plan: it is one of `halfwise {run.kind}`.",
            "Give a run of `halfwise fix`.",
        )
    plan, note = run.plan, f"the plan comes from the run of {run.provenance.date}"
    ops = {node_name(n): n.op_type for n in network.nodes()}
    for kept in plan.keep:
        if ops.get(kept.node) != kept.op:
            raise _of_another_model(run, f"has no {kept.op} called {kept.node}")
    if run.provenance.model_sha256 != network.sha256:
        # A plan that keeps nothing fits every model, so only the count can tell.
        if not plan.keep and plan.candidates != len(computing):
            counts = f"{len(computing)} compute nodes where that has {plan.candidates}"
            raise _of_another_model(run, f"has {counts}")
        shared = "the nodes that it keeps" if plan.keep else "as many compute nodes"
        note = f"warning: {note}, made from another file; this one has {shared} too"
    return Start(computing & {k.node for k in plan.keep}, note)


def _of_another_model(run: Run, difference: str) -> RecordMismatch:
    return RecordMismatch(
        f"The run to start from belongs to another model ({run.provenance.model}): this one "
        f"{difference}.",
        "Give a run made from this model.",
    )
