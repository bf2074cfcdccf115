"""A model for inputs of one shape, with what then is constant folded."""

from dataclasses import replace

import onnx
import onnx_ir as ir
import onnxruntime as ort

from halfwise.case import Samples
from halfwise.emulation.ort import OrtFailure, Session
from halfwise.errors import CaseError, HalfwiseError
from halfwise.graph.aside import draws, resolve
from halfwise.graph.bodies import bodies_of
from halfwise.graph.dataflow import drop_unused_nodes, giving_out
from halfwise.graph.loading import normalise
from halfwise.graph.model import (
    Names,
    Network,
    add_constant,
    constant_array,
    is_standard,
    node_name,
    tensor_name,
)
from halfwise.graph.sizes import sizes_read
from halfwise.graph.weights import EXTERNAL_DATA_BYTES, is_large
from halfwise.records import TensorName
from halfwise.scratch import scratch


def settled(network: Network, samples: Samples) -> Network | None:
    """Return an equivalent network for inputs with the shapes of `samples` only.

    It has operators of the same domains. None if nothing would change, if samples differ in shape,
    if weights are too large for one more copy, or if ONNX Runtime refuses the model.
    """
    shaped = None if is_large(network.model, EXTERNAL_DATA_BYTES) else _shaped(network, samples)
    if shaped is None:
        return None
    model = shaped.model
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


def static(network: Network, samples: Samples) -> Network | None:
    """Return a network for inputs with the shapes of `samples` only, in the same types.

    What follows from shapes alone is a constant, and an If that goes by it is its branch; all else
    stays. None if nothing would change, if samples differ in shape, if the network draws random
    numbers, or if ONNX Runtime cannot run it.
    """
    shaped = _shaped(network, samples)
    if shaped is None or any(map(draws, network.all_nodes())):
        return None
    try:
        fixed = _static(shaped, samples)
    except HalfwiseError:
        return None
    return fixed if _form(fixed.model) != _form(network.model) else None


def _static(network: Network, samples: Samples, made: frozenset[str] = frozenset()) -> Network:
    """Return the form of a network with inputs of these shapes; `made` are its new constants."""
    network = normalise(network.model, path=network.path, sha256=network.sha256)
    graph, known, shaped = network.graph, set[ir.Value](), dict[TensorName, ir.Value]()
    for node in graph:
        sizes = sizes_read(node)
        sized = sizes is not None and all(isinstance(size, int) for size in sizes)
        read = [v for v in node.inputs if v is not None]
        computed = any(v.const_value is None and v not in known for v in read)
        if bodies_of(node) or (computed and not sized):
            continue
        given = [v for v in node.outputs if v.name and isinstance(v.type, ir.TensorType)]
        known.update(given)
        # What constants alone decide stays: folding would widen quantised or low weights.
        if sized or any(v.name in made or v.name in shaped for v in read):
            shaped |= {tensor_name(v): v for v in given if v.uses() and not v.is_graph_output()}
    if shaped:
        names = Names(network.graphs())
        session = Session(giving_out(network.model, list(shaped)))
        for name, array in session.run(samples[0]).items():
            constant = add_constant(graph, names.take(f"{name}::static"), array)
            shaped[TensorName(name)].replace_all_uses_with(constant)
            made |= {tensor_name(constant)}
        drop_unused_nodes(graph)
        return _static(network, samples, made)
    branches = {
        node_name(node): "then_branch" if constant_array(condition) else "else_branch"
        for node in graph
        if is_standard(node, "If")
        and (condition := node.inputs[0]) is not None
        and condition.const_value is not None
    }
    return _static(resolve(network, branches)[0], samples, made) if branches else network


def _shaped(network: Network, samples: Samples) -> Network | None:
    """Return a copy whose inputs have the shapes of `samples`; None if these differ in shape."""
    shapes = [{name: array.shape for name, array in sample.items()} for sample in samples]
    if not shapes or any(other != shapes[0] for other in shapes):
        return None
    model = network.copy()
    for value in model.graph.inputs:
        value.shape = ir.Shape(shapes[0][tensor_name(value)])
    return replace(network, model=model)


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
