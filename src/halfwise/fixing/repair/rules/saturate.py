"""Approximate: assumes that values stay within what the data showed, with headroom."""

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from halfwise.fixing.attribute.evidence import Evidence
from halfwise.fixing.attribute.ranges import range_guards
from halfwise.fixing.repair.rule import Identity, misfit, named, place
from halfwise.fixing.repair.rules.mask import Mask
from halfwise.formats import LOW_FORMATS
from halfwise.graph.model import graphs_of, is_standard, node_name, tensor_name
from halfwise.graph.normal_form import Names
from halfwise.graph.patterns.reading import scalar
from halfwise.graph.writing import Writer
from halfwise.records import Repair, RepairRule

_CLIP_READS_BOUNDS = 11
"""First opset in which Clip takes its bounds as inputs."""


class _SeenMask(Mask):
    """Masks that swallow the scores in the data, times the headroom, but no larger ones."""

    name: RepairRule = "saturate"

    def __init__(self, headroom: float) -> None:
        self.larger, self.least = headroom, 0.0


class Saturate:
    """Clips values close to the end of the range, and bounds masks by the scores in the data.

    It is not an identity.

    - A tensor within the headroom of the range's end, which the data never left, is clipped to the
      range: x = clip(x, ±65504) for everything seen, up to the headroom and beyond as far as FP16
      goes. Larger values become 65504, where the model had them and FP16 would have infinity.
    - Masks of −1e9 and −1e12 get the form of "mask" if they swallow all scores in the data, times
      the headroom. Fully masked rows get equal weights for larger scores too, which FP32 had
      rounded to multiples of 64.
    """

    name: RepairRule = "saturate"
    identity = Identity(
        formula="x ≈ clip(x, ±65504)", holds="values seen in the data, with headroom", exact=False
    )

    def propose(self, evidence: Evidence) -> Iterator[Repair]:
        """Yield a repair for each tensor close to the end, and for each such mask."""
        if evidence.fmt.has_range_of_fp32:
            return
        exact = {r.nodes for r in Mask().propose(evidence)}
        masks = [r for r in _SeenMask(evidence.headroom).propose(evidence) if r.nodes not in exact]
        yield from masks
        if evidence.network.opset < _CLIP_READS_BOUNDS:
            return
        summed = {name for r in masks for name in r.nodes}
        for guard in range_guards(evidence):
            value = evidence.values.get(guard.tensor) if guard.tensor is not None else None
            node = value.producer() if value is not None else None
            most = evidence.fmt.max
            if guard.kind != "headroom" or value is None or node is None:
                continue
            readers = [use.node for use in value.uses()]
            if node_name(node) in summed or any(_bounds(n, most) for n in (node, *readers)):
                continue
            yield Repair(
                rule=self.name,
                nodes=(node_name(node),),
                numbers={
                    "most": most,
                    "output": value.index() or 0,
                    "seen": evidence.absmax(value),
                },
                guards=(place(guard),),
                advice=f"Clip {value.name} to ±{most:.0f}.",
            )

    def apply(self, model: ir.Model, repair: Repair) -> None:
        """Clip a tensor for all that reads it, or bound a mask; see `Rule.apply`.

        Ends other than a low format's are rejected: samples cannot prove what is not an identity.
        """
        if "most" not in repair.numbers:
            Mask().apply(model, repair)
            return
        (node,) = named(model, repair)
        index, most = int(repair.numbers["output"]), repair.numbers["most"]
        ends = {fmt.max for fmt in LOW_FORMATS.values() if not fmt.has_range_of_fp32}
        if not 0 <= index < len(node.outputs) or most not in ends:
            raise misfit(repair)
        value = node.outputs[index]
        uses = tuple(value.uses())
        w = Writer(model, tensor_name(value), Names(graphs_of(model)))
        bounds = (
            w.constant(n, np.asarray(b, np.float32)) for n, b in (("low", -most), ("high", most))
        )
        clipped = w.op("Clip", value, *bounds)
        clipped.type, clipped.shape = value.type, value.shape
        model.graph.insert_after(node, w.made)
        for use in uses:
            use.node.replace_input_with(use.idx, clipped)


def _bounds(node: ir.Node, most: float) -> bool:
    """Return whether a node is a Clip to ±`most` or less."""
    if not is_standard(node, "Clip") or len(node.inputs) < len(("x", "low", "high")):
        return False
    low, high = scalar(node.inputs[1]), scalar(node.inputs[2])
    return low is not None and high is not None and -most <= low and high <= most
