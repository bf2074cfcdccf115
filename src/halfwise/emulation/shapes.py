"""The shapes that tensors have when a model runs."""

import onnx_ir as ir

from halfwise.case import CPU, Runtime, Sample
from halfwise.emulation.ort import Session
from halfwise.emulation.probe import observable
from halfwise.graph.model import Network, tensor_name
from halfwise.records import TensorName

Shapes = dict[TensorName, tuple[int, ...]]


def seen_shapes(network: Network, sample: Sample, *, runtime: Runtime = CPU) -> Shapes:
    """Return the shape of every FP32 tensor of the main graph on `sample`, its inputs included.

    Shapes alone leave ONNX Runtime. Tensors that nothing uses, and those in bodies, are not told.

    Raises:
        CaseError, BackendMissing, RunFailed: as for `Session`.
    """
    model = network.copy()
    names = set(observable(model))
    computed = (v for node in model.graph for v in node.outputs if v.name)
    values = {tensor_name(v): v for v in computed if tensor_name(v) in names}
    nodes = {
        name: ir.Node("", "Shape", [value], name=f"halfwise::shape::{name}")
        for name, value in values.items()
    }
    for name, node in nodes.items():
        node.outputs[0].name = f"halfwise::shape::{name}"
    model.graph.extend(list(reversed(nodes.values())))
    model.graph.outputs.extend(node.outputs[0] for node in nodes.values())
    asked = [f"halfwise::shape::{name}" for name in nodes]
    found = Session(model, runtime=runtime).run(sample, asked) if asked else {}
    shapes = {
        TensorName(str(v.name)): tuple(sample[str(v.name)].shape) for v in network.graph.inputs
    }
    for name in nodes:
        shapes[name] = tuple(found[f"halfwise::shape::{name}"].tolist())
    return shapes
