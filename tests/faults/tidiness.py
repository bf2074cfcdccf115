"""Names and what nobody reads."""

import numpy as np
import onnx

from tests.faults.fault import fault
from tests.unit.graph.sketch import Sketch, f32


def _chain() -> onnx.ModelProto:
    s = Sketch()
    x = s.op("Relu", s.input("x", [1, 4]), name="first")
    return s.proto(s.op("Relu", x, name="second"))


@fault("unnamed-node", "info", "")
def unnamed(ill: bool) -> onnx.ModelProto:
    proto = _chain()
    proto.graph.node[1].name = "" if ill else "second"
    return proto


@fault("duplicate-name", "warning", "first")
def duplicate(ill: bool) -> onnx.ModelProto:
    proto = _chain()
    proto.graph.node[1].name = "first" if ill else "second"
    return proto


@fault("unused-node", "info", "spare")
def spare_node(ill: bool) -> onnx.ModelProto:
    s = Sketch()
    x = s.input("x", [1, 4])
    spare = s.op("Tanh", x, name="spare")
    y = s.op("Relu", x, name="relu")
    return s.proto(*((y,) if ill else (y, spare)))


@fault("unused-output", "info", "pool")
def spare_output(ill: bool) -> onnx.ModelProto:
    s = Sketch()
    x = s.input("x", [1, 2, 4, 4])
    pooled = s.op("MaxPool", x, name="pool", kernel_shape=[2, 2])
    s.nodes[0].output.append("places")
    return s.proto(*((pooled,) if ill else (pooled, "places")))


@fault("unused-constant", "info", None)
def spare_constant(ill: bool) -> onnx.ModelProto:
    s = Sketch()
    x = s.input("x", [1, 4])
    spare = s.constant(f32(np.ones(4)), "spare")
    return s.proto(s.op("Relu", x, name="relu") if ill else s.op("Add", x, spare, name="add"))


@fault("unused-input", "info", None)
def spare_input(ill: bool) -> onnx.ModelProto:
    s = Sketch()
    x, z = s.input("x", [1, 4]), s.input("z", [1, 4])
    return s.proto(s.op("Relu", x, name="relu") if ill else s.op("Add", x, z, name="add"))
