"""What a run found."""

from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from math import floor

from msgspec import Struct

from halfwise.fixing.depths import LEADING_TO_INFINITY, HeldOut
from halfwise.fixing.plan.plan import Nodes, Plan, Quantisation
from halfwise.fixing.plan.rules import ISLAND, ONLY
from halfwise.fixing.plan.search import SearchResult
from halfwise.fixing.repair.rule import place
from halfwise.fixing.space import Int8Space, Space
from halfwise.formats import BF16, Format
from halfwise.graph.casts import Rewritten, adjusted_constants
from halfwise.graph.model import Network, node_name
from halfwise.graph.roles import Role, Roles
from halfwise.records import (
    Because,
    Curve,
    FileRun,
    Followed,
    Growth,
    Guard,
    GuardKind,
    KeptNode,
    NodeName,
    Observations,
    Remark,
    Search,
    TensorName,
    Unsupported,
    Verdict,
    replace,
)
from halfwise.records import Plan as PlanRecord


class Fixed(Struct, frozen=True):
    """What `fix` found.

    Attributes:
        rewritten: The mixed model.
        guards: Guards.
        growth: Error growth; empty if not measured.
        followed: What growth and trials show about the source of the error; None if not followed.
        plan: The plan.
        search: Record of the search.
        baseline: Verdict on the model with everything low, except what its file computes in FP32.
        verdict: Verdict on the mixed model.
        space: The plans that were searched.
        heldout: The samples that judged, and those no search has seen.
        assigned: The plan, as a type for each node.
        result: Result of the search; its kept nodes are the plan's.
        curve: Plans to choose from.
        evaluations: Assignments tried.
        stage_seconds: Seconds per stage.
        all_int8: Verdict on INT8 wherever possible; None without INT8.
        rungs: Results of each type if several were requested, most exact first; the run delivers
            one of them.
    """

    rewritten: Rewritten
    guards: tuple[Guard, ...]
    growth: tuple[Growth, ...]
    followed: Followed | None
    plan: PlanRecord
    search: Search
    baseline: Verdict
    verdict: Verdict
    space: Space
    heldout: HeldOut
    assigned: Plan
    result: SearchResult
    curve: Curve
    evaluations: int
    stage_seconds: dict[str, float]
    rungs: tuple["Fixed", ...] = ()
    all_int8: Verdict | None = None

    @property
    def without_int8(self) -> tuple[KeptNode, ...]:
        """What could be INT8, if INT8 was tried and no node has it; else empty."""
        plan = self.rungs[-1].plan if self.rungs else self.plan
        return () if plan.int8 or self.plan.has_int8 else plan.left_out

    @property
    def original(self) -> Space:
        """The plans of the model as given, without repairs."""
        return self.space.original or self.space

    @property
    def seen(self) -> Observations:
        """The observations, including what the plan's repairs resolved in the model as given."""
        answered = {guard for repair in self.plan.repairs for guard in repair.guards}
        evidence = self.original.evidence
        mended = tuple(guard for guard in evidence.guards if place(guard) in answered)
        tensors = {guard.tensor for guard in mended}
        before = tuple(one for one in evidence.observations.tensors if one.tensor in tensors)
        own = self.space.evidence.observations
        return replace(own, mended=mended, before=before)

    def telling(self, *remarks: Remark) -> "Fixed":
        """Return a copy with more facts about its plan."""
        remarks = (*self.plan.remarks, *remarks)
        return replace(self, plan=replace(self.plan, remarks=remarks))

    def improves(self, below: "Fixed") -> bool:
        """Return whether it has INT8, passed, and is cheaper than `below`.

        By the kernels of a target's builder if it built both, else as predicted.
        """
        both = self, below
        costs = [built_cost(one.assigned, one.verdict) for one in both]
        if None in costs:
            costs = [one.space.variant.cost(one.assigned) for one in both]
        cost, other = costs
        cheaper = cost is None or other is None or cost < other
        return self.verdict.passed and bool(self.plan.int8) and cheaper


def built_by(verdict: Verdict) -> FileRun | None:
    """Return what a target's builder made of a judged plan; None if what it moves is unknown."""
    return next((run for run in verdict.as_file if run.traffic is not None), None)


def built_cost(plan: Plan, verdict: Verdict) -> float | None:
    """Return a plan's cost by the kernels of a target's builder, see `Variant.cost`; or None."""
    run = built_by(verdict)
    return None if run is None else plan.of.cost(plan, run.traffic)


def plan_of(
    space: Space,
    assigned: Plan,
    result: SearchResult,
    placed: Nodes,
    casts: int,
    remarks: Sequence[Remark],
) -> PlanRecord:
    """Return the record of a plan.

    Args:
        space: The plans that were searched.
        assigned: The plan.
        result: Results of trials.
        placed: All its FP32 nodes.
        casts: Cast nodes in the mixed model.
        remarks: Remarks on it.
    """
    variant, network = space.variant, space.variant.case.network
    chosen = {}
    if space.chosen is not None:
        chosen = space.chosen.beside(space.evidence.suspected)
    forced, computing = variant.forced, variant.roles.computing
    keep = kept_nodes(
        network,
        assigned.kept,
        (*space.evidence.guards, *space.deciding),
        chosen | dict(forced.kept),
        result.excess_without,
        nonfinite_without=result.nonfinite_without,
        contributions=result.contributions,
        near=space.evidence.limits,
        held=space.held,
        spare=result.spare,
        hopeless=None if result.passed else dict.fromkeys(forced.lowered.values()),
    )
    plan = plan_record(
        network,
        variant.roles,
        variant.settings.fmt,
        placed,
        casts,
        keep=tuple(replace(k, precision=assigned.precision(k.node)) for k in keep),
        minimal=result.minimal,
        # What merely moves data follows the compute nodes; only a rule of its own names it.
        lowered={n: r for n, r in forced.lowered.items() if r != ONLY or n in computing},
        remarks=remarks,
        low_io=variant.low_io,
    )
    return replace(plan, repairs=space.repairs)


def int8_plan_of(
    below: PlanRecord, space: Int8Space, plan: Plan, result: SearchResult, placed: Nodes, casts: int
) -> PlanRecord:
    """Return the record of a plan.

    Args:
        below: The plan in the low format that it extends.
        space: The plans with INT8.
        plan: The plan.
        result: What it leaves out of INT8, and results of trials.
        placed: All nodes that its file computes in FP32.
        casts: Cast nodes in its model.
    """
    variant, int8 = space.variant, plan.int8
    network, roles = variant.case.network, variant.roles
    left_out = kept_nodes(
        network,
        space.choices - int8,
        (),
        {},
        result.excess_without,
        nonfinite_without=result.nonfinite_without,
        contributions=result.contributions,
    )
    kept = (replace(k, precision="fp32") for k in below.keep)
    more = space.held_nodes - space.extended
    held = kept_nodes(network, more, (), {}, {}, held=space.held)
    quantisation = space.quantisation
    record = plan_record(
        network,
        roles,
        variant.settings.fmt,
        placed,
        casts,
        keep=(*kept, *held),
        minimal=result.minimal,
        lowered=below.lowered,
        remarks=below.remarks,
        low_io=variant.low_io,
    )
    return replace(
        record,
        repairs=below.repairs,
        int8=tuple(name for name in map(node_name, network.nodes()) if name in int8),
        left_out=tuple(_left_out(kept, below, quantisation, int8) for kept in left_out),
    )


def _left_out(
    kept: KeptNode, below: PlanRecord, quantisation: Quantisation, int8: Nodes
) -> KeptNode:
    """Return a node that is left out; of a sum, with the convolution if that is the reason."""
    kept = replace(kept, precision=below.low)
    product = quantisation.sums.get(kept.node)
    if product is None or product in int8 or kept.error_without is not None or kept.because is None:
        return kept
    because = replace(kept.because, beside=product)
    return replace(kept, because=because, unknown=False)


def search_of(space: Space, heldout: HeldOut, result: SearchResult) -> Search:
    """Return the record of a search, including the held-out samples that joined it."""
    bench, settings = space.bench, space.variant.settings
    return Search(
        tolerance_factor=bench.tolerance.factor,
        calibration=bench.samples.ids,
        joined=heldout.joined,
        seen=bench.samples.marks or (),
        seconds_budget=settings.time_budget,
        budget=settings.budget,
        late=bench.late,
        refused=bench.refused,
        exhausted=result.exhausted,
        remarks=result.steps,
    )


_LOSING: frozenset[GuardKind] = frozenset(("angle", "cancellation", "grid", "integer"))
"""Guards on digits that are lost whatever the range."""


def kept_nodes(
    network: Network,
    kept: frozenset[NodeName],
    guards: Sequence[Guard],
    forced: Mapping[NodeName, str],
    excess_without: Mapping[NodeName, float],
    *,
    nonfinite_without: frozenset[NodeName] = frozenset(),
    contributions: Mapping[NodeName, float] | None = None,
    near: Mapping[TensorName, float] | None = None,
    held: Sequence[Guard] = (),
    spare: Nodes = frozenset(),
    hopeless: Collection[str] | None = None,
) -> tuple[KeptNode, ...]:
    """Return a record for each kept node, in graph order.

    Args:
        network: The model.
        kept: Names of the kept nodes.
        guards: Guards, most severe first.
        forced: Nodes that a user rule or the model itself keeps → the rule, or `ISLAND`.
        excess_without: Excess relative to what the search allows when only that node is lowered.
        nonfinite_without: Nodes that give new NaN or infinities when lowered.
        contributions: Error that a node or its group adds alone, relative to what is allowed.
        near: Tensors emulated with a reduced range, for the headroom.
        held: Guards that keep nodes although the outputs pass, last in the record; they explain
            nodes without excess.
        spare: Nodes that a dearer plan lowers: no guard says why they are kept.
        hopeless: Rules that lower the rest if even all free nodes in FP32 fail, else None.
    """
    of_held = {name: guard for guard in held for name in guard.nodes if name not in excess_without}
    places = {id(guard): place for place, guard in enumerate((*guards, *held))}
    records = []
    for name, node in ((node_name(n), n) for n in network.all_nodes() if node_name(n) in kept):
        rule, excess = forced.get(name), excess_without.get(name)
        cause = None
        if rule is None and name not in spare:
            infinite = name in nonfinite_without
            cause = of_held.get(name) or _cause(name, guards, kept, gives_infinities=infinite)
        because = Because(
            guard=None if cause is None else places[id(cause)],
            rule=rule or "",
            nonfinite=name in nonfinite_without,
            at_headroom=any(v and v.name in (near or ()) for v in (*node.inputs, *node.outputs)),
            contribution=(contributions or {}).get(name),
            opposed=None if hopeless is None else tuple(hopeless),
            spare=name in spare,
        )
        measured = name in nonfinite_without or (excess, because.contribution) != (None, None)
        records.append(
            KeptNode(
                node=name,
                op=node.op_type,
                kept_by="search" if rule is None else "model" if rule == ISLAND else "rule",
                guard=cause.kind if cause is not None else None,
                error_without=excess,
                unknown=not (measured or rule or cause or name in spare),
                because=because,
            )
        )
    return tuple(records)


def _cause(
    name: NodeName,
    guards: Sequence[Guard],
    kept: Container[NodeName],
    *,
    gives_infinities: bool,
) -> Guard | None:
    """Return the guard that explains a node; of guards alike the first, the most severe.

    Of one that gives infinities, a guard that leads to them, if any: what would overflow only at a
    multiple of the range seen does not, beside digits that are certainly lost. Then what certainly
    happens, the graver the overflow that the node reads or makes, before what is only possible; and
    its own before that of others.
    """
    naming = [guard for guard in guards if name == guard.node or name in guard.nodes]
    is_lost = any(guard.kind in _LOSING and guard.severity >= 1 for guard in naming)

    def rank(guard: Guard) -> tuple[bool, int, bool]:
        leads = guard.kind in LEADING_TO_INFINITY and not (guard.kind == "headroom" and is_lost)
        own, certain = guard.node == name, int(guard.severity >= 1)
        reads = guard.node in kept and guard.is_read_by(name)
        gravity = floor(guard.severity) if own or reads else certain
        return gives_infinities and leads, gravity, own

    return max(naming, key=rank, default=None)


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
) -> PlanRecord:
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
    return PlanRecord(
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
