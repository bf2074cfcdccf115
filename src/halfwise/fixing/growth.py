"""Follow the error through a mixed model: where it seems to be born, where it is inherited."""

from collections.abc import Callable, Sequence
from math import inf, isfinite

import onnx_ir as ir

from halfwise.case import CPU, Runtime, Sample, Samples
from halfwise.emulation.tensors import ModelTensors
from halfwise.graph.captured import operands
from halfwise.graph.model import Network, tensor_name
from halfwise.graph.model import node_name as name_of
from halfwise.graph.roles import Role, Roles, is_float
from halfwise.metrics.relative import relative_rms
from halfwise.records import Growth, NodeName, TensorName

TENSORS_AT_ONCE = 32
"""Bounds memory: so many tensors of both models are alive at a time."""
BORN_HERE = 0.2
"""An error may be born at a node, not inherited, where its inputs have less than this part of it.

No more than that: a mean near zero, or a mask that becomes infinite, has a large relative error
that no output feels. Trials decide (`halfwise.fixing.origin`)."""


def growth(
    network: Network,
    low: ir.Model,
    roles: Roles,
    sample: Sample,
    *,
    runtime: Runtime = CPU,
    progress: Callable[[int, int], None] = lambda _done, _of: None,
) -> tuple[Growth, ...]:
    """Return the relative RMS error after each compute node on one sample, in graph order.

    It is inf behind a node that the low model cannot run.

    Args:
        network: The reference model.
        low: Typed emulation of the mixed model; same tensor names.
        roles: Roles of the network's nodes.
        sample: One sample.
        runtime: Where to run.
        progress: Called with how many tensors are done, and of how many, before each session; what
            it raises ends the work.
    """
    names = [
        tensor_name(v)
        for n in network.nodes()
        if roles[name_of(n)].role is Role.COMPUTE
        for v in n.outputs
        if v.name and is_float(v)
    ]
    one = Samples(("sample",), lambda _: sample)
    reference, candidate = (
        ModelTensors(model, one, partial=model is low, runtime=runtime)
        for model in (network.model, low)
    )
    errors: dict[TensorName, float] = {}
    for start in range(0, len(names), TENSORS_AT_ONCE):
        progress(start, len(names))
        chunk = names[start : start + TENSORS_AT_ONCE]
        expected, actual = next(reference.get(chunk)), next(candidate.get(chunk))
        errors |= {n: relative_rms(expected[n], actual[n]) if n in actual else inf for n in chunk}
    return _records(network, errors)


def born(growth: Sequence[Growth]) -> list[Growth]:
    """Return the steps whose inputs have too little error for theirs, in graph order.

    Args:
        growth: Relative RMS errors along the graph; may be empty, errors may be inf.
    """
    return [g for g in growth if g.inherited <= g.error * BORN_HERE and isfinite(g.inherited)]


def accumulates(growth: Sequence[Growth]) -> bool:
    """Return whether no step makes half of the error that is left at the end, and some is left."""
    last = growth[-1].error if growth else 0.0
    return 0 < last < inf and not any(g.error >= last / 2 for g in born(growth))


def _records(network: Network, errors: dict[TensorName, float]) -> tuple[Growth, ...]:
    depth: dict[NodeName, int] = {}
    reached: dict[TensorName, float] = dict(errors)
    records = []
    for node in network.nodes():
        read = operands(node)
        producers = [v.producer() for v in read]
        depth[name_of(node)] = 1 + max((depth[name_of(p)] for p in producers if p), default=0)
        inherited = max((reached.get(tensor_name(v), 0.0) for v in read), default=0.0)
        found = [errors[tensor_name(v)] for v in node.outputs if v.name in errors]
        for value in node.outputs:
            if value.name:
                reached.setdefault(tensor_name(value), inherited)
        if found:
            records.append(
                Growth(
                    node=name_of(node),
                    depth=depth[name_of(node)],
                    error=max(found),
                    inherited=inherited,
                )
            )
    return tuple(records)
