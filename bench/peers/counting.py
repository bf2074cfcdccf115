"""What a mixed model holds, counted alike whoever made it."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir

from halfwise.graph.model import Network, load_network, node_name
from halfwise.graph.roles import Role, roles_of

RULE = (
    "An FP32 node is a node of the main graph of the result that computes (it does not only move "
    "data), whose operator takes FP16 at that opset, and none of whose inputs and outputs is FP16. "
    "A fused node counts once. A Cast counts when it stands between FP32 and FP16."
)
_FLOATS = {ir.DataType.FLOAT, ir.DataType.FLOAT16}


def counted(path: Path) -> tuple[int, int]:
    """Return the FP32 nodes and the Casts of a model, by `RULE`; raises CaseError."""
    network = load_network(path)
    return fp32_nodes(network), casts(network)


def fp32_nodes(network: Network) -> int:
    """Return how many nodes compute in FP32 that could be FP16."""
    roles = roles_of(network)
    return sum(
        roles[node_name(node)].role is Role.COMPUTE
        and all(v is None or v.dtype != ir.DataType.FLOAT16 for v in (*node.inputs, *node.outputs))
        for node in network.nodes()
    )


def casts(network: Network) -> int:
    """Return how many Casts stand between FP32 and FP16, in bodies too."""
    return sum(
        node.op_type == "Cast" and {node.inputs[0].dtype, node.outputs[0].dtype} == _FLOATS
        for node in network.graph.all_nodes()
        if node.inputs and node.inputs[0] is not None
    )
