"""GELUs that are written out, read as what they take and give."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import onnx_ir as ir

from halfwise.graph.model import Network
from halfwise.graph.patterns.activations import gelus
from halfwise.graph.patterns.reading import Nodes, is_constant


@dataclass(frozen=True, eq=False)
class WrittenGelu:
    """A GELU by its form; whether its constants are those of GELU is for a comparison to show.

    Attributes:
        x: Its input.
        output: Its output.
        approximate: As the attribute of ONNX's Gelu: "none" is by erf.
    """

    x: ir.Value
    output: ir.Value
    approximate: Literal["none", "tanh"]


def read_gelus(network: Network) -> Iterator[WrittenGelu]:
    """Yield the GELUs of the main graph that have one input and one output."""
    for nodes in gelus(network):
        inputs, outputs = _borders(nodes)
        if len(inputs) == 1 == len(outputs):
            tanh = any(n.op_type == "Tanh" for n in nodes)
            yield WrittenGelu(inputs.pop(), outputs.pop(), "tanh" if tanh else "none")


def _borders(nodes: Nodes) -> tuple[set[ir.Value], set[ir.Value]]:
    """Return what nodes read from outside, constants apart, and what is read of them outside."""
    made = {v for n in nodes for v in n.outputs}
    read = {v for n in nodes for v in n.inputs if v is not None}
    outside = {v for v in made if v.is_graph_output() or any(u.node not in nodes for u in v.uses())}
    return {v for v in read - made if not is_constant(v)}, outside
