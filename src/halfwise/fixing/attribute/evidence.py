"""What every guard reads: facts about a network in the low format, and the grading of losses."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property

import numpy as np
import onnx_ir as ir

from halfwise.formats import Format
from halfwise.graph.dataflow import moves
from halfwise.graph.model import Network, constant_array, node_name, tensor_name
from halfwise.graph.reading import square_of
from halfwise.graph.roles import Role, Roles, is_float
from halfwise.graph.weights import pieces
from halfwise.graph.written_out import written_out
from halfwise.records import (
    Detail,
    Guard,
    GuardKind,
    InnerObservation,
    NodeName,
    Observation,
    Observations,
    Remark,
    TensorName,
)
from halfwise.wording import listed

SIGNIFICANT = 1e-2
"""Relative error (for angles: radians) from which a loss raises a guard.

The default tolerance (`Criterion`: rel_max 1e-2): a smaller error in one tensor cannot alone break
it unless something amplifies it, which has its own guards (see `cancellation`).
"""

_DECADES = 8.0
"""Ratios of 1e8 and more are equally severe; 65504 · 1e8 is beyond anything a model computes."""


class Band(IntEnum):
    """What happens in the low format, most severe last. From INEXACT on the loss is certain."""

    POSSIBLE = 0
    INEXACT = 1
    ZEROED = 2
    OVERFLOW = 3


def graded(band: Band, ratio: float) -> float:
    """Return a severity in [band, band + 1) that grows with the logarithm of `ratio`.

    Args:
        band: What happens.
        ratio: By what factor the limit is exceeded (≥ 1, inf allowed; smaller counts as 1).
    """
    decades = _DECADES if math.isinf(ratio) else math.log10(max(ratio, 1.0))
    return band + 0.99 * min(decades / _DECADES, 1.0)


_FIXES: Mapping[str, str] = {
    "LayerNormalization": "Export with opset 17 or later so that LayerNormalization is one node.",
    "GroupNormalization": "Export with opset 21 or later so that GroupNormalization is one node.",
    "RMSNormalization": "Export with opset 23 or later so that RMSNormalization is one node.",
    "LpNormalization": "Divide x by its largest magnitude first (an eps too).",
    "InstanceNormalization": "Export the normalisation as one InstanceNormalization node.",
}
"""Repairs for written-out norms, in order of precedence; opsets from the ONNX operator changelog.

One node keeps its squares and sums in FP32 (attribute `stash_type`), and TensorRT's own warning
advises it: "Exporting the model to the latest available ONNX opset (later than opset 17)".
"""


@dataclass(frozen=True)
class Evidence:
    """A network, its observed values, and the low format to run it in.

    Attributes:
        network: The model.
        roles: Roles of its nodes.
        observations: Observations of the FP32 reference.
        fmt: The low format.
        headroom: Factor on observed ranges within which an overflow counts.
        accumulate: Format of running sums inside ops, "fp32" or "fp16".
        known: The guards that all this raises, if already computed.
        given: Names of values in the user's model; None for all.
        remarks: Remarks of rules that read this, in addition to their results.
    """

    network: Network
    roles: Roles
    observations: Observations
    fmt: Format
    headroom: float
    accumulate: str
    known: tuple[Guard, ...] | None = None
    given: frozenset[str] | None = None
    remarks: list[Remark] = field(default_factory=list)
    _spans: dict[TensorName, tuple[float, float]] = field(default_factory=dict, repr=False)

    @cached_property
    def nodes(self) -> Mapping[NodeName, ir.Node]:
        """The nodes of the main graph by name, in graph order."""
        return {node_name(n): n for n in self.network.nodes()}

    @cached_property
    def constants(self) -> list[ir.Value]:
        """The float constants, including those in bodies."""
        every = [v for g in self.network.graphs() for v in g.initializers.values()]
        return [v for v in every if is_float(v)]

    @cached_property
    def order(self) -> Mapping[NodeName, int]:
        """Position of every node in the graph."""
        return {name: i for i, name in enumerate(self.nodes)}

    @cached_property
    def tensors(self) -> Mapping[TensorName, Observation]:
        """Observations of tensors, by name."""
        return {o.tensor: o for o in self.observations.tensors}

    @cached_property
    def values(self) -> Mapping[TensorName, ir.Value]:
        """The float tensors of the main graph by name, without its constants."""
        made = [v for n in self.nodes.values() for v in n.outputs]
        values = [*self.network.graph.inputs, *made]
        return {tensor_name(v): v for v in values if v.name and is_float(v)}

    @cached_property
    def _norms(self) -> Mapping[NodeName, str]:
        return {
            name: op
            for op in reversed(list(_FIXES))
            for group in written_out(self.network, op)
            for name in group
        }

    def observed(self, value: ir.Value | None) -> Observation | None:
        """Return the observation of `value`; None if it was not observed."""
        if value is None or value.name is None:
            return None
        return self.tensors.get(TensorName(value.name))

    def absmax(self, value: ir.Value | None) -> float:
        """Return the largest finite magnitude of a tensor or constant, 0 if unknown."""
        if value is None or not is_float(value):
            return 0.0
        if value.const_value is not None:
            return self.largest(value)
        seen = self.observed(value)
        return 0.0 if seen is None else seen.absmax

    def span(self, value: ir.Value) -> tuple[float, float]:
        """Return the smallest and largest finite element of a constant, NaN for none."""
        name = tensor_name(value)
        if name not in self._spans:
            finite = [p[np.isfinite(p)] for p in pieces(constant_array(value))]
            spans = [(float(p.min()), float(p.max())) for p in finite if p.size]
            lows, highs = zip(*spans, strict=True) if spans else ((math.nan,), (math.nan,))
            self._spans[name] = (min(lows), max(highs))
        return self._spans[name]

    def largest(self, value: ir.Value) -> float:
        """Return the largest finite magnitude of a constant, 0 for none."""
        low, high = self.span(value)
        return 0.0 if math.isnan(low) else max(-low, high)

    def relative_error(self, magnitude: float) -> float:
        """Return the largest relative error of a value of this magnitude stored low (1 if zeroed).

        Half the spacing over the magnitude: IEEE 754-2019, 4.3.1.
        """
        if magnitude <= self.fmt.flush_threshold:
            return 1.0
        return self.fmt.ulp(magnitude) / 2 / magnitude

    def inside(self, kind: str) -> Iterable[tuple[ir.Node, InnerObservation]]:
        """Yield node and number of every observation of one kind inside ops."""
        for seen in self.observations.inner:
            if seen.kind == kind and seen.node in self.nodes:
                yield self.nodes[seen.node], seen

    def sample(self, index: int) -> str:
        """Return the identifier for an index into the observed samples, "" for none."""
        samples = self.observations.samples
        return samples[index] if 0 <= index < len(samples) else ""

    def fewer(self, detail: Detail) -> int | None:
        """Return how many samples statistics cover; None if they cover all."""
        return detail.samples if detail.samples < len(self.observations.samples) else None

    def inner(self, seen: InnerObservation) -> dict[str, str | float | None]:
        """Return the facts of a guard on the inside of an op: which op, its number, and the sample.

        If the op is in a body, the guard names another node.
        """
        sample = self.sample(seen.worst_sample)
        return {"inside": seen.node, "op": seen.op, "value": seen.value, "sample": sample}

    def norm_fix(self, node: ir.Node, otherwise: str) -> str:
        """Return the repair for the written-out norm that `node` is part of, else `otherwise`."""
        norm = self._norms.get(node_name(node))
        return otherwise if norm is None else _FIXES[norm]

    def guard(
        self,
        kind: GuardKind,
        node: ir.Node,
        tensor: ir.Value | None,
        *,
        facts: Mapping[str, str | float | None],
        fix: str,
        nodes: Iterable[ir.Node],
        severity: float,
    ) -> list[Guard]:
        """Return one guard on the compute nodes among `nodes`; nothing if there are none.

        Entries of `facts` (see `Guard.names` and `Guard.numbers`) that are "" or None are left out.
        So are nodes that only move data: they follow the nodes that they lie between. A node in a
        body is represented by the node of the main graph that decides.
        """
        free = {self.roles.part(n).decider for n in nodes if self._computes(n)}
        if not free:
            return []
        facts = {"low": self.fmt.name, **facts}
        return [
            Guard(
                kind=kind,
                node=self.roles.part(node).decider,
                tensor=None if tensor is None else tensor_name(tensor),
                names={k: v for k, v in facts.items() if isinstance(v, str) and v},
                numbers={k: v for k, v in facts.items() if isinstance(v, int | float)},
                fix=fix,
                nodes=tuple(sorted(free, key=self.order.__getitem__)),
                severity=severity,
            )
        ]

    def _computes(self, node: ir.Node) -> bool:
        part = self.roles.part(node)
        return part.role.free and self.roles[part.decider].role is Role.COMPUTE


LINEAR = frozenset(("Conv", "ConvTranspose", "Gemm", "MatMul"))
"""Operators whose result is proportional to their weights, except for a bias."""
_HOMOGENEOUS = frozenset(
    ("AveragePool", "GlobalAveragePool", "LeakyRelu", "MaxPool", "Neg", "ReduceMean", "Relu")
)
"""Operators with f(s·x) = s·f(x) for every s > 0."""
_NORMS = frozenset(
    ("GroupNormalization", "InstanceNormalization", "LayerNormalization", "RMSNormalization")
)
"""Operators that divide by √(variance + epsilon), the variance growing with the square of x."""
_MOST = 64
"""Maximum number of tensors that one factor may reach: nobody would scale more by hand."""

Nodes = dict[ir.Node, None]


def rescaling(evidence: Evidence, value: ir.Value, *, up: bool) -> str:
    """Return how weights can scale `value` without changing the function; "" if none can.

    Everything that makes it has to be linear in weights, and everything that reads it linear in
    weights too, or a norm, along any path by which operators pass the factor on. A norm divides the
    factor out again only if its epsilon has the factor squared.

    Args:
        evidence: The network.
        value: A tensor that is too large or too small.
        up: Whether it is too small.
    """
    makers, readers = _around(evidence, value)
    if not makers or not readers or makers.keys() & readers.keys():
        return ""
    way, back = ("up", "down") if up else ("down", "up")
    norms = [n for n in readers if n.op_type in _NORMS]
    weighted = [n for n in readers if n.op_type not in _NORMS]
    undo = f", and the weights alone of {_named(weighted)} {back} by it" if weighted else ""
    eps = f", and the epsilon of {_named(norms)} {way} by its square" if norms else ""
    return f"Scale weights and bias of {_named(makers)} {way} by a power of two{undo}{eps}."


def _named(nodes: Iterable[ir.Node]) -> str:
    return listed([node_name(n) for n in nodes], most=3)


def _has_weights(node: ir.Node) -> bool:
    """Return whether `node` is linear: one factor a constant and the other not."""
    factors = [v for v in node.inputs[:2] if v is not None]
    return node.op_type in LINEAR and sum(v.const_value is not None for v in factors) == 1


def _around(evidence: Evidence, value: ir.Value) -> tuple[Nodes, Nodes]:
    """Return the makers and readers of all tensors scaled along with `value`; else nothing."""
    nothing: tuple[Nodes, Nodes] = ({}, {})
    makers: Nodes = {}
    readers: Nodes = {}
    waiting, scaled = [value], {value}
    while waiting:
        current = waiting.pop()
        maker = current.producer()
        if maker is None or current.is_graph_output() or len(scaled) > _MOST:
            return nothing
        handed: list[ir.Value | None] = []
        if _has_weights(maker):
            makers[maker] = None
        elif moves(maker, evidence.roles) or maker.op_type in _HOMOGENEOUS:
            handed += maker.inputs
        else:
            return nothing
        for node, slot in ((u.node, u.idx) for u in current.uses()):
            if (node.op_type in _NORMS and slot == 0) or (_has_weights(node) and slot < 2):
                readers[node] = None
            elif moves(node, evidence.roles) or node.op_type in _HOMOGENEOUS:
                handed += node.outputs
            else:
                return nothing
        new = [v for v in handed if v is not None and is_float(v) and v not in scaled]
        waiting += new
        scaled |= set(new)
    return makers, readers


def folding(node: ir.Node) -> str:
    """Return how a BatchNormalization can be folded into its surroundings."""
    before = node.inputs[0].producer() if node.inputs[0] is not None else None
    alone = before is not None and len(list(before.outputs[0].uses())) == 1
    if before is not None and alone and _has_weights(before):
        return f"Fold the BatchNormalization into {node_name(before)}, computed in FP32."
    return (
        "Fold the BatchNormalization into a Mul and an Add: weight / √(variance + eps), and bias − "
        "mean times that, computed in FP32."
    )


def weight_scaling(nodes: list[ir.Node], value: ir.Value) -> str:
    """Return how to scale a constant if all its readers are linear in it, else ""."""
    if all(n.op_type in LINEAR and value in n.inputs[:2] for n in nodes):
        return f"Scale {value.name} by a power of two, and the result before a bias by the inverse."
    return ""


def subtracting(node: ir.Node) -> str:
    """Return how to write a difference of means of squares without cancellation, else ""."""
    makers = [v.producer() for v in node.inputs if v is not None]
    means = [
        m for m in makers if m is not None and m.op_type in ("ReduceMean", "GlobalAveragePool")
    ]
    squares = [m for m in means if m.inputs[0] is not None and square_of(m.inputs[0])]
    mean_squared = any(v is not None and square_of(v) for v in node.inputs)
    if node.op_type == "Sub" and squares and mean_squared:
        return "Subtract the mean first, where the values are exact, and square afterwards."
    return ""


def scaled_operand(node: ir.Node) -> str:
    """Return how to scale a small operand and correct the result, "" if that is not simple."""
    return {
        "Div": "Scale the divisor up by a power of two, and the result by the same factor.",
        "Log": "Scale what it reads up by a power of two s, and subtract log s from the result.",
        "Reciprocal": "Scale what it reads up by a power of two, and the result by the same "
        "factor.",
        "Sqrt": "Scale what it reads up by a power of four, and the result down by that power's "
        "root.",
    }.get(node.op_type, "")
