"""Plans and limits that follow from observed ranges alone."""

from halfwise.formats import Format
from halfwise.graph.model import Network
from halfwise.graph.roles import Role, Roles
from halfwise.graph.selection import selects_constants
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
    network: Network, roles: Roles, observations: Observations, fmt: Format, headroom: float
) -> dict[TensorName, float]:
    """Return, for tensors that fit but would not at `headroom` times their range, a smaller range.

    The search emulates these tensors with it: elements beyond max / headroom become infinite. So
    the output decides whether an overflow on larger data would matter. A format with FP32's range
    has none, nor has a tensor that gets that far by selecting constants: masks do not grow.
    """
    if fmt.has_range_of_fp32:
        return {}
    limit = fmt.overflow_threshold / headroom
    seen = {o.tensor: o for o in observations.tensors}
    near = {n: limit for n, o in seen.items() if limit <= o.absmax < fmt.overflow_threshold}
    computed = [v for n in network.nodes() for v in n.outputs if v.name in near]
    fixed = (v for v in computed if selects_constants(v, roles, seen, limit))
    return {n: near[n] for n in near.keys() - {v.name for v in fixed}}
