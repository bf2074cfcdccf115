"""What every guard reads: facts about a network in the low format, and the grading of losses."""

import math
from collections.abc import Iterable, Mapping
from enum import IntEnum
from functools import cached_property

import onnx_ir as ir
from msgspec import Struct

from halfwise.formats import Format
from halfwise.graph.dataflow import moves
from halfwise.graph.model import Network, constant_array, is_standard, node_name, tensor_name
from halfwise.graph.norms import normalisations
from halfwise.graph.roles import Role, Roles, is_float
from halfwise.graph.weights import binades, once_for_each, span
from halfwise.records import (
    Detail,
    Guard,
    GuardKind,
    InnerObservation,
    NodeName,
    Observation,
    Observations,
    TensorName,
)

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


@once_for_each
def _norms(network: Network) -> Mapping[NodeName, str]:
    """Return the operator of the written-out norm that a node is part of, by its name."""
    ops, norms = list(_FIXES), normalisations(network)
    ordered = sorted((n for n in norms if n[0] in _FIXES), key=lambda n: -ops.index(n[0]))
    return {node_name(node): op for op, nodes in ordered for node in nodes}


class Evidence(Struct, frozen=True, dict=True):
    """A network, its observed values, and the low format to run it in.

    Attributes:
        network: The model.
        roles: Roles of its nodes.
        observations: Observations of the FP32 reference.
        fmt: The low format.
        headroom: Factor on observed ranges within which an overflow counts.
        accumulate: Format of running sums inside ops, "fp32" or "fp16".
        keeps: Whether nodes may stay in FP32; else a repair may cost more than such a node.
    """

    network: Network
    roles: Roles
    observations: Observations
    fmt: Format
    headroom: float = 2.0
    accumulate: str = "fp32"
    keeps: bool = True

    @cached_property
    def nodes(self) -> Mapping[NodeName, ir.Node]:
        """The nodes of all graphs by name, in graph order."""
        return {node_name(n): n for n in self.network.all_nodes()}

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
        """The float tensors by name, without constants and what bodies read as their inputs."""
        outputs = [v for n in self.nodes.values() for v in n.outputs]
        values = [*self.network.graph.inputs, *outputs]
        return {tensor_name(v): v for v in values if v.name and is_float(v)}

    @cached_property
    def made(self) -> Mapping[TensorName, ir.Value]:
        """Those of `values` whose elements are no copies of other floats that a node moved."""

        def copies(node: ir.Node | None) -> bool:
            return node is not None and moves(node, self.roles) and any(map(is_float, node.inputs))

        return {name: v for name, v in self.values.items() if not copies(v.producer())}

    def observed(self, value: ir.Value | None) -> Observation | None:
        """Return the observation of `value`; None if it was not observed."""
        if value is None or value.name is None:
            return None
        return self.tensors.get(TensorName(value.name))

    def detail(self, value: ir.Value | None) -> Detail | None:
        """Return the statistics of the elements of `value`; None if there are none."""
        observation = self.observed(value)
        return None if observation is None else observation.detail

    def binades(self, value: ir.Value | None) -> Mapping[int, int]:
        """Return how many elements of a tensor or constant lie in [2^k, 2^(k+1)), by k.

        None if no statistics were taken.
        """
        if value is not None and value.const_value is not None:
            return binades(constant_array(value))
        detail = self.detail(value)
        return {} if detail is None else detail.histogram.binades

    def below(self, value: ir.Value | None, magnitude: float) -> float:
        """Return which share of the non-zero elements lies in binades below that of a magnitude."""
        counts, level = self.binades(value), math.frexp(magnitude)[1] - 1
        return sum(n for k, n in counts.items() if k < level) / max(1, sum(counts.values()))

    def absmax(self, value: ir.Value | None) -> float:
        """Return the largest finite magnitude of a tensor or constant, 0 if unknown."""
        if value is None or not is_float(value):
            return 0.0
        if value.const_value is not None:
            low, high = self.span(value)
            return 0.0 if math.isnan(low) else max(-low, high)
        observation = self.observed(value)
        return 0.0 if observation is None else observation.absmax

    def span(self, value: ir.Value) -> tuple[float, float]:
        """Return the smallest and largest finite element of a constant, NaN for none."""
        return span(constant_array(value))

    def relative_error(self, magnitude: float) -> float:
        """Return the largest relative error of a value of this magnitude stored low (1 if zeroed).

        Half the spacing over the magnitude: IEEE 754-2019, 4.3.1.
        """
        if magnitude <= self.fmt.flush_threshold:
            return 1.0
        return self.fmt.ulp(magnitude) / 2 / magnitude

    @cached_property
    def _squares(self) -> list[InnerObservation]:
        """Sums of squares, of which a ReduceL2 gives the root."""
        roots = [n for n in self.nodes.values() if is_standard(n, "ReduceL2")]
        return [
            InnerObservation(
                node=node_name(node),
                op=node.op_type,
                kind="square",
                value=seen.absmax**2,
                worst_sample=seen.worst_sample,
            )
            for node in roots
            if (seen := self.observed(node.outputs[0])) and self.roles.of(node).free
        ]

    def inside(self, kind: str) -> Iterable[tuple[ir.Node, InnerObservation]]:
        """Yield node and number of every observation of one kind inside ops."""
        for observation in (*self.observations.inner, *self._squares):
            if observation.kind == kind and observation.node in self.nodes:
                yield self.nodes[observation.node], observation

    def fewer(self, detail: Detail) -> int | None:
        """Return how many samples statistics cover; None if they cover all."""
        return detail.samples if detail.samples < len(self.observations.samples) else None

    def norm_fix(self, node: ir.Node, otherwise: str = "") -> str:
        """Return the repair for the written-out norm that `node` is part of, else `otherwise`."""
        norm = _norms(self.network).get(node_name(node))
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
        seen: Observation | InnerObservation | None = None,
    ) -> list[Guard]:
        """Return one guard on the compute nodes among `nodes`; nothing if there are none.

        It tells the sample on which a number was `seen`; of one inside an op also the number, and
        which op: if that is in a body, the guard names another node. Entries of `facts` (see
        `Guard.names` and `Guard.numbers`) that are "" or None are left out. So are nodes that only
        move data: they follow the nodes that they lie between.
        """
        free = {node_name(n) for n in nodes if self.roles.of(n).role is Role.COMPUTE}
        if not free:
            return []
        known: dict[str, str | float | None] = {"low": self.fmt.name}
        if seen is not None and 0 <= seen.worst_sample < len(self.observations.samples):
            known["sample"] = self.observations.samples[seen.worst_sample]
        if isinstance(seen, InnerObservation):
            known |= {"inside": seen.node, "op": seen.op, "value": seen.value}
        facts = {**known, **facts}
        return [
            Guard(
                kind=kind,
                node=node_name(node),
                tensor=None if tensor is None else tensor_name(tensor),
                names={k: v for k, v in facts.items() if isinstance(v, str) and v},
                numbers={k: v for k, v in facts.items() if isinstance(v, int | float)},
                fix=fix,
                nodes=tuple(sorted(free, key=self.order.__getitem__)),
                severity=severity,
            )
        ]


FOLDING = (
    "Fold the BatchNormalization into the weights before it, or into a Mul and an Add: weight / "
    "√(variance + eps), and bias − mean times that, computed in FP32."
)
"""How a BatchNormalization leaves no variance to be stored."""
