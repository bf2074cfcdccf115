"""The record of a plan with INT8."""

from halfwise.fixing.int8.planner import Int8Planner
from halfwise.fixing.plan.found import Found
from halfwise.fixing.plan.reasons import kept_nodes, plan_record
from halfwise.graph.model import node_name
from halfwise.records import KeptNode, NodeName, Plan


def int8_plan_of(
    below: Plan,
    planner: Int8Planner,
    found: Found,
    placed: frozenset[NodeName],
    casts: int,
) -> Plan:
    """Return the record of a plan.

    Args:
        below: The plan in the low format that it extends.
        planner: The planner that found it.
        found: What it leaves out of INT8, and results of trials.
        placed: All nodes that its file computes in FP32.
        casts: Cast nodes in its model.
    """
    network = planner.case.network
    left_out = kept_nodes(
        network,
        planner.roles,
        found.kept & planner.choices,
        (),
        {},
        found.excess_without,
        nonfinite_without=found.nonfinite_without,
        contributions=found.contributions,
    )
    kept = (k.model_copy(update={"precision": "fp32"}) for k in below.keep)
    held = kept_nodes(
        network, planner.roles, planner.held_nodes - planner.kept, (), {}, {}, held=planner.held
    )
    plan = plan_record(
        network,
        planner.roles,
        planner.settings.fmt,
        placed,
        casts,
        keep=(*kept, *held),
        minimal=found.minimal,
        lowered=below.lowered,
        remarks=(*below.remarks, *planner.remarks),
        low_io=planner.low_io,
    )
    int8 = planner.choices - found.kept
    return plan.model_copy(
        update={
            "repairs": below.repairs,
            "ranges": planner.method,
            "int8": tuple(name for name in map(node_name, network.nodes()) if name in int8),
            "left_out": tuple(_told(kept, below, planner, int8) for kept in left_out),
        }
    )


def _told(kept: KeptNode, below: Plan, planner: Int8Planner, int8: frozenset[NodeName]) -> KeptNode:
    """Return a node that is left out; of a sum, with the convolution if that is the reason."""
    kept = kept.model_copy(update={"precision": below.low})
    product = planner.sums.get(kept.node)
    if product is None or product in int8 or kept.error_without is not None or kept.because is None:
        return kept
    because = kept.because.model_copy(update={"beside": product})
    return kept.model_copy(update={"because": because, "unknown": False})
