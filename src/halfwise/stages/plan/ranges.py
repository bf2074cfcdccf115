"""Plans and limits that follow from observed ranges alone."""

from halfwise.formats import Format
from halfwise.graph.roles import Role, Roles
from halfwise.records import NodeName, Observations, TensorName


def producers_above(limit: float, observations: Observations, roles: Roles) -> frozenset[NodeName]:
    """Return the compute nodes with an output beyond `limit`: the classic rule, for comparison.

    AutoCast's `data_max` (512 by default) and the advice in many threads ("flag above 10000") are
    this rule. It looks at no output of the model.
    """
    return frozenset(
        o.producer
        for o in observations.tensors
        if o.absmax > limit and o.producer and roles[o.producer].role is Role.COMPUTE
    )


def headroom_limits(
    observations: Observations, fmt: Format, headroom: float
) -> dict[TensorName, float]:
    """Return, for tensors that fit but would not at `headroom` times their range, a smaller range.

    The search emulates these tensors with it: elements beyond max / headroom become infinite. So
    the output decides whether an overflow on larger data would matter. A format with FP32's range
    has none.
    """
    if fmt.has_range_of_fp32:
        return {}
    limit = fmt.overflow_threshold / headroom
    return {
        o.tensor: limit for o in observations.tensors if limit <= o.absmax < fmt.overflow_threshold
    }
