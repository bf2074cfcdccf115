"""Values beyond or close to the range of the low format: tensors, insides, constants, masks."""

import math
from collections.abc import Iterator, Mapping, Sequence
from math import ceil

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from halfwise.emulation.accumulate import has_sum
from halfwise.emulation.blocks import BLOCK, Call
from halfwise.fixing.attribute.evidence import (
    FOLDING,
    SIGNIFICANT,
    Band,
    Evidence,
    graded,
)
from halfwise.graph.casts import adjusted_constants, fill_of
from halfwise.graph.dataflow import (
    LONGEST_WAY,
    constant_behind,
    consumers,
    low_consumers,
    moves,
    upstream,
)
from halfwise.graph.model import constant_array, is_standard, node_name
from halfwise.graph.reading import axes_of, split_constant, square_of
from halfwise.graph.roles import is_float
from halfwise.graph.sensitivity import MASK_SHARE, selects_constants
from halfwise.graph.weights import span
from halfwise.observing.inner import PRODUCTS, is_exponent
from halfwise.records import AdjustedConstant, Guard, GuardKind

_SEVERITY_OF_SUM = 0.9
"""Σ|x| bounds the running sum but is reached only if no terms cancel."""
_SEVERITY_OF_LENGTH = 0.7
"""The error bound is reached if all terms have one sign and the sum stops growing."""


def sum_guards(evidence: Evidence) -> Iterator[Guard]:
    """Yield sum guards; only if running sums are in the low format.

    - Σ|x| inside an op reaches `fmt.overflow_threshold`.
    - The sum is so long that rounding it once per block may lose more than `SIGNIFICANT` of Σ|x|: m
      additions lose up to m · u, u = 2^-precision the unit roundoff (Higham 2002, "Accuracy and
      Stability of Numerical Algorithms", 4.2). In FP16 that is from 21 additions on, 337 terms in
      blocks of 16. Only if shapes give the number of terms.

    Both are only possible: terms of both signs keep running sums small.
    """
    if evidence.accumulate != "fp16":
        return
    for node, observation in evidence.inside("sum"):
        additions = ceil((_terms(node) or 1) / BLOCK) - 1
        lost = additions * 2.0**-evidence.fmt.precision
        if observation.value >= evidence.fmt.overflow_threshold:
            facts, severity = {"limit": evidence.fmt.max}, _SEVERITY_OF_SUM
        elif lost > SIGNIFICANT:
            facts = {"elements": additions + 1, "share": min(lost, 1.0)}
            severity = _SEVERITY_OF_LENGTH * min(lost, 1.0)
        else:
            continue
        yield from evidence.guard(
            "sum",
            node,
            None,
            seen=observation,
            facts=facts,
            fix="Accumulate in FP32.",
            nodes=[node],
            severity=severity,
        )


def _terms(node: ir.Node) -> int | None:
    """Return how many numbers are added in sequence, None if shapes do not say.

    For a Conv, the number of input channels: one block covers the whole kernel of each.
    """
    attributes = node.attributes
    reads: dict[str, tuple[int, tuple[int, ...]]] = {
        "MatMul": (0, (-1,)),
        "Gemm": (0, (1 - attributes.get_int("transA", 0),)),
        "Conv": (1, (1,)),
        "Softmax": (0, (attributes.get_int("axis", -1),)),
    }
    slot, axes = reads.get(node.op_type) or (0, axes_of(node))
    call = Call(node, node.inputs)
    shape = call.shape(slot) or ()
    return call.terms((slot, range(len(shape)) if axes is None else axes))


_SEVERITY_OF_ZEROS = 0.5
"""Mostly zero results: operands equal by design (x - x, 1 - mask) lose nothing."""

_LINEAR = frozenset(("GlobalAveragePool", "Neg", "ReduceMean", "ReduceSum"))
"""Operators that pass on the errors of their input without adding much of their own."""


def cancellation_guards(evidence: Evidence) -> Iterator[Guard]:
    """Yield cancellation guards: sums that take off most of what they read.

    Add, Sub, norms, and products before a logarithm.

    Operands stored with the unit roundoff u = 2^-precision leave the result of a ± b with a
    relative error of up to u · max(|a|, |b|) / |a ± b| from each (Higham 2002, "Accuracy and
    Stability of Numerical Algorithms", 1.7). A guard is raised if this, with the median of the
    ratio over the elements, exceeds `SIGNIFICANT`: a ratio above 20.5 in FP16 and 2.6 in BF16.
    If the result is only an exponent of e, u · max(|a|, |b|) itself is the relative error of the
    power (`halfwise.observing.cancelling.cancellation`).

    The nodes are the subtraction and the producers of its operands, through data movement and
    through nodes that pass errors on unchanged (sums, means, factors). A square passes on twice the
    relative error of its operand; it is followed to what only one operand is made of: in E[x²] -
    E[x]² to the mean but not to x, because the variance of a rounded x is nearly that of x. Readers
    of the result are left out: it is small, and a floating-point format stores small values as well
    as others.
    """
    unit = 2.0**-evidence.fmt.precision
    for node, observation in evidence.inside("cancellation"):
        error = observation.value * unit
        if error <= SIGNIFICANT:
            continue
        zeros = math.isinf(observation.value)
        facts = {"share": None if zeros else min(error, 1.0)}
        if node.op_type in ("Add", "Sub") and is_exponent(node.outputs[0]):
            facts |= {"exponent": observation.value}
        yield from evidence.guard(
            "cancellation",
            node,
            node.outputs[0],
            seen=observation,
            facts=facts,
            fix=evidence.norm_fix(node),
            nodes=[node, *_origins(evidence, node)],
            severity=_SEVERITY_OF_ZEROS if zeros else graded(Band.INEXACT, error / SIGNIFICANT),
        )


def _origins(evidence: Evidence, node: ir.Node) -> set[ir.Node]:
    # Into a product, errors come through sums too; of a sum, they are its operands' own.
    linear = _LINEAR | {"Add", "Sub"} if is_standard(node, *PRODUCTS) else _LINEAR

    def hands_on(source: ir.Node) -> Sequence[ir.Value | None]:
        scales = source.op_type in ("Mul", "Div") and any(
            constant_behind(v, evidence.roles) is not None for v in source.inputs
        )
        return source.inputs if scales or source.op_type in linear else ()

    def doubles(source: ir.Node) -> Sequence[ir.Value | None]:
        square = square_of(source.outputs[0]) if source.op_type in ("Mul", "Pow") else None
        return (square.value,) if square else hands_on(source)

    direct = {n for v in node.inputs for n in upstream(v, evidence.roles, hands_on)}
    if node.op_type not in ("Add", "Sub"):
        return direct
    first, second = (set(upstream(v, evidence.roles, doubles)) for v in node.inputs)
    return direct | (first ^ second)


_SQUARED = "Divide by the largest magnitude before, and multiply by it afterwards."
"""Repair of a root of squares that preserves its result."""
_SEVERITY_OF_INNER = 0.8
"""Only possible: an op may keep what is inside in FP32, as the emulation does."""
_HEADROOM_WEIGHT = 0.5
"""Ranks a value that fits behind every guard about one that does not."""


def range_guards(evidence: Evidence) -> Iterator[Guard]:
    """Yield overflow, square and headroom guards.

    - "overflow", or "square" if the tensor is a square: absmax ≥ `fmt.overflow_threshold`, the
      smallest magnitude that rounds to infinity (IEEE 754-2019, 4.3.1).
    - "square" inside ReduceL2: Σx² reaches the threshold although its root fits. Only possible,
      because ops may use FP32 inside; certain with FP16 accumulation.
    - The same of the scores, sums and mean squares inside fused attentions and norms: whether they
      are FP32 depends on the kernel that the runtime takes.
    - "headroom": absmax · headroom ≥ threshold, but absmax is below it. Not for masks and the like,
      which select constants.

    A tensor copied by data movement is not reported again. The nodes are the
    producer and all compute consumers, through data movement.
    """
    for value in evidence.made.values():
        yield from _tensor(evidence, value)
    yield from _inside(evidence)


def _tensor(evidence: Evidence, value: ir.Value) -> list[Guard]:
    observation, producer = evidence.observed(value), value.producer()
    limit = evidence.fmt.overflow_threshold
    reach = limit / evidence.headroom
    if observation is None or observation.absmax < reach:
        return []
    overflows, readers = observation.absmax >= limit, low_consumers(value, evidence.roles)
    node = producer or next(iter(readers), None)
    grows = overflows or not selects_constants(value, evidence.roles, evidence.tensors, reach)
    if node is None or not grows:
        return []
    square = square_of(value) if producer is not None else None
    return evidence.guard(
        ("square" if square else "overflow") if overflows else "headroom",
        node,
        value,
        seen=observation,
        facts={
            "squared": square.value.name if square else "",
            "value": observation.absmax,
            "limit": evidence.fmt.max,
            "share": (observation.detail.overflow or None) if observation.detail else None,
            "samples": evidence.fewer(observation.detail) if observation.detail else None,
        },
        fix=evidence.norm_fix(node),
        nodes=[node, *readers],
        severity=graded(Band.OVERFLOW, observation.absmax / limit)
        if overflows
        else _HEADROOM_WEIGHT * observation.absmax / limit,
    )


_INNER: Mapping[str, tuple[GuardKind, str]] = {
    "square": ("square", ""),
    "score": ("overflow", "scores"),
    "residual": ("overflow", "sums"),
    "mean-square": ("overflow", "mean squares"),
}
"""The guards on values inside an op, by the kind of observation, and what these values are."""


def _inside(evidence: Evidence) -> Iterator[Guard]:
    limit = evidence.fmt.overflow_threshold
    for kind, (raised, what) in _INNER.items():
        for node, observation in evidence.inside(kind):
            # If the result itself overflows, the guard on the tensor reports it.
            if observation.value < limit or any(evidence.absmax(v) >= limit for v in node.outputs):
                continue
            certain = evidence.accumulate == "fp16" and has_sum(node)
            yield from evidence.guard(
                raised,
                node,
                None,
                seen=observation,
                facts={"limit": evidence.fmt.max, "what": what},
                fix=_SQUARED if kind == "square" else "",
                nodes=[node],
                severity=graded(Band.OVERFLOW, observation.value / limit)
                if certain
                else _SEVERITY_OF_INNER,
            )


ADDENDS = {
    "Add": (0, 1), "Sub": (0, 1), "Sum": (0, 1, 2, 3), "Max": (0, 1), "Min": (0, 1),
    "Clip": (1, 2), "Conv": (2,), "ConvTranspose": (2,), "Gemm": (2,), "LayerNormalization": (2,),
    "InstanceNormalization": (2,), "GroupNormalization": (2,), "BatchNormalization": (2, 3, 4),
}  # fmt: skip
"""Operands that are added to something else, so that a tiny one is lost in it anyway.

The variance of a BatchNormalization (slot 4) divides as well, once its eps is added.
"""


def constant_guards(evidence: Evidence) -> Iterator[Guard]:
    """Yield constant-range and constant-subnormal guards.

    - "constant-range": finite elements above `fmt.max`. TensorRT stores them as the largest finite
      value, plain conversions as infinity: both are wrong. Not for BF16, which has FP32's range.
    - "constant-subnormal": more than half of the non-zero elements are below `fmt.smallest_normal`,
      in an operand that is not only added. In a divisor, which makes large what it is small for,
      any element that is stored with an error above `SIGNIFICANT`, relative to what divides: of a
      BatchNormalization's variance with its eps.
    """
    every = evidence.network.model.graph.all_nodes()
    fills = [n.outputs[0] for n in every if n.op_type == "ConstantOfShape"]
    values = {v.name: v for v in (*evidence.constants, *fills)}
    beyond = adjusted_constants(evidence.network, evidence.roles, frozenset(), evidence.fmt)
    for adjusted in () if evidence.fmt.has_range_of_fp32 else beyond:
        yield from _beyond(evidence, values[adjusted.name], adjusted)
    for value in evidence.constants:
        yield from _tiny(evidence, value)


def _beyond(evidence: Evidence, value: ir.Value, adjusted: AdjustedConstant) -> list[Guard]:
    nodes = low_consumers(value, evidence.roles)
    largest = max(-adjusted.minimum, adjusted.maximum)
    if not nodes or largest <= evidence.fmt.max:
        return []
    size = 1 if value.const_value is None else value.const_value.size
    variance = nodes[0].op_type == "BatchNormalization"
    return evidence.guard(
        "constant-range",
        nodes[0],
        value,
        facts={
            "elements": adjusted.elements,
            "size": size,
            "limit": evidence.fmt.max,
            "value": largest,
        },
        fix=FOLDING if variance else "",
        nodes=nodes,
        severity=graded(Band.OVERFLOW, largest / evidence.fmt.max),
    )


_MOSTLY_TINY = 0.5
"""A minority of tiny weights is usual and harmless next to large ones; a majority is not."""


def _tiny(evidence: Evidence, value: ir.Value) -> list[Guard]:
    fmt = evidence.fmt
    uses = [(n, i) for n, i in consumers(value, evidence.roles) if evidence.roles.reads_low(n, i)]
    added = [a for n, i in uses if (a := _added_to_divisor(n, i)) is not None]
    nodes = [n for n, i in uses if added or i not in ADDENDS.get(n.op_type, ())]
    if not nodes or all(moves(n, evidence.roles) for n in nodes):
        return []
    share, zeroed = (evidence.below(value, m) for m in (fmt.smallest_normal, fmt.flush_threshold))
    if not (_is_inexact(evidence, value, min(added)) if added else share > _MOSTLY_TINY):
        return []
    folded = any(n.op_type == "BatchNormalization" for n in nodes)
    return evidence.guard(
        "constant-subnormal",
        nodes[0],
        value,
        facts={"share": share, "limit": fmt.smallest_normal, "zeroed": zeroed},
        fix=FOLDING if folded else "",
        nodes=nodes,
        severity=graded(Band.INEXACT, fmt.smallest_normal / evidence.absmax(value)),
    )


def _added_to_divisor(node: ir.Node, slot: int) -> float | None:
    """Return what is added to an operand before it divides; None if it does not divide."""
    if (node.op_type, slot) == ("BatchNormalization", 4):
        return node.attributes.get_float("epsilon", 1e-5)
    return 0.0 if (node.op_type, slot) == ("Div", 1) else None


def _is_inexact(evidence: Evidence, value: ir.Value, added: float) -> bool:
    """Return whether an element of a constant, with what is added, has too large an error."""
    array: NDArray[np.float32] = constant_array(value).astype(np.float32)
    array = array[np.abs(array) <= evidence.fmt.max]
    error = np.abs(evidence.fmt.round(array) - array)
    return bool((error > SIGNIFICANT * (np.abs(array) + added)).any())


_PATH = frozenset(("Add", "Sub", "Mul", "Div", "Max", "Min", "Clip", "Neg", "Sum"))
"""Operators between a mask constant and its Softmax."""
_SEVERITY_OF_MASKED_ROW = 0.7
"""NaN, but only if a row is fully masked."""
_SEVERITY_OF_CHOSEN_MASK = 0.2
"""A selected constant is added to no score: it stays finite."""


def mask_guards(evidence: Evidence) -> Iterator[Guard]:
    """Yield mask guards: finite constants ≤ -0.25 · `fmt.max` on the way into a Softmax.

    Or as large and positive, if they are subtracted on the way.

    An added constant leaves the range together with a score: -65504 - 16 is -inf in FP16. One
    masked score may be -inf, but a row of them makes the Softmax 0/0 = NaN. All of it is only
    possible: no range shows whether a row is fully masked. The nodes are those between the constant
    and the Softmax, and the Softmax.
    """
    edge = MASK_SHARE * evidence.fmt.max
    spans = [(v, *evidence.span(v)) for v in evidence.constants]
    fills = [n for n in evidence.nodes.values() if n.op_type == "ConstantOfShape"]
    spans += [(n.outputs[0], *span(fill_of(n).numpy())) for n in fills if is_float(n.outputs[0])]
    for value, lowest, highest in spans:
        if lowest <= -edge or highest >= edge:
            yield from _mask(evidence, value, lowest if lowest <= -edge else highest)


def _mask(evidence: Evidence, value: ir.Value, extreme: float) -> list[Guard]:
    path = _way_to_softmax(evidence, value)
    if not path or (extreme > 0 and not any(n.op_type in ("Sub", "Neg") for n in path)):
        return []
    added = next((n for n in path if n.op_type in ("Add", "Sub", "Sum")), None)
    end = path[-1]
    return evidence.guard(
        "mask",
        added or end,
        value,
        facts={
            "value": extreme,
            "limit" if extreme < 0 else "lowest": None if added is None else -evidence.fmt.max,
            "reader": node_name(end),
            "op": end.op_type,
        },
        fix="Mask with -1e4 instead: next to scores within ±4000 its exponential is zero too. "
        "Fully masked rows come out differently.",
        nodes=path,
        severity=_SEVERITY_OF_MASKED_ROW if added is not None else _SEVERITY_OF_CHOSEN_MASK,
    )


def _way_to_softmax(evidence: Evidence, value: ir.Value) -> list[ir.Node]:
    """Return the compute nodes from `value` to the next Softmax behind it, the Softmax last.

    Of a written-out one, that is the Exp, and the ReduceMax comes first. Values that are
    bounded are no mask.
    """
    paths: list[tuple[ir.Value, list[ir.Node]]] = [(value, [])]
    visited = {value}
    for current, path in paths:
        for node in (n for n, _ in consumers(current, evidence.roles)):
            if node.op_type in ("Softmax", "LogSoftmax"):
                return [*path, node]
            if node.op_type == "Exp" and path and path[-1].op_type == "Sub":
                largest = (v.producer() for v in path[-1].inputs if v is not None)
                return [*(n for n in largest if n and n.op_type == "ReduceMax"), *path, node]
            output = node.outputs[0]
            bound = split_constant(output, "Max", "Min", "Clip")
            bounded = bound is not None and abs(bound[1]) < MASK_SHARE * evidence.fmt.max
            passes = node.op_type in _PATH and not bounded and output not in visited
            if passes and len(path) < LONGEST_WAY:
                visited.add(output)
                paths.append((output, [*path, node]))
    return []
