"""Frozen sizes, names, unused parts, exporters, exports in training mode, damaged files."""

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.faults.fault import fault
from tests.unit.graph.sketch import Sketch, f32


@fault("frozen-batch", "warning", "reshape")
def reshape(ill: bool) -> onnx.ModelProto:
    s = Sketch()
    x = s.input("x", ["n", 4, 4])
    return s.proto(s.op("Reshape", x, [1 if ill else 0, -1], name="reshape"))


@fault("frozen-batch", "warning", "expand")
def expand(ill: bool) -> onnx.ModelProto:
    s = Sketch()
    x = s.input("x", ["n", 1, 4])
    return s.proto(s.op("Expand", x, [8 if ill else 1, 3, 4], name="expand"))


@fault("frozen-batch", "warning", "concat")
def class_token(ill: bool) -> onnx.ModelProto:
    s = Sketch()
    x = s.input("x", ["n" if ill else 1, 4, 8])
    return s.proto(s.op("Concat", f32(np.ones((1, 1, 8))), x, axis=1, name="concat"))


@fault("frozen-batch", "warning", "concat")
def flattened_vector(ill: bool) -> onnx.ModelProto:
    """Without the fault, a vector becomes one row."""
    s = Sketch()
    x = s.input("x", ["n", 2] if ill else ["n"])
    return s.proto(s.op("Reshape", x, [1, -1], name="concat"))


@fault("frozen-batch", "warning", "lstm")
def initial_state(ill: bool) -> onnx.ModelProto:
    s = Sketch()
    x = s.input("x", [5, "n" if ill else 1, 3])
    weights = [f32(np.full((1, 8, 3), 0.1)), f32(np.full((1, 8, 2), 0.1))]
    state = f32(np.zeros((1, 1, 2)))
    bias = f32(np.zeros((1, 16)))
    y = s.op("LSTM", x, *weights, bias, "", state, state, name="lstm", hidden_size=2)
    return s.proto(y)


@fault("frozen-axis", "warning", "reshape")
def length(ill: bool) -> onnx.ModelProto:
    s = Sketch()
    x = s.input("x", [1, "length", 8])
    return s.proto(s.op("Reshape", x, [1, 10 if ill else -1, 2, 4], name="reshape"))


@fault("frozen-axis", "warning", "expand")
def expanded_length(ill: bool) -> onnx.ModelProto:
    s = Sketch()
    x = s.input("x", [1, "length", 1])
    return s.proto(s.op("Expand", x, [1, 10 if ill else 1, 4], name="expand"))


@fault("frozen-output", "warning", "sum")
def fixed_output(ill: bool) -> onnx.ModelProto:
    s = Sketch()
    x = s.input("x", ["n", 4])
    proto = s.proto(s.op("ReduceSum", x, [0 if ill else 1], name="sum", keepdims=1))
    declared = onnx.helper.make_tensor_value_info("sum_out", onnx.TensorProto.FLOAT, ["n", None])
    proto.graph.output[0].CopyFrom(declared)
    return proto


def _chain() -> onnx.ModelProto:
    s = Sketch()
    x = s.op("Relu", s.input("x", [1, 4]), name="first")
    return s.proto(s.op("Relu", x, name="second"))


@fault("duplicate-name", "warning", "first")
def duplicate(ill: bool) -> onnx.ModelProto:
    proto = _chain()
    proto.graph.node[1].name = "first" if ill else "second"
    return proto


@fault("mixed-types", "error", None)
def constant_in_half(ill: bool) -> onnx.ModelProto:
    s = Sketch()
    one = np.ones(4, np.float16 if ill else np.float32)
    return s.proto(s.op("Add", s.input("x", [4]), one, name="add"))


@fault("mixed-types", "error", None)
def declared_as_half(ill: bool) -> onnx.ModelProto:
    s = Sketch()
    proto = s.proto(
        s.op("Abs", s.op("Cast", s.input("x", [4], TensorProto.INT64), name="cast", to=1))
    )
    if ill:
        del proto.graph.value_info[:]
        half = helper.make_tensor_value_info("cast_out", TensorProto.FLOAT16, [4])
        proto.graph.value_info.append(half)
    return proto


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
    proto.graph.node[0].op_type = "SomeNMS_TRT"
    proto.graph.node[0].domain = "" if ill else "trt.plugins"
    proto.opset_import.append(onnx.helper.make_opsetid("trt.plugins", 1))
    return proto


@fault("checker", "error", None)
def truncated(ill: bool) -> onnx.ModelProto:
    s = Sketch()
    proto = s.proto(s.op("Add", s.input("x", [4]), f32(np.ones(4)), name="add"))
    if ill:
        proto.graph.initializer[0].ClearField("raw_data")
        proto.graph.initializer[0].raw_data = b"\0" * 12
    return proto
