"""Counts of a mixed model's nodes, the same for every tool."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from halfwise.formats import FP16
from halfwise.graph.loading import load_network
from halfwise.graph.model import Network, constant_array, node_name
from halfwise.graph.roles import DATA_MOVEMENT, Role, roles_of

RULE = (
    "An FP32 node is a node of the main graph of the result that computes (it does not only move "
    "data), whose operator takes FP16 at that opset, and none of whose inputs and outputs is FP16. "
    "A fused node counts once. A Cast counts when it stands between FP32 and FP16."
)
_FLOATS = {ir.DataType.FLOAT, ir.DataType.FLOAT16}


class Count(NamedTuple):
    """Counts of a model.

    Attributes:
        operations: Nodes of the main graph that do more than move data.
        fp32: Those among them that compute in FP32 and could be FP16.
        casts: Casts between FP32 and FP16, in bodies too.
        largest: Largest finite magnitude of a float constant that FP16 could hold.
    """

    operations: int
    fp32: int
    casts: int
    largest: float


def counted(path: Path) -> Count:
    """Count a model by `RULE`; raises CaseError."""
    network = load_network(path)
    roles = roles_of(network)
    fp32 = sum(
        roles[node_name(node)].role is Role.COMPUTE
        and all(v is None or v.dtype != ir.DataType.FLOAT16 for v in (*node.inputs, *node.outputs))
        for node in network.nodes()
    )
    operations = sum(node.op_type not in DATA_MOVEMENT for node in network.nodes())
    return Count(operations, fp32, _casts(network), _largest(network))


def _casts(network: Network) -> int:
    return sum(
        node.op_type == "Cast" and {node.inputs[0].dtype, node.outputs[0].dtype} == _FLOATS
        for node in network.graph.all_nodes()
        if node.inputs and node.inputs[0] is not None
    )


def _largest(network: Network) -> float:
    constants = [v for v in network.graph.initializers.values() if v.dtype in _FLOATS]
    sizes = [np.abs(constant_array(v).astype(np.float32)).ravel() for v in constants]
    return max((float(s[s <= FP16.max].max(initial=0)) for s in sizes), default=0.0)
