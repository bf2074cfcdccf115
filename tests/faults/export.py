"""Exports that went wrong, and damaged files."""

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


def _resized(opset: int) -> onnx.ModelProto:
    s = Sketch(opset)
    x = s.input("x", [1, 1, 4, 4])
    roi = [s.constant(f32([]))] if opset > 10 else []
    y = s.op("Resize", x, *roi, f32([1, 1, 2, 2]), name="resize", mode="linear")
    proto = s.proto(y)
    proto.producer_name, proto.producer_version = "pytorch", "1.4"
    return proto


@fault("exporter-resize", "warning", "resize")
def early_resize(ill: bool) -> onnx.ModelProto:
    return _resized(10 if ill else 11)


@fault("exporter-unmaintained", "info", None)
def keras(ill: bool) -> onnx.ModelProto:
    s = Sketch()
    proto = s.proto(s.op("Relu", s.input("x", [1, 4]), name="relu"))
    proto.producer_name, proto.producer_version = ("keras2onnx" if ill else "tf2onnx"), "1.7.0"
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
