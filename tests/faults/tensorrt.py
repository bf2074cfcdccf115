"""What a version of TensorRT cannot parse."""

import numpy as np
import onnx

from tests.faults.fault import fault
from tests.unit.graph.sketch import Sketch, f32


def _relu(opset: int) -> onnx.ModelProto:
    s = Sketch(opset)
    return s.proto(s.op("Relu", s.input("x", [1, 4]), name="relu"))


@fault("opset-unparsed", "error", None, tensorrt="8.6.1")
def late_opset(ill: bool) -> onnx.ModelProto:
    return _relu(18 if ill else 17)


@fault("opset-unparsed", "error", None, tensorrt="10.0")
def early_opset(ill: bool) -> onnx.ModelProto:
    return _relu(8 if ill else 9)


@fault("opset-unparsed", "info", None, tensorrt="10.9.0.34")
def undocumented_opset(ill: bool) -> onnx.ModelProto:
    return _relu(21 if ill else 20)


@fault("operator-unparsed", "error", "norm", tensorrt="8.5")
def native_layer_norm(ill: bool) -> onnx.ModelProto:
    s = Sketch()
    x = s.input("x", [2, 16])
    weight = f32(np.ones(16))
    y = s.op("LayerNormalization", x, weight, name="norm") if ill else s.op("Mul", x, weight)
    return s.proto(y)


@fault("operator-unparsed", "error", "unique", tensorrt="10.15")
def never_parsed(ill: bool) -> onnx.ModelProto:
    s = Sketch()
    x = s.input("x", [16])
    return s.proto(s.op("Unique" if ill else "Relu", x, name="unique"))


@fault("operator-custom", "warning", "custom", tensorrt="8.6")
def contributed(ill: bool) -> onnx.ModelProto:
    proto = _relu(17)
    proto.graph.node[0].name = "custom"
    if ill:
        proto.graph.node[0].op_type, proto.graph.node[0].domain = "FastGelu", "com.microsoft"
        proto.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    return proto


@fault("unconstrainable", "info", "cast", tensorrt="8.6")
def cast(ill: bool) -> onnx.ModelProto:
    s = Sketch()
    x = s.input("x", [4], onnx.TensorProto.INT32)
    if not ill:
        return s.proto(s.op("Abs", x, name="cast"))
    return s.proto(s.op("Cast", x, to=onnx.TensorProto.FLOAT, name="cast"))
