"""A model for inputs of one shape: ONNX Runtime folds what then is constant."""

import onnx
import onnx_ir as ir
import onnxruntime as ort

from halfwise.case import Samples
from halfwise.emulation.ort import OrtFailure
from halfwise.errors import CaseError
from halfwise.graph.loading import normalise
from halfwise.graph.model import Network, tensor_name
from halfwise.graph.weights import EXTERNAL_DATA_BYTES, is_large
from halfwise.scratch import scratch


def settled(network: Network, samples: Samples) -> Network | None:
    """Return an equivalent network for inputs with the shapes of `samples` only.

    It has operators of the same domains. None if nothing would change, if samples differ in shape,
    if weights are too large for one more copy, or if ONNX Runtime refuses the model.
    """
    if is_large(network.model, EXTERNAL_DATA_BYTES):
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
