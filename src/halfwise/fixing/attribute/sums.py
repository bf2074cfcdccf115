"""Sums in the low format: too large on the way, too long, cancelling, or swallowing a branch."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil, prod

import numpy as np
import onnx_ir as ir

from halfwise.emulation.running import BLOCK
from halfwise.fixing.attribute.evidence import (
    SIGNIFICANT,
    Band,
    Evidence,
    graded,
)
from halfwise.fixing.attribute.repairs import subtracting
from halfwise.graph.dataflow import constant_behind, producers, reached, upstream
from halfwise.graph.model import node_name
from halfwise.graph.reading import axes_of, square_of
from halfwise.observing.inner import CENTRING, is_exponent
from halfwise.records import Guard, NodeName

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
    for node, seen in evidence.inside("sum"):
        additions = ceil((_terms(node) or 1) / BLOCK) - 1
        lost = additions * 2.0**-evidence.fmt.precision
        if seen.value >= evidence.fmt.overflow_threshold:
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
            facts=evidence.inner(seen) | facts,
            fix="Accumulate in FP32.",
            nodes=[node],
            severity=severity,
        )


def _terms(node: ir.Node) -> int | None:
    """Return how many numbers are added in sequence, None if shapes do not say.

    For a Conv, the number of input channels: one block covers the whole kernel of each.
    """
    match node.op_type:
        case "MatMul":
            return _size(node.inputs[0], (-1,)) or _size(node.inputs[1], (-2,))
        case "Gemm":
            axes = [node.attributes.get_int(f"trans{side}", 0) for side in "AB"]
            return _size(node.inputs[0], (1 - axes[0],)) or _size(node.inputs[1], (axes[1],))
        case "Conv":
            return _size(node.inputs[1], (1,))
        case "Softmax":
            return _size(node.inputs[0], (node.attributes.get_int("axis", -1),))
    return _size(node.inputs[0], axes_of(node))


def _size(value: ir.Value | None, axes: tuple[int, ...] | None) -> int | None:
    """Return the product of some dimensions (all for None), None if one is unknown."""
    if value is None or value.shape is None:
        return None
    shape = list(value.shape)
    if axes is not None and not all(-len(shape) <= axis < len(shape) for axis in axes):
        return None
    sides = shape if axes is None else [shape[axis] for axis in axes]
    known = [side for side in sides if isinstance(side, int)]
    return prod(known) if len(known) == len(sides) else None


_SEVERITY_OF_ZEROS = 0.5
"""Mostly zero results: operands equal by design (x - x, 1 - mask) lose nothing."""

_LINEAR = frozenset(("GlobalAveragePool", "Neg", "ReduceMean", "ReduceSum"))
"""Operators that pass on the errors of their input without adding much of their own."""


def cancellation_guards(evidence: Evidence) -> Iterator[Guard]:
    """Yield cancellation guards: Add, Sub and norms that take off most of what they read.

    Operands stored with the unit roundoff u = 2^-precision leave the result of a ± b with a
    relative error of up to u · max(|a|, |b|) / |a ± b| from each (Higham 2002, "Accuracy and
    Stability of Numerical Algorithms", 1.7). A guard is raised if this, with the median of the
    ratio over the elements, exceeds `SIGNIFICANT`: a ratio above 20.5 in FP16 and 2.6 in BF16.
    If the result is only an exponent of e, u · max(|a|, |b|) itself is the relative error of the
    power (`halfwise.observing.inner.cancellation`).

    The nodes are the subtraction and the producers of its operands, through data movement and
    through nodes that pass errors on unchanged (sums, means, factors). A square passes on twice the
    relative error of its operand; it is followed to what only one operand is made of: in E[x²] -
    E[x]² to the mean but not to x, because the variance of a rounded x is nearly that of x. Readers
    of the result are left out: it is small, and a floating-point format stores small values as well
    as others.
    """
    unit = 2.0**-evidence.fmt.precision
    for node, seen in evidence.inside("cancellation"):
        error = seen.value * unit
        if error <= SIGNIFICANT:
            continue
        zeros = math.isinf(seen.value)
        facts = evidence.inner(seen) | {"share": None if zeros else min(error, 1.0)}
        if node.op_type in ("Add", "Sub") and is_exponent(node.outputs[0]):
            facts |= {"exponent": seen.value}
        yield from evidence.guard(
            "cancellation",
            node,
            node.outputs[0],
            facts=facts,
            fix=evidence.norm_fix(node, subtracting(node)),
            nodes=[node, *_origins(evidence, node)],
            severity=_SEVERITY_OF_ZEROS if zeros else graded(Band.INEXACT, error / SIGNIFICANT),
        )


def _origins(evidence: Evidence, node: ir.Node) -> set[ir.Node]:
    def hands_on(source: ir.Node) -> Sequence[ir.Value | None]:
        scales = source.op_type in ("Mul", "Div") and any(
            constant_behind(v, evidence.roles) is not None for v in source.inputs
        )
        return source.inputs if scales or source.op_type in _LINEAR else ()

    def doubles(source: ir.Node) -> Sequence[ir.Value | None]:
        square = square_of(source.outputs[0]) if source.op_type in ("Mul", "Pow") else None
        return (square.value,) if square else hands_on(source)

    if node.op_type in CENTRING:
        return set(upstream(node.inputs[0], evidence.roles, hands_on))
    direct = {n for v in node.inputs for n in upstream(v, evidence.roles, hands_on)}
    left, right = (set(upstream(v, evidence.roles, doubles)) for v in node.inputs)
    return direct | (left ^ right)


@dataclass(eq=False)
class _Stream:
    """Sums on one stream so far.

    Attributes:
        nodes: The sums from the first that loses its branch on.
        losses: Size of each lost branch relative to the stream.
    """

    nodes: list[ir.Node] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)


def residual_guards(evidence: Evidence) -> Iterator[Guard]:
    """Yield a residual guard for each stream whose sums lose more than `SIGNIFICANT` of it.

    A sum s = x + f(x) is stored with an error of up to half the spacing at s. If |f(x)| is below
    that, s rounds back to x, and the branch is lost ("stagnation": Higham 2002, "Accuracy and
    Stability of Numerical Algorithms", 4.2; Connolly, Higham & Mary 2021, doi 10.1137/20M1334796).
    Below a whole spacing most of it is lost. Magnitudes are the medians over the non-zero elements,
    read from the histograms to within a factor of √2, so a branch counts as lost p binades below
    the stream: about 2048 times smaller in FP16, 256 times in BF16.

    One lost branch changes the stream by 0.4 % at most, but the sums of a chain lose theirs one by
    one: up to Σ |f(x)| / |s|, if the branches point the same way. Below `SIGNIFICANT` no guard is
    raised. Only possible: for branches in arbitrary directions the loss is the root of the sum of
    squares.

    A residual sum is an Add of two computed values, the smaller of which is computed from the
    larger: so scores outweighed by a mask do not count. The nodes are the sums from the first that
    loses its branch to the last on the stream, including those between: one low sum rounds away
    what accumulated before it.
    """
    streams: dict[NodeName, _Stream] = {}
    for node in evidence.nodes.values():
        if node.op_type != "Add" or node.inputs[0] is node.inputs[1]:
            continue
        sizes = {v: _typical(evidence, v) for v in node.inputs if v is not None}
        total = _typical(evidence, node.outputs[0])
        if len(sizes) < 2 or not all(sizes.values()) or not total:
            continue
        branch, stream = sorted(sizes, key=sizes.__getitem__)
        earlier = [streams.get(node_name(n)) for n in producers(stream, evidence.roles)]
        on = next((s for s in earlier if s is not None), None)
        lost = sizes[branch] < evidence.fmt.ulp(total) and _made_from(evidence, branch, stream)
        if not lost and on is None:
            continue
        on = streams[node_name(node)] = on or _Stream()
        on.nodes.append(node)
        if lost:
            on.losses.append(sizes[branch] / total)
    for found in dict.fromkeys(streams.values()):
        yield from _swallowed(evidence, found)


def _swallowed(evidence: Evidence, stream: _Stream) -> list[Guard]:
    loss = math.fsum(stream.losses)
    if loss <= SIGNIFICANT:
        return []
    first = stream.nodes[0]
    return evidence.guard(
        "residual",
        first,
        first.outputs[0],
        facts={
            "elements": len(stream.losses),
            "value": 1 / min(stream.losses),
            "share": min(loss, 1.0),
        },
        fix="Keep the stream in FP32 and cast what the branches read.",
        nodes=stream.nodes,
        severity=graded(Band.POSSIBLE, loss / SIGNIFICANT),
    )


def _typical(evidence: Evidence, value: ir.Value) -> float:
    """Return the median magnitude of the non-zero elements, to within √2; 0 if unknown."""
    seen = evidence.observed(value)
    if seen is None or seen.detail is None or not seen.detail.histogram.counts:
        return 0.0
    histogram = seen.detail.histogram
    below = np.cumsum(histogram.counts)
    binade = histogram.first + int(np.searchsorted(below, below[-1] / 2))
    return float(2.0 ** (binade + 0.5))


def _made_from(evidence: Evidence, branch: ir.Value, stream: ir.Value) -> bool:
    """Return whether `branch` is computed from what `stream` holds."""
    origins = producers(stream, evidence.roles)
    start = min((evidence.order[node_name(n)] for n in origins), default=0)

    def is_stream(value: ir.Value) -> bool:
        return value is stream or value.producer() in origins

    def before(value: ir.Value) -> list[ir.Value]:
        node = value.producer()
        # Nothing before the stream in the graph can be computed from it.
        ends = node is None or is_stream(value) or evidence.order[node_name(node)] < start
        return [] if node is None or ends else [v for v in node.inputs if v is not None]

    return any(map(is_stream, reached([branch], before)))
