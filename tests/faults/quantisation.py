"""Quantised models that a parser refuses or reads otherwise, and that lose a channel."""

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from tests.faults.fault import fault
from tests.unit.graph.sketch import Operand, Sketch, f32

INT8 = np.zeros((), np.int8)


def pair(s: Sketch, x: Operand, name: str, scale: Operand = 0.1, zero: Any = INT8) -> str:
    """Quantise `x` and dequantise it again; without a zero point where that is None."""
    parameters = [scale if isinstance(scale, str) else s.constant(scale)]
    parameters += [] if zero is None else [s.constant(np.asarray(zero))]
    low = s.op("QuantizeLinear", x, *parameters, name=name)
    return s.op("DequantizeLinear", low, *parameters, name=f"{name}_back")


def quantised_relu(ill: bool, scale: Operand = 0.1, zero: Any = INT8) -> onnx.ModelProto:
    """Relu of a quantised input; without the fault of INT8 with a zero point of 0."""
    s = Sketch(13)
    low = pair(s, s.input("x", [4]), "quantise", *((scale, zero) if ill else ()))
    return s.proto(s.op("Relu", low, name="relu"))


@fault("quantisation-refused", "error", "quantise", tensorrt="10.3")
def asymmetric(ill: bool) -> onnx.ModelProto:
    return quantised_relu(ill, zero=np.int8(-128))


@fault("quantisation-refused", "warning", "weight")
def asymmetric_weight(ill: bool) -> onnx.ModelProto:
    """Weights that are stored as integers: there is no QuantizeLinear."""
    s = Sketch(13)
    zero = s.constant(np.asarray(ill, np.int8))
    low = s.constant(np.arange(16, dtype=np.int8).reshape(4, 4))
    weight = s.op("DequantizeLinear", low, 0.1, zero, name="weight")
    return s.proto(s.op("MatMul", pair(s, s.input("x", [1, 4]), "x_low"), weight, name="product"))


@fault("quantisation-refused", "warning", "quantise")
def unsigned(ill: bool) -> onnx.ModelProto:
    return quantised_relu(ill, zero=np.uint8(0))


@fault("quantisation-refused", "error", "quantise", tensorrt="8.6")
def without_zero_point(ill: bool) -> onnx.ModelProto:
    return quantised_relu(ill, zero=None)


@fault("quantisation-refused", "warning", "bias_low")
def quantised_bias(ill: bool) -> onnx.ModelProto:
    s = Sketch(13)
    low = np.arange(4, dtype=np.int32)
    bias = s.op("DequantizeLinear", low, 0.1, name="bias_low") if ill else f32(low)
    return s.proto(s.op("Add", pair(s, s.input("x", [1, 4]), "x_low"), bias, name="add"))


@fault(
    "quantisation-refused",
    "error",
    "quantise",
    besides=("opset-unparsed",),
    tensorrt="8.6",
)
def eight_bit_floats(ill: bool) -> onnx.ModelProto:
    """FP8, which 8.6 does not have; without the fault INT8."""
    s = Sketch(19)
    dtype = onnx.TensorProto.FLOAT8E4M3FN if ill else onnx.TensorProto.INT8
    s.constants.append(onnx.helper.make_tensor("zero", dtype, [], [0]))
    scale = s.constant(0.1)
    low = s.op("QuantizeLinear", s.input("x", [4]), scale, "zero", name="quantise")
    return s.proto(s.op("DequantizeLinear", low, scale, "zero", name="quantise_back"))


@fault("quantisation-refused", "error", "quantise")
def no_scale(ill: bool) -> onnx.ModelProto:
    return quantised_relu(ill, scale=0.0)


@fault("quantisation-refused", "error", "weight")
def infinite_scale_of_a_channel(ill: bool) -> onnx.ModelProto:
    scales: NDArray[np.float32] = f32([0.1, np.inf, 0.1, 0.1])
    s = Sketch(13)
    scale, zero = scales if ill else f32(np.ones(4)), np.zeros(4, np.int8)
    low = np.arange(16, dtype=np.int8).reshape(4, 4)
    weight = s.op("DequantizeLinear", low, scale, zero, name="weight", axis=0)
    return s.proto(s.op("MatMul", pair(s, s.input("x", [1, 4]), "x_low"), weight, name="product"))


@fault("quantisation-refused", "error", "quantise", tensorrt="10.3")
def scales_of_activations(ill: bool) -> onnx.ModelProto:
    s = Sketch(13)
    scale, zero = (f32(np.ones(4)), np.zeros(4, np.int8)) if ill else (f32(1), INT8)
    low = s.op("QuantizeLinear", s.input("x", [4]), scale, zero, name="quantise", axis=0)
    return s.proto(s.op("DequantizeLinear", low, scale, zero, name="quantise_back", axis=0))


@fault("quantisation-joined", "warning", "whole")
def boxes_and_scores(ill: bool) -> onnx.ModelProto:
    """Boxes in pixels and scores in one tensor with one scale; without the fault in shares."""
    s = Sketch(13)
    x = s.input("x", [1, 4])
    boxes = s.op("Relu", x, name="boxes")
    scores = s.op("Sigmoid", x, name="scores")
    whole = s.op("Concat", boxes, scores, name="join", axis=1)
    return s.proto(pair(s, whole, "whole", scale=640 / 127 if ill else 1 / 127))


@fault("quantisation-joined", "warning", "whole")
def quantised_parts(ill: bool) -> onnx.ModelProto:
    s = Sketch(13)
    x = s.input("x", [1, 4])
    parts = [pair(s, x, "large", scale=1.0), pair(s, x, "small", scale=1e-3 if ill else 0.1)]
    whole = s.op("Concat", *parts, name="join", axis=1)
    return s.proto(pair(s, whole, "whole", scale=1.0))
