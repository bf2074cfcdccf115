"""Approximate: raises an eps that the low format stores badly to one that it can represent."""

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from halfwise.fixing.attribute.evidence import Evidence
from halfwise.fixing.attribute.small import small_guards
from halfwise.fixing.repair.rule import Identity, misfit, named, place
from halfwise.formats import LOW_FORMATS
from halfwise.graph.model import constant_array, graphs_of, node_name
from halfwise.graph.normal_form import Names, drop_unused_constants
from halfwise.graph.writing import Writer
from halfwise.records import Repair, RepairRule
from halfwise.wording import typed

_SLOTS = {"Add": (0, 1), "Sum": (0, 1), "Max": (0, 1), "Clip": (1,)}
"""Where the operators read an eps that may be raised: a subtracted one may change signs."""
_RAISED = frozenset(fmt.smallest_normal for fmt in LOW_FORMATS.values())


class Epsilon:
    """Raise eps to the low format's smallest normal number, 2⁻¹⁴ in FP16.

    It is not an identity. What reads v + eps (a root, a denominator or a logarithm) reads v + eps +
    d instead, with d = eps' − eps: larger by up to d / (v + eps) relative to its previous input,
    and its root by half of that. `Repair.numbers` has it at the smallest sum in the data
    ("change"); rows that are zero except for the eps are the extreme case, and 0 / eps is 0 for
    every eps.

    Each reader gets its own constant: others of the same eps keep theirs. With powers of two,
    "scale" raises an eps without changing the function; this rule is for models where that is
    rejected.
    """

    name: RepairRule = "epsilon"
    identity = Identity(formula="f(v + eps) ≈ f(v + eps')", holds="v far above eps'", exact=False)

    def propose(self, evidence: Evidence) -> Iterator[Repair]:
        """Yield a repair for each eps guard."""
        raised = evidence.fmt.smallest_normal
        for guard in small_guards(evidence):
            node = evidence.nodes.get(guard.node)
            if guard.kind != "eps" or node is None:
                continue
            constants = [v for v in node.inputs if v is not None and v.is_initializer()]
            slot = next((node.inputs.index(v) for v in constants if v.name == guard.tensor), -1)
            if slot not in _SLOTS.get(node.op_type, ()):
                continue
            seen = evidence.observed(node.outputs[0])
            smallest = seen.detail.smallest_nonzero if seen and seen.detail else np.inf
            eps = guard.numbers["value"] or 0.0
            yield Repair(
                rule=self.name,
                nodes=(node_name(node),),
                numbers={
                    "slot": slot,
                    "eps": raised,
                    "was": eps,
                    "change": (raised - eps) / smallest,
                },
                guards=(place(guard),),
                advice=f"Raise the eps in {node_name(node)} to {typed(raised)}.",
            )

    def apply(self, model: ir.Model, repair: Repair) -> None:
        """Give the node its own constant, raised; see `Rule.apply`.

        Numbers other than those of `propose` are rejected: samples cannot prove what is not an
        identity.
        """
        (node,) = named(model, repair, *_SLOTS)
        slot, eps = int(repair.numbers["slot"]), repair.numbers["eps"]
        value = (
            node.inputs[slot] if slot in _SLOTS[node.op_type] and slot < len(node.inputs) else None
        )
        if value is None or value.const_value is None:
            raise misfit(repair)
        array: NDArray[np.float32] = constant_array(value).astype(np.float32)
        if not np.all((array > 0) & (array < eps)) or eps not in _RAISED:
            raise misfit(repair)
        w = Writer(model, node_name(node), Names(graphs_of(model)))
        node.replace_input_with(slot, w.constant("eps", np.full_like(array, eps)))
        drop_unused_constants((model.graph,))
