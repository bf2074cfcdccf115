"""Masks that survive the sum behind them: adds their distance from the row's largest value.

A Softmax reads scores s plus a mask m, in rows along its axis. With M = max m of each row,

    softmax(s + m) = softmax(s + max(m − M, −b)),   b = 15360

and where |M| > b is so large that FP32 loses the scores, s + m = m, with 0 in place of s. The first
step is the Softmax's invariance to shifts of a row (Blanchard, Higham & Higham 2021, "Accurately
computing the log-sum-exp and softmax functions", doi 10.1093/imanum/draa038). The second holds in
FP32, bit for bit, if the scores of a row lie less than b − 104 apart: exp(−104) is zero. Rows that
are not masked, or only in part, have M = 0 with the usual masks, and stay equal bit for bit. Fully
masked rows get the weights of their scores, as in exact arithmetic; where the mask swallows the
scores in FP32 and FP64 alike, they get equal weights as before.

So a row of −65504 − 16 = −inf in FP16, NaN after the Softmax, stays finite. A constant mask is
replaced by a constant; any other gets a maximum, a difference and a bound, shared by all heads, and
one selection of the scores where they are swallowed.
"""

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from halfwise.fixing.attribute.evidence import Evidence
from halfwise.fixing.attribute.ranges import mask_guards, range_guards
from halfwise.fixing.repair.rule import misfit, named, place
from halfwise.graph.model import (
    Names,
    Writer,
    constant_array,
    graphs_of,
    is_standard,
    node_name,
    opset_of,
)
from halfwise.graph.reading import scalar
from halfwise.graph.roles import is_float
from halfwise.graph.sensitivity import masked_by_constants
from halfwise.graph.written_out import BY_AXIS
from halfwise.records import NodeName, Place, Repair, RepairRule

MASK_BOUND = 15.0 * 2**10
"""Below a quarter of FP16's range, from which on a constant raises a guard (`MASK_SHARE`). With
scores of up to 50144 it stays finite, with scores up to 15256 apart it is a weight of zero."""
_QUANTISED = 2.0**17
"""Below this, FP32 keeps scores next to a mask to 2⁻⁸, and weights to 0.4 %, so that the function
without this error is still today's result."""
_LARGER = 100.0
"""Factor by which scores may grow and still work with a mask: queries and keys ten times."""
_ALL = 2.0**40
"""Scores up to here are swallowed: larger than any, so that it depends on no data. FP32's lowest
number does, −1e12 does not."""
_ADVICE = (
    "Replace the mask by its distance from the value of each row that masks least, within "
    f"±{MASK_BOUND:.0f}; where that value swallows the scores, set them to 0."
)
_VANISHED = 104.0
"""exp(−104) is zero in FP32."""


_Masked = tuple[ir.Value, str, int, int, bool]
"""What sums of scores and a mask share that only Softmaxes read: the mask, Add or Sub, the slot
that reads the mask, the Softmax's axis from the end (< 0), and whether a masked score leaves no
trace in FP32."""


class Mask:
    """Masks that leave the range of the low format together with a score.

    The function stays for scores of a row less than 15256 apart, and mask values up to 2¹⁷, or
    beyond 2⁶⁴, where FP32 loses all scores.
    """

    name: RepairRule = "mask"
    identity = "softmax(s + m) = softmax(s + max(m − max m, −15360))"

    def propose(self, evidence: Evidence) -> Iterator[Repair]:
        """Yield one repair for each mask, Softmax axis and graph, with all sums that read it."""
        if evidence.fmt.has_range_of_fp32:
            return
        guards: dict[NodeName, list[Place]] = {}
        for guard in (*mask_guards(evidence), *range_guards(evidence)):
            guards.setdefault(guard.node, []).append(place(guard))
        groups: dict[tuple[_Masked, object], list[NodeName]] = {}
        for name, node in evidence.nodes.items():
            if name in guards and (masked := _masked(evidence, node)) is not None:
                groups.setdefault((masked, node.graph), []).append(name)
        for ((_, _, slot, axis, swallows), _), names in groups.items():
            yield Repair(
                rule=self.name,
                nodes=tuple(names),
                numbers={"slot": slot, "axis": axis, "swallows": float(swallows)},
                guards=tuple(g for name in names for g in guards[name]),
                advice=_ADVICE,
            )

    def apply(self, model: ir.Model, *repairs: Repair) -> None:
        """Replace masks by their distance; see `Rule.apply`."""
        for repair in repairs:
            _replace(model, repair)


def _replace(model: ir.Model, repair: Repair) -> None:
    sums = named(model, repair, "Add", "Sub")
    slot, axis = int(repair.numbers["slot"]), int(repair.numbers["axis"])
    mask, opset = sums[0].inputs[slot], opset_of(model)
    if mask is None or any(node.inputs[slot] is not mask for node in sums):
        raise misfit(repair)
    if any(_axis(node.outputs[0], opset) != axis for node in sums):
        raise misfit(repair)
    names = Names(graphs_of(model))
    writer = Writer(model, repair.nodes[0], names)
    distance, top = _distance(writer, mask, axis, positive=sums[0].op_type == "Sub")
    lost = _beyond(writer, top) if repair.numbers["swallows"] else None
    sums[0].prepend(writer.made)
    for node in sums:
        node.replace_input_with(slot, distance)
        if lost is not None:
            writer = Writer(model, node_name(node), names)
            scores = node.inputs[1 - slot]
            assert scores is not None
            zero = writer.constant("zero", np.asarray(0, np.float32))
            node.replace_input_with(1 - slot, writer.op("Where", lost, zero, scores))
            node.prepend(writer.made)


def _distance(
    writer: Writer, mask: ir.Value, axis: int, *, positive: bool
) -> tuple[ir.Value, ir.Value]:
    """Return the bounded distance from each row's largest value, and that value.

    A subtracted mask is positive: the row's smallest value counts.
    """
    if mask.const_value is not None:
        array: NDArray[np.float32] = constant_array(mask).astype(np.float32)
        top = (array.min if positive else array.max)(axis=axis, keepdims=True)
        with np.errstate(invalid="ignore"):
            distance = np.clip(array - top, -MASK_BOUND, MASK_BOUND)
        return writer.constant("mask", distance), writer.constant("top", top)
    edge = writer.constant(
        "lowest", np.asarray(MASK_BOUND if positive else -MASK_BOUND, np.float32)
    )
    largest = writer.reduced("ReduceMin" if positive else "ReduceMax", mask, axis)
    return writer.op("Min" if positive else "Max", writer.op("Sub", mask, largest), edge), largest


def _beyond(writer: Writer, top: ir.Value) -> ir.Value | None:
    """Return which rows are fully masked; None if none are."""
    if top.const_value is None:
        return writer.op(
            "Greater",
            writer.op("Abs", top),
            writer.constant("highest", np.asarray(MASK_BOUND, np.float32)),
        )
    beyond = np.abs(constant_array(top)) > MASK_BOUND
    return writer.constant("lost", beyond) if beyond.any() else None


def _masked(evidence: Evidence, node: ir.Node) -> _Masked | None:
    """Return the sum that a node represents, if larger scores permit the rule.

    If the mask swallows scores, it has to swallow all up to `_ALL`.
    """
    if not is_standard(node, "Add", "Sub"):
        return None
    axis = _axis(node.outputs[0], evidence.network.opset)
    for slot in (0, 1) if node.op_type == "Add" else (1,):
        mask, scores = node.inputs[slot], node.inputs[1 - slot]
        if axis is None or mask is None or scores is None or not is_float(mask):
            continue
        if mask.shape is None or mask.shape.rank() < -axis:
            continue
        most = _LARGER * evidence.absmax(scores)
        if evidence.absmax(mask) <= MASK_BOUND or 2 * most > MASK_BOUND - _VANISHED:
            continue
        if not (_is_finite(evidence, scores) and _is_finite(evidence, mask)):
            continue
        if not masked_by_constants(mask, evidence.roles, evidence.tensors, MASK_BOUND):
            continue
        swallows = _swallows(evidence, mask, max(_ALL, most))
        if swallows is not None:
            return mask, node.op_type, slot, axis, swallows
    return None


def _is_finite(evidence: Evidence, value: ir.Value) -> bool:
    """Return whether no infinity was seen: FP16 has such masks, and NaN for rows of them."""
    if value.const_value is not None:
        return bool(np.isfinite(constant_array(value)).all())
    observation = evidence.observed(value)
    return observation is not None and not observation.nonfinite


def _swallows(evidence: Evidence, mask: ir.Value, scores: float) -> bool | None:
    """Return whether scores up to `scores` leave no trace in FP32 where they are masked.

    None if some do and others do not.

    A value of the binade k has FP32's spacing 2^(k−23); less than half of it leaves no trace.
    """
    large = [k for k in evidence.binades(mask) if 2.0 ** (k + 1) > MASK_BOUND]
    if all(2.0 ** (k + 1) <= _QUANTISED for k in large):
        return False
    return True if all(scores < 2.0 ** (k - 24) for k in large) else None


def _axis(value: ir.Value, opset: int) -> int | None:
    """Return the axis of the Softmaxes that alone read `value`, from the end; None otherwise."""
    if value.is_graph_output() or value.shape is None or not value.uses():
        return None
    axes = {_axis_of(value, use.node, use.idx, opset) for use in value.uses()}
    return axes.pop() if len(axes) == 1 else None


def _axis_of(value: ir.Value, node: ir.Node, slot: int, opset: int) -> int | None:
    assert value.shape is not None
    rank = value.shape.rank()
    if is_standard(node, "Softmax"):
        axis = node.attributes.get_int("axis", -1 if opset >= BY_AXIS else 1)
        axis -= rank if axis >= 0 else 0
        return axis if opset >= BY_AXIS or axis == -1 else None
    bound = scalar(node.inputs[1 - slot]) if is_standard(node, "Max") and rank else None
    if is_standard(node, "Identity") or (bound is not None and bound < -_QUANTISED):
        return _axis(node.outputs[0], opset)
    if is_standard(node, "Reshape") and _keeps_rows(value, node.outputs[0]):
        axis_behind = _axis(node.outputs[0], opset)
        return axis_behind if axis_behind == -1 else None
    return None


def _keeps_rows(before: ir.Value, after: ir.Value) -> bool:
    shapes = (before.shape, after.shape)
    sizes = [shape[-1] if shape is not None and shape.rank() else None for shape in shapes]
    return isinstance(sizes[0], int) and sizes[0] == sizes[1]
