"""Tensors whose extremes are constants that were selected, so that no data makes them larger."""

from collections.abc import Mapping

import onnx_ir as ir

from halfwise.graph.model import node_name, tensor_name
from halfwise.graph.roles import Role, Roles, is_float
from halfwise.records import Observation, TensorName


def selects_constants(
    value: ir.Value, roles: Roles, seen: Mapping[TensorName, Observation], limit: float
) -> bool:
    """Return whether all elements of `value` that reach `limit` are those of constants.

    They come from constants through data movement (Where, Concat and the like) and through products
    with a 0/1 mask: a tensor whose elements were all 0 or 1 on the samples. Attention masks are
    such tensors: -65504 at twice the data is still -65504.

    Args:
        value: A tensor of the main graph.
        roles: Roles of the nodes.
        seen: Observations by tensor; with details, or no tensor counts as a mask.
        limit: A magnitude (≥ 0).
    """
    waiting, visited = [value], set[ir.Value]()
    while waiting:
        current = waiting.pop()
        if current in visited or current.is_initializer() or _reaches_less(current, seen, limit):
            continue
        visited.add(current)
        node = current.producer()
        if node is None:
            return False
        floats = [v for v in node.inputs if v is not None and is_float(v)]
        moves = roles[node_name(node)].role is Role.MOVEMENT
        masked = [v for v in floats if not _is_mask(v, seen)]
        if not moves and not (node.op_type == "Mul" and len(masked) < len(floats)):
            return False
        waiting += floats if moves else masked
    return True


def _reaches_less(value: ir.Value, seen: Mapping[TensorName, Observation], limit: float) -> bool:
    observation = seen.get(tensor_name(value))
    return observation is not None and observation.absmax < limit


def _is_mask(value: ir.Value, seen: Mapping[TensorName, Observation]) -> bool:
    observation = seen.get(tensor_name(value))
    if observation is None or observation.detail is None:
        return False
    return observation.absmax == 1 == observation.detail.smallest_nonzero
