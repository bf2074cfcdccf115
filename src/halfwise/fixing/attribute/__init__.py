"""Raise guards with numbers: what may go wrong in the low format, and which nodes it concerns.

One file per family of causes; each docstring gives rules, thresholds and their sources.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property

import onnx_ir as ir
from msgspec import Struct

from halfwise.fixing.attribute.evidence import Band, Evidence, graded
from halfwise.fixing.attribute.ranges import (
    cancellation_guards,
    constant_guards,
    mask_guards,
    range_guards,
    sum_guards,
)
from halfwise.fixing.attribute.small import (
    integer_guards,
    selection_guards,
    small_guards,
)
from halfwise.graph.dataflow import moves, operands, producers, upstream
from halfwise.graph.model import node_name, tensor_name
from halfwise.graph.roles import is_float
from halfwise.metrics import Outputs
from halfwise.records import Guard, NodeName, TensorName

__all__ = ["Attribution", "Infinity", "attribute_inside"]


class Attribution(Evidence, frozen=True, eq=False, dict=True):
    """The evidence from one set of samples, and the guards that it raises.

    A guard is a suspicion, not a verdict: even an infinity that a tanh absorbs raises one. Severity
    is 3 to 4 if values leave the range, 2 to 3 if a denominator or logarithm reads zero, 1 to 2 if
    accuracy is lost, and below 1 if the loss is only possible (values within the headroom last).
    See `halfwise.fixing.attribute.evidence`. For a format with FP32's range there are none about
    values that leave it.

    Attributes:
        references: Outputs of each sample.
    """

    references: Sequence[Outputs] = ()

    @cached_property
    def guards(self) -> tuple[Guard, ...]:
        """Guards by descending severity, then in graph order of their nodes.

        `Guard.nodes` are in graph order and hold nodes with role COMPUTE only, at least one.
        """
        return _guards(self)

    @property
    def limits(self) -> dict[TensorName, float]:
        """A smaller range for tensors that fit, but not at `headroom` times their range.

        The search emulates these tensors with that range: elements beyond become infinite. The
        output then shows whether an overflow on larger data would matter.
        """
        limit = self.fmt.overflow_threshold / self.headroom
        return {g.tensor: limit for g in self.guards if g.kind == "headroom" and g.tensor}

    @property
    def nonfinite(self) -> frozenset[TensorName]:
        """Tensors that are not finite in FP32 either."""
        return frozenset(o.tensor for o in self.observations.tensors if o.nonfinite)

    @property
    def suspected(self) -> frozenset[NodeName]:
        """Nodes that some guard names."""
        return frozenset(n for guard in self.guards for n in guard.nodes)


def _guards(evidence: Evidence) -> tuple[Guard, ...]:
    fmt = evidence.fmt
    masks = [] if fmt.has_range_of_fp32 else list(mask_guards(evidence))
    ranges = () if fmt.has_range_of_fp32 else range_guards(evidence)
    guards = [
        *masks,
        *(g for g in ranges if not _is_mask(g, masks)),
        *(g for g in constant_guards(evidence) if not _is_mask(g, masks)),
        *sum_guards(evidence),
        *small_guards(evidence),
        *cancellation_guards(evidence),
        *integer_guards(evidence),
        *selection_guards(evidence),
    ]
    return tuple(sorted(guards, key=lambda g: (-g.severity, evidence.order[g.node])))


def _is_mask(guard: Guard, masks: list[Guard]) -> bool:
    """Return whether a mask explains this guard: its constant, or what it is added to."""
    return any(guard.tensor == m.tensor or guard.node in m.nodes for m in masks)


class Infinity(Struct, frozen=True):
    """A tensor of the network that has NaN or infinities in a mixed model.

    Attributes:
        elements: How many, over all samples.
        harmful: The nodes that compute with them and pass them on to nothing that ends them.
        samples: Indices of the samples that have any.
    """

    elements: int
    harmful: tuple[NodeName, ...]
    samples: tuple[int, ...]


def attribute_inside(
    evidence: Attribution, inside: Mapping[TensorName, Infinity], held: Collection[NodeName]
) -> Iterator[Guard]:
    """Yield what must be FP32 so that nothing is infinite inside, as far as can be determined.

    A tensor that is beyond the range (`fmt.overflow_threshold`) in the reference is infinite
    wherever it is rounded: its producer and the harmful readers must be FP32, and no other nodes.
    What is infinite only because of an earlier value needs nothing itself, so other tensors are
    examined only if no tensor is beyond the range: those that zeros and differences make infinite.
    Their nodes are those of the guards on the producer; if these are held already or there are
    none, the producer and what computes its operands; and finally everything before it.

    Args:
        evidence: What was observed in FP32.
        inside: Harmful infinities in a mixed model, by tensor of the network.
        held: Nodes already FP32 for such a reason.
    """
    values = {t: v for t in inside if (v := evidence.values.get(t)) is not None}
    makers = {t: v.producer() for t, v in values.items()}
    computed = {t: n for t, n in makers.items() if n is None or not moves(n, evidence.roles)}
    beyond = {t for t, v in values.items() if evidence.absmax(v) >= evidence.fmt.overflow_threshold}
    for tensor, node in computed.items():
        if tensor in beyond:
            yield from _beyond(evidence, values[tensor], inside[tensor])
        elif (
            node is not None and not beyond and not any(v and v.name in inside for v in node.inputs)
        ):
            yield from _born(evidence, values[tensor], node, inside[tensor], held)


def _beyond(evidence: Evidence, value: ir.Value, infinity: Infinity) -> list[Guard]:
    readers = [evidence.nodes[n] for n in infinity.harmful]
    node = value.producer() or (readers[0] if readers else None)
    if node is None:
        return []
    observation = evidence.tensors[tensor_name(value)]
    reader = {"reader": node_name(readers[0]), "op": readers[0].op_type} if readers else {}
    return evidence.guard(
        "infinite",
        node,
        value,
        facts={
            "value": observation.absmax,
            "limit": evidence.fmt.max,
            "elements": infinity.elements,
            **reader,
        },
        fix=evidence.norm_fix(node),
        nodes=[*producers(value, evidence.roles), *readers],
        severity=graded(Band.OVERFLOW, observation.absmax / evidence.fmt.overflow_threshold),
    )


def _born(
    evidence: Attribution,
    value: ir.Value,
    node: ir.Node,
    infinity: Infinity,
    held: Collection[NodeName],
) -> list[Guard]:
    named = [n for g in evidence.guards if node_name(node) in g.nodes for n in g.nodes]
    near = [p for v in operands(node) if is_float(v) for p in producers(v, evidence.roles)]
    # Nearest first, within the reach of any guard.
    behind = upstream(value, evidence.roles, operands)
    attempts = ([evidence.nodes[n] for n in named], [node, *near], behind)
    for nodes in attempts:
        raised = evidence.guard(
            "infinite",
            node,
            value,
            facts={"elements": infinity.elements},
            fix="",
            nodes=nodes,
            severity=graded(Band.ZEROED, 1.0),
        )
        if raised and not set(raised[0].nodes) <= set(held):
            return raised
    return []
