"""What a search needs, and what it finds."""

from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import floor

from halfwise.fixing.bench import Outcome
from halfwise.fixing.plan.rules import ISLAND
from halfwise.formats import BF16, Format
from halfwise.graph.casts import adjusted_constants
from halfwise.graph.model import Network, node_name
from halfwise.graph.roles import Role, Roles
from halfwise.graph.sensitivity import chain
from halfwise.observing.inner import CENTRING
from halfwise.records import (
    Because,
    Guard,
    GuardKind,
    KeptNode,
    NodeName,
    Plan,
    Remark,
    TensorName,
    Unsupported,
)

Nodes = frozenset[NodeName]


Evaluate = Callable[[Nodes], Outcome]
"""Tries the plan that keeps some compute nodes."""


@dataclass(frozen=True)
class SearchResult:
    """Result of a search.

    Attributes:
        kept: The kept compute nodes; the best passing set seen.
        passed: Whether that set passes on all calibration samples.
        minimal: Whether lowering any of its nodes was seen to fail.
        excess_without: Per kept node, the excess when it alone is lowered.
        nonfinite_without: Those nodes that give new NaN or infinities when lowered.
        contributions: Per node, what it or its group contributes alone, if measured.
        exhausted: Whether the budget ended the search.
        steps: Remarks on what happened.
        spare: Kept nodes that a smaller plan lowers, which passes too but costs more.
    """

    kept: Nodes
    passed: bool
    minimal: bool
    excess_without: Mapping[NodeName, float]
    nonfinite_without: Nodes
    contributions: Mapping[NodeName, float]
    exhausted: bool
    steps: tuple[Remark, ...]
    spare: Nodes = frozenset()

    @property
    def needed(self) -> Nodes:
        """The kept nodes, without those kept only because less would cost more."""
        return self.kept - self.spare


MOST_FAILURES = 8
"""Plans that may fail before no more of their kind are tried: earlier plans on samples that joined,
plans after the budget is spent, single nodes where errors are spread. Our choice: see
docs/decisions/0061-one-search.md."""


def confirmed(
    plans: Sequence[Nodes],
    rank: Callable[[Nodes], tuple[float, ...]],
    best: Nodes,
    evaluate: Evaluate,
    everything: Nodes,
) -> Nodes:
    """Return a small plan that passes on all samples and ranks below `best`, else `best`.

    Args:
        plans: Plans that passed before samples joined, or that deserve a trial.
        rank: The rank of a plan; lower is better.
        best: A plan known to pass.
        evaluate: Evaluates a plan.
        everything: All nodes that a plan may keep.
    """
    larger, tried = 1.0, 0.0
    for kept in sorted(dict.fromkeys(plans), key=rank):
        if larger * tried <= len(kept) and rank(kept) < rank(best):
            if evaluate(kept).passed:
                return kept
            if kept and not tried:
                larger = (len(everything) / len(kept)) ** (1 / MOST_FAILURES)
            tried = float(len(kept))
    return best


LEADING_TO_INFINITY: frozenset[GuardKind] = frozenset(
    ("overflow", "square", "sum", "mask", "underflow", "eps", "constant-range", "headroom")
)
"""Guards that may lead to infinities; subnormal weights, say, do not."""
_LOSING: frozenset[GuardKind] = frozenset(("angle", "cancellation", "grid", "integer"))
"""Guards on digits that are lost whatever the range."""
_LINEAR = frozenset(("Conv", "ConvTranspose", "Gemm", "MatMul", "Mul"))


def kept_nodes(
    network: Network,
    roles: Roles,
    kept: frozenset[NodeName],
    guards: Sequence[Guard],
    forced: Mapping[NodeName, str],
    excess_without: Mapping[NodeName, float],
    *,
    nonfinite_without: frozenset[NodeName] = frozenset(),
    contributions: Mapping[NodeName, float] | None = None,
    near: Mapping[TensorName, float] | None = None,
    held: Sequence[Guard] = (),
    hopeless: Collection[str] | None = None,
) -> tuple[KeptNode, ...]:
    """Return a record for each kept node, in graph order.

    Args:
        network: The model.
        roles: Roles of its nodes.
        kept: Names of the kept nodes.
        guards: Guards, most severe first.
        forced: Nodes that a user rule or the model itself keeps → the rule, or `ISLAND`.
        excess_without: Excess relative to what the search allows when only that node is lowered.
        nonfinite_without: Nodes that give new NaN or infinities when lowered.
        contributions: Error that a node or its group adds alone, relative to what is allowed.
        near: Tensors emulated with a reduced range, for the headroom.
        held: Guards that keep nodes although the outputs pass, last in the record; they explain
            nodes without excess.
        hopeless: Rules that lower the rest if even all free nodes in FP32 fail, else None.
    """
    causes = _explained(network, roles, guards, held, kept, excess_without, nonfinite_without)
    places = {id(guard): place for place, guard in enumerate((*guards, *held))}
    records = []
    for name, node in ((node_name(n), n) for n in network.all_nodes() if node_name(n) in kept):
        rule, excess = forced.get(name), excess_without.get(name)
        cause = causes.get(name) if rule is None else None
        because = Because(
            guard=None if cause is None else places[id(cause)],
            rule=rule or "",
            nonfinite=name in nonfinite_without,
            at_headroom=any(v and v.name in (near or ()) for v in (*node.inputs, *node.outputs)),
            contribution=(contributions or {}).get(name),
            opposed=None if hopeless is None else tuple(hopeless),
        )
        measured = name in nonfinite_without or (excess, because.contribution) != (None, None)
        records.append(
            KeptNode(
                node=name,
                op=node.op_type,
                kept_by="search" if rule is None else "model" if rule == ISLAND else "rule",
                guard=cause.kind if cause is not None else None,
                error_without=excess,
                unknown=not measured and rule is None and cause is None,
                because=because,
            )
        )
    return tuple(records)


def _causes(
    guards: Sequence[Guard], held: Sequence[Guard], needed: Container[NodeName]
) -> dict[NodeName, Guard]:
    """Return the guard that explains each node: the most severe of its own, else of others.

    What certainly happens explains before what is only possible.
    """
    causes: dict[NodeName, Guard] = {}
    for some in ([g for g in guards if g.severity >= 1], guards):
        for guard in some:
            causes.setdefault(guard.node, guard)
        for guard in some:
            for name in guard.nodes:
                causes.setdefault(name, guard)
    for guard in held:
        causes |= {name: guard for name in guard.nodes if name not in needed}
    return causes


def _causes_of_infinity(
    causes: Mapping[NodeName, Guard], guards: Sequence[Guard], nonfinite: Container[NodeName]
) -> dict[NodeName, Guard]:
    """Return, for each node that gives infinities, a guard that may lead to them, if any.

    What would overflow only at a multiple of the range seen explains no node that loses its digits
    within it.
    """
    leading = tuple(g for g in guards if g.kind in LEADING_TO_INFINITY)
    explained = {n: g for n, g in _causes(leading, (), ()).items() if n in nonfinite}
    lost = {n for n, g in causes.items() if g.kind in _LOSING and g.severity >= 1}
    return {n: g for n, g in explained.items() if g.kind != "headroom" or n not in lost}


def _reads_beyond(guards: Sequence[Guard], kept: Container[NodeName]) -> dict[NodeName, Guard]:
    """Return the worst overflow that each kept node reads: in low it would read infinities."""
    worst: dict[NodeName, Guard] = {}
    for guard in guards:
        if guard.severity >= 1 and guard.node in kept:
            for name in guard.nodes:
                if guard.is_read_by(name):
                    worst.setdefault(name, guard)
    return worst


def _explained(
    network: Network,
    roles: Roles,
    guards: Sequence[Guard],
    held: Sequence[Guard],
    kept: Container[NodeName],
    excess_without: Mapping[NodeName, float],
    nonfinite: frozenset[NodeName],
) -> dict[NodeName, Guard]:
    """Return the guard that explains each node: its cause, or what it reads or feeds.

    A worse overflow that it reads explains it, and so does a cancellation that magnifies
    its error.

    Small weights change a product by at most its own size. They therefore explain nothing next to
    an overflow that the node reads, and no infinity if the operator is linear in them.
    """
    reads = _reads_beyond(guards, kept)
    causes = _causes(guards, held, excess_without)
    causes |= _causes_of_infinity(causes, guards, nonfinite)
    explained = {**reads, **causes}
    for node in network.all_nodes():
        name = node_name(node)
        cause, read = causes.get(name), reads.get(name)
        if cause is None:
            continue
        small = cause.kind == "constant-subnormal"
        if read is not None:
            milder = floor(cause.severity) < floor(read.severity)
            if small or (milder and name in nonfinite):
                explained[name] = read
        elif small and name in nonfinite and node.op_type in _LINEAR:
            del explained[name]
    wrong = excess_without.keys() - nonfinite
    return explained | _magnified(network, roles, guards, wrong, explained)


def _magnified(
    network: Network,
    roles: Roles,
    guards: Sequence[Guard],
    wrong: Collection[NodeName],
    causes: Mapping[NodeName, Guard],
) -> dict[NodeName, Guard]:
    """Return the cancellation that magnifies what the nodes in `wrong` round, where it does.

    In 1 - x·y / (‖x‖ ‖y‖), say, the difference magnifies the relative errors of norms and
    quotients. Only for nodes without a certain cause: a trial showed an error that possible
    overflows, which did not happen, do not explain.
    """
    magnified: dict[NodeName, Guard] = {}
    nodes = {node_name(n): n for n in network.all_nodes()}
    for guard in (g for g in guards if g.kind == "cancellation" and g.severity >= 1):
        node = nodes[guard.node]
        # A norm's scale and bias are applied to the result.
        inputs = node.inputs[:1] if node.op_type in CENTRING else node.inputs
        values = [v for v in inputs if v is not None]
        for name in dict.fromkeys(node_name(n) for v in values for n in chain(v, roles)):
            cause = causes.get(name)
            if name in wrong and (cause is None or cause.severity < 1):
                magnified.setdefault(name, guard)
    return magnified


def plan_record(
    network: Network,
    roles: Roles,
    fmt: Format,
    placed: frozenset[NodeName],
    casts: int,
    *,
    keep: tuple[KeptNode, ...],
    minimal: bool,
    lowered: Mapping[NodeName, str] | None = None,
    remarks: Sequence[Remark] = (),
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
        lowered: Node that a rule lowered → the rule.
        remarks: Remarks on the plan as a whole.
        low_io: Float graph inputs and outputs of the low type.
    """
    nodes = {node_name(n): n for n in network.all_nodes()}
    return Plan(
        low="bf16" if fmt == BF16 else "fp16",
        keep=keep,
        data_movement=tuple(n for n in nodes if n in placed and roles[n].role is Role.MOVEMENT),
        constants=adjusted_constants(network, roles, placed, fmt, low_io),
        unsupported=tuple(unsupported(network, roles)),
        minimal=minimal,
        candidates=len(roles.computing),
        casts=casts,
        lowered=dict(lowered or {}),
        remarks=tuple(remarks),
    )


def unsupported(network: Network, roles: Roles) -> Iterator[Unsupported]:
    """Yield the nodes that must be FP32 for a reason of their own."""
    for node in network.all_nodes():
        if reason := roles.of(node).reason:
            yield Unsupported(node=node_name(node), op=node.op_type, reason=reason)
