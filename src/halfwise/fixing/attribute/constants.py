"""Constants that the low format cannot hold: out of range, mostly subnormal, or a lost variance."""

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from halfwise.fixing.attribute.evidence import Evidence, percent, several
from halfwise.fixing.attribute.repairs import folding, weight_scaling
from halfwise.fixing.attribute.severity import SIGNIFICANT, Band, graded
from halfwise.graph.casts import adjusted_constants
from halfwise.graph.model import constant_array
from halfwise.graph.walk import consumers, low_consumers, moves, reads_low
from halfwise.graph.weights import pieces
from halfwise.records import AdjustedConstant, Guard

_MOSTLY = 0.5
"""A minority of tiny weights is usual and harmless next to large ones; a majority is not."""

_ADDENDS = {
    "Add": (0, 1), "Sub": (0, 1), "Sum": (0, 1, 2, 3), "Max": (0, 1), "Min": (0, 1),
    "Clip": (1, 2), "Conv": (2,), "ConvTranspose": (2,), "Gemm": (2,), "LayerNormalization": (2,),
    "InstanceNormalization": (2,), "GroupNormalization": (2,), "BatchNormalization": (2, 3, 4),
}  # fmt: skip
"""Operands that are added to something else, so that a tiny one is lost in it anyway.

The variance of a BatchNormalization (slot 4) has a rule of its own.
"""


def constant_guards(evidence: Evidence) -> Iterator[Guard]:
    """Yield constant-range and constant-subnormal guards.

    - "constant-range": finite elements above `fmt.max`. TensorRT stores them as the largest finite
      value, plain conversions as infinity: wrong either way. Not for BF16, whose end is FP32's.
    - "constant-subnormal": more than half of the non-zero elements are below
      `fmt.smallest_normal`, in an operand that is not merely added.
    - "constant-subnormal" for a BatchNormalization's variance v: some channel's 1/√(v + eps)
      changes by more than `SIGNIFICANT`; to first order |δv| / 2(v + eps).
    """
    every = evidence.network.model.graph.all_nodes()
    fills = [n.outputs[0] for n in every if n.op_type == "ConstantOfShape"]
    values = {v.name: v for v in (*evidence.constants, *fills)}
    beyond = adjusted_constants(evidence.network, evidence.roles, frozenset(), evidence.fmt)
    for found in () if evidence.fmt.has_range_of_fp32 else beyond:
        yield from _beyond(evidence, values[found.name], found)
    for value in evidence.constants:
        yield from _tiny(evidence, value)
    for node in evidence.nodes.values():
        if node.op_type == "BatchNormalization":
            yield from _variance(evidence, node)


def _beyond(evidence: Evidence, value: ir.Value, found: AdjustedConstant) -> list[Guard]:
    nodes = low_consumers(value, evidence.roles)
    largest = max(-found.minimum, found.maximum)
    if not nodes or largest <= evidence.fmt.max:
        return []
    size = 1 if value.const_value is None else value.const_value.size
    variance = nodes[0].op_type == "BatchNormalization"
    return evidence.guard(
        "constant-range",
        nodes[0],
        value,
        message=f"{found.elements} of the {size} values of constant {found.name} "
        f"{'is' if found.elements == 1 else 'are'} beyond {evidence.edge}, up to {largest:.2g}",
        fix=folding(nodes[0]) if variance else weight_scaling(nodes, value),
        nodes=nodes,
        severity=graded(Band.OVERFLOW, largest / evidence.fmt.max),
    )


def _tiny(evidence: Evidence, value: ir.Value) -> list[Guard]:
    fmt = evidence.fmt
    nodes = [
        n
        for n, slot in consumers(value, evidence.roles)
        if reads_low(n, slot, evidence.roles) and slot not in _ADDENDS.get(n.op_type, ())
    ]
    if not nodes or all(moves(n, evidence.roles) for n in nodes):
        return []
    nonzero = subnormal = zeroed = 0
    largest = 0.0
    for piece in pieces(constant_array(value)):
        magnitudes = np.abs(piece.astype(np.float32))
        magnitudes = magnitudes[magnitudes > 0]
        nonzero += magnitudes.size
        subnormal += int(np.count_nonzero(magnitudes < fmt.smallest_normal))
        zeroed += int(np.count_nonzero(magnitudes <= fmt.flush_threshold))
        largest = max(largest, float(magnitudes.max(initial=0)))
    share = subnormal / max(1, nonzero)
    if share <= _MOSTLY:
        return []
    return evidence.guard(
        "constant-subnormal",
        nodes[0],
        value,
        message=f"{percent(share)} of the non-zero values of constant {value.name} are below "
        f"{evidence.format_name}'s smallest normal number {fmt.smallest_normal:.2g}, and "
        f"{percent(zeroed / nonzero)} become zero",
        fix=weight_scaling(nodes, value),
        nodes=nodes,
        severity=graded(Band.INEXACT, fmt.smallest_normal / largest),
    )


def _variance(evidence: Evidence, node: ir.Node) -> list[Guard]:
    value = node.inputs[4] if len(node.inputs) > 4 else None
    if value is None or value.const_value is None or not reads_low(node, 4, evidence.roles):
        return []
    variance: NDArray[np.float32] = constant_array(value).astype(np.float32)
    eps = node.attributes["epsilon"].as_float() if "epsilon" in node.attributes else 1e-5
    within = (variance >= 0) & (variance <= evidence.fmt.max)
    change = np.abs(evidence.fmt.round(variance) - variance) / (2 * (np.abs(variance) + eps))
    lost = np.where(within, change, 0.0)
    if lost.size == 0 or lost.max() <= SIGNIFICANT:
        return []
    return evidence.guard(
        "constant-subnormal",
        node,
        value,
        message=f"storing the variance {value.name} in {evidence.format_name} changes the scale of "
        f"{several(int((lost > SIGNIFICANT).sum()), 'channel')} by up to {percent(lost.max())}",
        fix=folding(node),
        nodes=[node],
        severity=graded(Band.INEXACT, float(lost.max()) / SIGNIFICANT),
    )
