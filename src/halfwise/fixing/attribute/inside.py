"""Values that are infinite inside a mixed model although its outputs pass."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from halfwise.fixing.attribute.evidence import Band, Evidence, graded
from halfwise.fixing.attribute.repairs import rescaling
from halfwise.graph.dataflow import moves, operands, producers, upstream
from halfwise.graph.model import node_name
from halfwise.graph.roles import is_float
from halfwise.records import Guard, NodeName, TensorName


@dataclass(frozen=True)
class Infinity:
    """A tensor of the network that has NaN or infinities in a mixed model.

    Attributes:
        elements: How many, over all samples.
        harmful: The nodes that compute with them and pass them on to nothing that ends them.
        samples: Indices of the samples that have any.
    """

    elements: int
    harmful: tuple[NodeName, ...]
    samples: tuple[int, ...]


def infinite_guards(
    evidence: Evidence,
    inside: Mapping[TensorName, Infinity],
    guards: Collection[Guard],
    held: Collection[NodeName],
) -> Iterator[Guard]:
    """Yield what must be FP32 so that nothing is infinite inside, as far as can be determined.

    A tensor that is beyond the range (`fmt.overflow_threshold`) in the reference is infinite
    wherever it is rounded: its producer and the harmful readers must be FP32, and no other nodes.
    What is infinite only because of an earlier value needs nothing itself, so other tensors are
    examined only if no tensor is beyond the range: those that zeros and differences make infinite.
    Their nodes are those of the guards on the producer; if these are held already or there are
    none, the producer and what computes its operands; and finally everything before it.

    Args:
        evidence: The network and observations of its tensors.
        inside: Harmful infinities, by tensor of the network.
        guards: Guards.
        held: Nodes already FP32 for such a reason.
    """
    threshold = evidence.fmt.overflow_threshold
    beyond = {t for t in inside if evidence.absmax(evidence.values.get(t)) >= threshold}
    if beyond:
        for tensor in inside:
            if tensor in beyond and not _is_copy(evidence, tensor):
                yield from _beyond(evidence, tensor, inside[tensor])
        return
    for tensor, infinity in inside.items():
        value = evidence.values.get(tensor)
        node = None if value is None else value.producer()
        if value is None or node is None or moves(node, evidence.roles):
            continue
        if not any(v is not None and v.name in inside for v in node.inputs):
            yield from _born(evidence, value, node, infinity, guards, held)


def _is_copy(evidence: Evidence, tensor: TensorName) -> bool:
    value = evidence.values.get(tensor)
    node = None if value is None else value.producer()
    return node is not None and moves(node, evidence.roles)


def _beyond(evidence: Evidence, tensor: TensorName, infinity: Infinity) -> list[Guard]:
    value = evidence.values.get(tensor)
    readers = [evidence.nodes[n] for n in infinity.harmful]
    node = (value.producer() if value is not None else None) or (readers[0] if readers else None)
    if value is None or node is None:
        return []
    seen = evidence.tensors[tensor]
    reader = {"reader": node_name(readers[0]), "op": readers[0].op_type} if readers else {}
    return evidence.guard(
        "infinite",
        node,
        value,
        facts={
            "value": seen.absmax,
            "limit": evidence.fmt.max,
            "elements": infinity.elements,
            **reader,
        },
        fix=evidence.norm_fix(node, rescaling(evidence, value, up=False)),
        nodes=[*producers(value, evidence.roles), *readers],
        severity=graded(Band.OVERFLOW, seen.absmax / evidence.fmt.overflow_threshold),
    )


def _born(
    evidence: Evidence,
    value: ir.Value,
    node: ir.Node,
    infinity: Infinity,
    guards: Collection[Guard],
    held: Collection[NodeName],
) -> list[Guard]:
    named = [n for g in guards if node_name(node) in g.nodes for n in g.nodes]
    near = [p for v in operands(node) if is_float(v) for p in producers(v, evidence.roles)]
    # Nearest first, within the reach of any guard.
    far = upstream(value, evidence.roles, operands)
    attempts = ([evidence.nodes[n] for n in named], [node, *near], far)
    for nodes in attempts:
        found = evidence.guard(
            "infinite",
            node,
            value,
            facts={"elements": infinity.elements},
            fix="",
            nodes=nodes,
            severity=graded(Band.ZEROED, 1.0),
        )
        if found and not set(found[0].nodes) <= set(held):
            return found
    return []
