"""Folds nodes that depend only on constants; dynamic sizes stay dynamic.

Sizes that the model declares as numbers are constants too. Nothing is taken from the samples.
"""

from collections.abc import Callable, Iterable
from math import prod

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from numpy.typing import NDArray

from halfwise.case import Samples
from halfwise.emulation.ort import OrtFailure, Session
from halfwise.errors import CaseError
from halfwise.graph.loading import normalise
from halfwise.graph.model import Network, constant_array, is_standard, node_name, tensor_name
from halfwise.graph.roles import RANDOM, RANDOM_PREFIX
from halfwise.graph.sizes import sizes_read
from halfwise.graph.weights import is_large
from halfwise.records import NodeName
from halfwise.scratch import scratch


def settled(network: Network, samples: Samples) -> Network | None:
    """Return an equivalent network for inputs with the shapes of `samples` only.

    It has operators of the same domains. None if nothing would change, if samples differ in shape,
    if weights are too large for one more copy (`is_large`), or if ONNX Runtime refuses the model.
    """
    if is_large(network.model):
        return None
    shapes = [{name: array.shape for name, array in sample.items()} for sample in samples]
    if not shapes or any(other != shapes[0] for other in shapes):
        return None
    model = network.copy()
    for value in model.graph.inputs:
        value.shape = ir.Shape(shapes[0][tensor_name(value)])
    try:
        folded = ir.from_proto(_optimised(ir.to_proto(model)))
        domains = {node.domain for node in folded.graph.all_nodes()}
        for domain in folded.opset_imports.keys() - domains - model.opset_imports.keys():
            del folded.opset_imports[domain]
        normal = normalise(folded, path=network.path, sha256=network.sha256)
    except (*OrtFailure, CaseError):
        return None
    if not domains <= {node.domain for node in model.graph.all_nodes()}:
        return None
    return normal if _form(normal.model) != _form(network.model) else None


def _form(model: ir.Model) -> tuple[list[object], ...]:
    nodes: list[object] = [(node.domain, node.op_type) for node in model.graph.all_nodes()]
    return nodes, [value.shape for value in model.graph.inputs]


def _optimised(proto: onnx.ModelProto) -> onnx.ModelProto:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.log_severity_level = 4
    with scratch() as folder:
        path = folder / "optimised.onnx"
        options.optimized_model_filepath = str(path)
        ort.InferenceSession(proto.SerializeToString(), options, ["CPUExecutionProvider"])
        return onnx.load(path)


MOST_BYTES = 1 << 20
"""Largest result that is folded: folded results are stored as weights."""

_LEFT = frozenset(("DequantizeLinear", "If", "Loop", "QuantizeLinear", "Scan", "SequenceMap"))


def fold_constants(model: ir.Model) -> list[NodeName]:
    """Replace nodes of the main graph that compute constants by those constants, in place.

    Values keep their names. Nodes stay if their results are graph outputs, or are not known to be
    at most `MOST_BYTES`.

    Args:
        model: In normal form, with inferred types and shapes.

    Returns:
        The removed nodes: first those that read sizes, then the others, each in graph order.

    Raises:
        CaseError, RunFailed: ONNX Runtime cannot compute one of them.
    """
    gone = [node_name(n) for n in _fold(model, _sizes)]
    nodes = _constant_nodes(model)
    if not nodes:
        return gone
    values = Session(_part_of(model, nodes)).run({})
    folded = _fold(model, lambda n: values[tensor_name(n.outputs[0])] if n in nodes else None)
    order = {node: place for place, node in enumerate(nodes)}
    return gone + [node_name(n) for n in sorted(folded, key=order.__getitem__)]


def _constant_nodes(model: ir.Model) -> list[ir.Node]:
    """Return the nodes of the main graph that compute constants of known size, in graph order."""
    constant = {v for v in model.graph.initializers.values() if v.const_value is not None}
    nodes: list[ir.Node] = []
    for node in model.graph:
        computable = all(v is None or v in constant for v in node.inputs)
        if computable and _is_foldable(node):
            nodes.append(node)
            constant.update(node.outputs)
    return nodes


def _part_of(model: ir.Model, nodes: Iterable[ir.Node]) -> ir.Model:
    """Return a model without inputs that outputs the results of `nodes` (see `_constant_nodes`)."""
    outputs = [v for n in nodes for v in n.outputs if v.name]
    graph = ir.convenience.extract(model.graph, [], outputs)
    return ir.Model(graph, ir_version=model.ir_version)


def _fold(
    model: ir.Model, compute: Callable[[ir.Node], NDArray[np.generic] | None]
) -> list[ir.Node]:
    folded = []
    for node in list(model.graph):
        if len(node.outputs) != 1 or node.outputs[0].is_graph_output():
            continue
        array = compute(node)
        if array is not None:
            _make_constant(model.graph, node, array)
            folded.append(node)
    return folded


def _make_constant(graph: ir.Graph, node: ir.Node, array: NDArray[np.generic]) -> None:
    """Replace a node that has one output by a constant of the same name, in place."""
    old = node.outputs[0]
    name = tensor_name(old)
    tensor = ir.Tensor(array, name=name)
    new = ir.Value(
        name=name,
        type=ir.TensorType(tensor.dtype),
        shape=ir.Shape(array.shape),
        const_value=tensor,
    )
    ir.convenience.replace_all_uses_with(old, new)
    graph.remove(node, safe=True)
    graph.register_initializer(new)


def _is_foldable(node: ir.Node) -> bool:
    if not is_standard(node) or node.op_type in _LEFT | RANDOM:
        return False
    if node.op_type.startswith(RANDOM_PREFIX) or len(node.outputs) != 1 or not node.inputs:
        return False
    output = node.outputs[0]
    if output.is_graph_output() or not isinstance(output.type, ir.TensorType):
        return False
    sizes = [] if output.shape is None else list(output.shape)
    if output.shape is None or not all(isinstance(size, int) for size in sizes):
        return False
    bits = output.type.dtype.bitwidth if output.type.dtype != ir.DataType.STRING else None
    return (
        bits is not None and prod(s for s in sizes if isinstance(s, int)) * bits <= MOST_BYTES * 8
    )


def _sizes(node: ir.Node) -> NDArray[np.generic] | None:
    """Return the result of a Shape, or a Gather from one, if it uses only declared sizes."""
    index = node.inputs[1] if is_standard(node, "Gather") else None
    sizes = sizes_read(node) if is_standard(node, "Shape", "Gather") else None
    if sizes is None or not all(isinstance(size, int) for size in sizes):
        return None
    shape = (len(sizes),) if index is None else constant_array(index).shape
    return np.array(sizes, np.int64).reshape(shape)
