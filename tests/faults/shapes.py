"""Sizes baked in."""

import numpy as np
import onnx

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
