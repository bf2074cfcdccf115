"""A user's quantised model, without the pairs where INT8 is not enough.

Pairs that no product reads in full are left out at once: they cost accuracy, and no INT8 kernel
comes from them alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from halfwise.errors import CaseError
from halfwise.graph.conversion import upcast
from halfwise.graph.excluding import excluding, with_activations
from halfwise.graph.model import Network, node_name, tensor_name
from halfwise.graph.quantised import (
    Pair,
    give_kernel_shapes,
    moves_before,
    pairs_of,
    pairs_read,
    quantised_nodes,
    quantising,
)
from halfwise.records import NodeName, Run

Assignment = frozenset[NodeName]


@dataclass(frozen=True)
class Given:
    """A quantised model, and its form without quantisation.

    Attributes:
        floats: The model without any INT8, with the original's weights where it has them; its nodes
            have the names of the quantised model.
        quantised: The model as given, with low tensors widened, and with the activations that the
            quantiser dropped.
    """

    floats: Network
    quantised: Network

    @property
    def pairs(self) -> Mapping[NodeName, tuple[Pair, ...]]:
        """The nodes that can be INT8."""
        found = quantised_nodes(self.quantised)
        return {name: found[name] for name in found if name not in self.moved}

    @cached_property
    def moved(self) -> tuple[NodeName, ...]:
        """The products that read data with scales along an axis, through nodes that move that axis.

        The search puts pairs behind such nodes, where the axis is another one; and TensorRT has one
        scale for data.
        """
        along = [pair for pair in pairs_of(self.quantised) if _is_along(pair)]
        reads = [read for pair in along for read in pair.readers]
        names = {node_name(node) for node, slot in reads if moves_before(node, slot)}
        return tuple(name for name in quantised_nodes(self.quantised) if name in names)

    def place(self, nodes: Assignment) -> Network:
        """Return the model with these nodes in INT8."""
        others = pairs_read(self.quantised).keys() - nodes
        placed = excluding(self.quantised, others, self.floats, ends=True)
        give_kernel_shapes(placed.graph)
        return placed


def _is_along(pair: Pair) -> bool:
    """Return whether a pair quantises data along an axis."""
    is_data = pair.source is not None and pair.source.const_value is None
    return is_data and pair.axis is not None


def given_start(original: Network, start: Network | Run | None) -> Given | None:
    """Return what a search starts from, if `start` is a quantised model; else None.

    Args:
        original: The model before quantisation.
        start: A model with the types in its file, or a run.

    Raises:
        CaseError: its inputs or outputs have other names than the original's, or it is quantised
            but no product reads pairs.
    """
    if not isinstance(start, Network):
        return None
    wide = with_activations(upcast(start)[0], original)
    nodes = quantised_nodes(wide)
    if not nodes and quantising(wide):
        raise CaseError(
            f"{start.path} is quantised, but none of its products reads both data and weights "
            "through Q and DQ of at most 8 bits.",
            "Quantise statically, in QDQ format and data to 8 bits too: quantize_static of "
            "onnxruntime.quantization with QuantFormat.QDQ. QOperator files, dynamic quantisation, "
            "INT4 weights alone and INT16 data cannot be used.",
        )
    if not nodes:
        return None
    for what, ends in (("inputs", "inputs"), ("outputs", "outputs")):
        own, its = ([tensor_name(v) for v in getattr(n.graph, ends)] for n in (original, wide))
        if sorted(own) != sorted(its):
            raise CaseError(
                f"{start.path} is not a quantised form of this model: its {what} are "
                f"{', '.join(its)}, those of the model {', '.join(own)}.",
                "Give the quantised model made from this one.",
            )
    return Given(excluding(wide, pairs_read(wide), original, ends=True), wide)
