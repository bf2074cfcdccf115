"""The records of a plan and of its search."""

from collections.abc import Sequence

from halfwise.fixing.heldout import HeldOut
from halfwise.fixing.plan.found import Found
from halfwise.fixing.plan.reasons import kept_nodes, plan_record
from halfwise.fixing.planner import Planner
from halfwise.records import KeptNode, NodeName, Plan, Remark, Search


def plan_of(
    planner: Planner,
    found: Found,
    placed: frozenset[NodeName],
    casts: int,
    remarks: Sequence[Remark],
) -> Plan:
    """Return the record of a plan.

    Args:
        planner: The planner that found it.
        found: Its compute nodes in FP32, and results of trials.
        placed: All its FP32 nodes.
        casts: Cast nodes in the mixed model.
        remarks: Remarks on it.
    """
    settings, network = planner.settings, planner.case.network
    chosen = {}
    if settings.chosen is not None:
        chosen = settings.chosen.beside(planner.evidence.suspected)
    forced = planner.forced
    keep = kept_nodes(
        network,
        planner.roles,
        found.kept,
        planner.evidence.guards,
        chosen | dict(forced.kept),
        found.excess_without,
        nonfinite_without=found.nonfinite_without,
        contributions=found.contributions,
        near=planner.evidence.limits,
        held=planner.held,
        hopeless=None if found.passed else dict.fromkeys(forced.lowered.values()),
    )
    types = planner.narrowing.precisions(found.kept)
    plan = plan_record(
        network,
        planner.roles,
        settings.fmt,
        placed,
        casts,
        keep=tuple(
            (_spare(k) if k.node in found.spare else k).model_copy(
                update={"precision": types[k.node]}
            )
            for k in keep
        ),
        minimal=found.minimal,
        lowered=forced.lowered,
        remarks=remarks,
        low_io=planner.low_io,
    )
    return plan.model_copy(update={"repairs": planner.case.repairs})


def _spare(kept: KeptNode) -> KeptNode:
    """Return a node that a dearer plan lowers: no guard says why it is kept."""
    because = (
        None
        if kept.because is None
        else kept.because.model_copy(update={"guard": None, "spare": True})
    )
    return kept.model_copy(update={"guard": None, "unknown": False, "because": because})


def search_of(planner: Planner, heldout: HeldOut, found: Found) -> Search:
    """Return the record of a search, including the held-out samples that joined it."""
    trials, settings = planner.trials, planner.settings
    return Search(
        tolerance_factor=trials.factor,
        calibration=trials.samples.ids,
        joined=tuple(heldout.joined),
        filed=tuple(heldout.filed),
        seen=trials.samples.marks or (),
        seconds_budget=settings.time_budget,
        budget=settings.budget,
        late=trials.late,
        refused=trials.refused,
        exhausted=found.exhausted,
        steps=(),
        remarks=found.steps,
        r2=found.r2,
    )
