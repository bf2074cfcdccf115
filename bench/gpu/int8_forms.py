"""Forms of the weights' pairs that differ from halfwise's."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx_ir as ir

from halfwise.fixing.int8.placing import LIMIT, scale_of
from halfwise.graph.dataflow import drop_unused_nodes
from halfwise.graph.intake import drop_unused_constants
from halfwise.graph.model import Names, Network, add_constant
from halfwise.graph.quantised import pairs_of
from halfwise.records import replace


def single(network: Network) -> Network:
    """Return the model with one scale for each weight."""
    return _restated(network, lambda array: scale_of(np.abs(array).max()), None)


def transposed(network: Network) -> Network:
    """Return the model with matrices stored as [columns, rows], and a Transpose after the DQ."""
    return _restated(network, lambda array: scale_of(np.abs(array).max(0)), 0)


def _restated(
    network: Network, scaled: Callable[[np.ndarray], np.ndarray], axis: int | None
) -> Network:
    """Return the model with other scales of matrices, along `axis` of the transposed matrix."""
    model = network.copy()
    names = Names((model.graph, *model.graph.subgraphs()))
    for pair in pairs_of(replace(network, model=model)):
        node = pair.dequantise
        if pair.source is not None or pair.axis != 1 or len(pair.dequantised().shape) != 2:
            continue
        array = pair.dequantised()
        scale = scaled(array)
        stored = np.clip(np.rint(array / scale), -LIMIT, LIMIT).astype(np.int8)
        stored = stored if axis is None else np.ascontiguousarray(stored.T)
        made = [
            add_constant(model.graph, names.take(f"{node.name}::{what}"), value)
            for what, value in (
                ("i8", stored),
                ("scale", scale),
                ("zero", scale.astype(np.int8) * 0),
            )
        ]
        attributes = {} if axis is None else {"axis": axis}
        other = ir.node(
            node.op_type, made, attributes=attributes, name=names.take(f"{node.name}::of")
        )
        end = other
        model.graph.insert_before(node, other)
        other.outputs[0].name = names.take(f"{other.name}::out")
        if axis is not None:
            end = ir.node("Transpose", other.outputs, name=names.take(f"{node.name}::transpose"))
            model.graph.insert_before(node, end)
            end.outputs[0].name = names.take(f"{end.name}::out")
        for value in (other.outputs[0], end.outputs[0]):
            value.type = ir.TensorType(ir.DataType.FLOAT)
        node.outputs[0].replace_all_uses_with(end.outputs[0])
    drop_unused_nodes(model.graph)
    drop_unused_constants((model.graph,))
    return replace(network, model=model)


FORMS: Mapping[str, Callable[[Network], Network] | None] = {
    "as placed": None,
    "one scale for each matrix": single,
    "matrices transposed, scales of axis 0": transposed,
}
