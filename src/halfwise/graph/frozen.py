"""Batch sizes that an export has baked into constants, although the axis is declared dynamic."""

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from halfwise.graph.model import Network, constant_array, is_standard, node_name
from halfwise.graph.sizes import declared_axes
from halfwise.records import NodeName


def frozen_nodes(network: Network) -> tuple[NodeName, ...]:
    """Return nodes that may have a batch size from the export baked into a constant.

    These are the Reshape, Expand and Concat nodes where the first axis of what they read is
    dynamic and the constant that they read says a fixed one. Some are so on purpose.
    """
    return tuple(node_name(n) for n in network.nodes() if _is_frozen(n))


def _is_frozen(node: ir.Node) -> bool:
    if not is_standard(node, "Reshape", "Expand", "Concat"):
        return False
    values = [v for v in node.inputs if v is not None]
    constants = [v for v in values if v.is_initializer()]
    if not constants or not any(_first_is_dynamic(v) for v in values):
        return False
    if node.op_type == "Concat":
        # The first version of Concat has a default.
        axis = node.attributes.get("axis")
        return (axis is None or axis.as_int() != 0) and _shares_rank(values)
    if constants[-1] is not values[-1]:
        return False
    if node.op_type == "Reshape" and values[0].shape is not None and len(values[0].shape) < 2:
        # The axis of a vector is no batch axis: it may become any one of the new axes.
        return False
    target = np.ravel(constant_array(constants[-1]))
    # An Expand to 1 leaves the axis as it is.
    return bool(target.size and target[0] > (1 if node.op_type == "Expand" else 0))


def _first_is_dynamic(value: ir.Value) -> bool:
    return bool(value.shape) and not isinstance(declared_axes(value)[0], int)


def _shares_rank(values: Sequence[ir.Value]) -> bool:
    return all(v.shape is not None and len(v.shape) > 1 for v in values)
