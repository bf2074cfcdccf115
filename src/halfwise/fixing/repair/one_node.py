"""One node in place of a norm, Softmax or activation that is written out."""

from collections.abc import Iterator

import onnx_ir as ir

from halfwise.fixing.attribute import guards_of
from halfwise.fixing.attribute.evidence import Evidence
from halfwise.fixing.repair.rule import answered, misfit
from halfwise.graph.conversion import raise_opset
from halfwise.graph.dataflow import Part
from halfwise.graph.model import Network, opset_of
from halfwise.graph.one_node import FIRST_OPSET, Pattern, patterns, replace
from halfwise.records import Repair, RepairRule

_HIGHEST = FIRST_OPSET["LayerNormalization"]
"""The opset is raised no further: every TensorRT with a LayerNormalization reads this one."""


class OneNode:
    """Replace a written-out LayerNormalization, Softmax and the like by one node.

    Such a node keeps squares, sums and exponentials in FP32 inside, in ONNX (`stash_type`) and in
    TensorRT, so only its input and output have to fit.

    Limits: a norm has to be over the last axes, over all places of each channel, or in groups of
    channels, with known sizes. An RMSNormalization (opset 23), a GroupNormalization (21) and a Gelu
    (20) are made only if the model already has that opset. For a LayerNormalization it is raised to
    17.

    The function stays for all x. Sums run in another order, and a Softmax subtracts the largest
    value, so it is finite where exp(x) is not.
    """

    name: RepairRule = "one-node"
    identity = (
        "(x - mean(x)) / √(mean((x - mean(x))²) + eps) · w + b = LayerNormalization(x), "
        "exp(x) / Σ exp(x) = Softmax(x), and likewise: ONNX defines the operators so"
    )

    def propose(self, evidence: Evidence) -> Iterator[Repair]:
        """Yield a repair for each pattern inside which something raises a guard."""
        network = evidence.network
        guards = guards_of(evidence)
        for pattern in _patterns(network) if guards else ():
            needs = answered(guards, [evidence.nodes[n] for n in pattern.nodes])
            if needs:
                first = FIRST_OPSET.get(pattern.replacement.op, 0)
                yield Repair(
                    rule=self.name,
                    nodes=pattern.nodes,
                    numbers={"opset": first} if first > network.opset else {},
                    guards=needs,
                    advice=evidence.norm_fix(
                        evidence.nodes[pattern.nodes[-1]],
                        f"Export it as one {pattern.replacement.op}.",
                    ),
                )

    def apply(self, model: ir.Model, *repairs: Repair) -> None:
        """Make the last of a repair's nodes one node that reads what the first one did, in place.

        Raises:
            CaseError: they do not form such a pattern here, or ONNX cannot raise the opset.
        """
        opset = int(max(repair.numbers.get("opset", 0) for repair in repairs))
        if opset > opset_of(model):
            raised = raise_opset(Network(model, None, "", {}), opset).model
            model.graph, model.ir_version = raised.graph, raised.ir_version
        for repair in repairs:
            there = _patterns(Part.of(model, repair.nodes))
            pattern = next((p for p in there if p.nodes[-1] == repair.nodes[-1]), None)
            if pattern is None:
                raise misfit(repair)
            replace(model, pattern.replacement)


def _patterns(network: Network) -> list[Pattern]:
    """Return the patterns that can become one node."""
    return patterns(network, max(network.opset, _HIGHEST))
