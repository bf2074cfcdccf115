"""Raise the operator set of a network: some operators take BF16 only from opset 22 on.

Whether the result computes the same is for the caller to check: adapters have had faults.
"""

from collections.abc import Container
from dataclasses import replace

import onnx
import onnx_ir as ir
from onnx import version_converter

from halfwise.errors import CaseError
from halfwise.graph.model import Network, node_name, normalise, tensor_name
from halfwise.graph.roles import FIRST_BF16_OPSET, roles_of
from halfwise.graph.serialisation import graphs_in, skeleton

BF16_OPSET = 22
"""Where convolutions, pooling, sines and more begin to take BF16 (ONNX operator changelog)."""

_FAILURES = (
    version_converter.ConvertError,
    onnx.checker.ValidationError,
    onnx.shape_inference.InferenceError,
    *(IndexError, KeyError, RuntimeError, TypeError, ValueError),
)
"""What the converter raises; some of it escapes from its C++ containers."""


_SUCCESSORS = {"Upsample": "Resize", "Scatter": "ScatterElements"}
"""Operators that a later opset has under another name only (ONNX operator changelog)."""


def gaining(network: Network, low: ir.DataType, opset: int = BF16_OPSET) -> tuple[str, ...]:
    """Return the types of the operators that take `low` at `opset` and not at the model's own."""
    if network.opset >= opset:
        return ()
    castable = low != ir.DataType.BFLOAT16 or network.opset >= FIRST_BF16_OPSET
    now = roles_of(network, low) if castable else {}
    later = roles_of(network, low, opset=opset)
    names = {n for n, role in later.items() if role.free and not (n in now and now[n].free)}
    return tuple(sorted({n.op_type for n in network.nodes() if node_name(n) in names}))


def raise_opset(network: Network, opset: int = BF16_OPSET) -> Network:
    """Return `network` at a later opset, in normal form; constants are shared, not copied.

    Inputs, outputs and nodes keep their names and types, those of renamed operators (Upsample) too.
    Nodes that the converter adds get new names.

    Raises:
        CaseError: the converter of ONNX does not manage, makes a model that ONNX refuses, or
            replaces a node by what cannot be told to stand for it.
    """
    proto, arrays = skeleton(network.model)
    try:
        proto = version_converter.convert_version(proto, opset)
        # The converter gives some of its own values a wrong rank.
        for graph in graphs_in(proto.graph):
            del graph.value_info[:]
        model = ir.serde.deserialize_model(proto)
    except _FAILURES as error:
        raise CaseError(
            f"ONNX cannot raise the model from opset {network.opset} to {opset}: {error}",
            "Export the model at that opset.",
        ) from error
    _return_constants(network.graph, model.graph, arrays)
    _return_types(network.graph, model.graph)
    _return_names(network.model, model)
    raised = normalise(model, path=network.path, sha256=network.sha256)
    return replace(network, model=raised.model)


def _return_constants(source: ir.Graph, graph: ir.Graph, names: Container[str | None]) -> None:
    tensors = {
        name: value.const_value
        for owner in (source, *source.subgraphs())
        for name, value in owner.initializers.items()
    }
    for value in [v for v in graph.inputs if v.name in names]:
        graph.inputs.remove(value)
        value.const_value = tensors[tensor_name(value)]
        graph.register_initializer(value)


def _return_types(source: ir.Graph, graph: ir.Graph) -> None:
    """Give values the types they had: ONNX infers none behind operators of custom domains."""
    known = {v.name: v for v in (*source.inputs, *(o for n in source for o in n.outputs))}
    for value in (*graph.inputs, *graph.outputs, *(o for n in graph for o in n.outputs)):
        if value.name in known:
            value.type, value.shape = known[value.name].type, known[value.name].shape


def _return_names(source: ir.Model, model: ir.Model) -> None:
    """Give nodes of renamed operators, and their outputs, the names they had: rules use them."""
    names = {n.name for n in model.graph.all_nodes()}
    added = [n for n in model.graph.all_nodes() if not n.name]
    for old in [n for n in source.graph.all_nodes() if n.name not in names]:
        new = next((n for n in added if _succeeds(n, old)), None)
        if new is None:
            raise CaseError(
                f"ONNX's converter replaces node {node_name(old)} ({old.op_type}).",
                "Export the model at that opset.",
            )
        new.name, new.outputs[0].name = old.name, old.outputs[0].name
        added.remove(new)


def _succeeds(new: ir.Node, old: ir.Node) -> bool:
    read = ({v.name for v in node.inputs if v is not None} for node in (old, new))
    return new.op_type == _SUCCESSORS.get(old.op_type) and next(read) <= next(read)
