"""Exports in training mode, and damaged files."""

import numpy as np
import onnx

from tests.faults.fault import fault
from tests.unit.graph.sketch import Sketch, f32


@fault("checker", "error", None)
def undefined(ill: bool) -> onnx.ModelProto:
    s = Sketch()
    proto = s.proto(s.op("Relu", s.input("x", [1, 4]), name="relu"))
    proto.graph.node[0].input[0] = "nothing" if ill else "x"
    if ill:
        proto.graph.ClearField("input")
    return proto


@fault("checker", "error", None)
def missing_operand(ill: bool) -> onnx.ModelProto:
    s = Sketch()
    x = s.input("x", [1, 4])
    proto = s.proto(s.op("Add", x, x, name="add"))
    if ill:
        del proto.graph.node[0].input[1]
    return proto


@fault("checker", "warning", None)
def plugin(ill: bool) -> onnx.ModelProto:
    """An operator of a TensorRT plugin in ONNX's own domain; without the fault, in another."""
    s = Sketch()
    x = s.input("x", [1, 4])
    proto = s.proto(s.op("Relu", x, name="plugin"))
    proto.graph.node[0].op_type = "EfficientNMS_TRT"
    proto.graph.node[0].domain = "" if ill else "trt.plugins"
    proto.opset_import.append(onnx.helper.make_opsetid("trt.plugins", 1))
    return proto


@fault("constant-unreadable", "error", None)
def truncated(ill: bool) -> onnx.ModelProto:
    s = Sketch()
    proto = s.proto(s.op("Add", s.input("x", [4]), f32(np.ones(4)), name="add"))
    if ill:
        proto.graph.initializer[0].ClearField("raw_data")
        proto.graph.initializer[0].raw_data = b"\0" * 12
    return proto


@fault("training-mode", "warning", "norm")
def batch_statistics(ill: bool) -> onnx.ModelProto:
    s = Sketch()
    x = s.input("x", [2, 3, 8])
    ones, zeros = f32(np.ones(3)), f32(np.zeros(3))
    y = s.op(*("BatchNormalization", x, ones, zeros, zeros, ones), name="norm", training_mode=ill)
    if ill:
        s.nodes[0].output.extend(["mean", "variance"])
    return s.proto(y)


@fault("training-mode", "warning", "dropout")
def dropout(ill: bool) -> onnx.ModelProto:
    s = Sketch()
    x = s.input("x", [2, 8])
    mode = s.constant(np.asarray(ill))
    return s.proto(s.op("Dropout", x, 0.5, mode, name="dropout"))
