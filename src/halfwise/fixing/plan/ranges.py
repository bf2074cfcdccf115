"""Plans and limits that follow from observed ranges alone."""

from halfwise.formats import Format
from halfwise.graph.model import Network, tensor_name
from halfwise.graph.roles import Role, Roles
from halfwise.graph.selection import selects_constants
from halfwise.graph.walk import low_consumers
from halfwise.records import NodeName, Observations, TensorName


def kept_above(
    limit: float,
    network: Network,
    roles: Roles,
    observations: Observations,
    fmt: Format,
    headroom: float,
) -> tuple[frozenset[NodeName], frozenset[NodeName]]:
    """Return the compute nodes with an output beyond `limit`, and those kept because they read it.

    The first are the classic rule, for comparison: AutoCast's `data_max` (512 by default) and the
    advice in many threads ("flag above 10000") are it. It looks at no output of the model.

    An edge is FP32 only between two kept nodes, so what reads an overflowing tensor has to be kept
    with its producer: all that compute with it (through data movement), where `headroom` times its
    range reaches `fmt.overflow_threshold`. What is beyond `limit` and fits is rounded at the edge.
    """
    producers, readers = set[NodeName](), set[NodeName]()
    made = (v for n in network.nodes() for v in n.outputs if v.name)
    values = {tensor_name(v): v for v in (*network.graph.inputs, *made)}
    for seen in observations.tensors:
        value = values.get(seen.tensor)
        if value is None or seen.absmax <= limit:
            continue
        producers |= {n for n in (seen.producer,) if n and roles[n].role is Role.COMPUTE}
        if not fmt.has_range_of_fp32 and seen.absmax * headroom >= fmt.overflow_threshold:
            readers |= {roles.part(n).decider for n in low_consumers(value, roles)}
    computing = {n for n in readers - producers if roles[n].role is Role.COMPUTE}
    return frozenset(producers), frozenset(computing)


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
