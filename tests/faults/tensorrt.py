"""What a version of TensorRT cannot parse."""

import numpy as np
import onnx

from tests.faults.fault import fault
from tests.unit.graph.sketch import Sketch, f32


def _relu(opset: int) -> onnx.ModelProto:
    s = Sketch(opset)
    return s.proto(s.op("Relu", s.input("x", [1, 4]), name="relu"))


@fault("opset-unparsed", "warning", None, tensorrt="8.6.1")
def late_opset(ill: bool) -> onnx.ModelProto:
    return _relu(18 if ill else 17)


@fault("opset-unparsed", "warning", None, tensorrt="10.0")
def early_opset(ill: bool) -> onnx.ModelProto:
    return _relu(8 if ill else 9)


@fault("opset-unparsed", "warning", None, tensorrt="10.9.0.34")
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


@fault("operator-unparsed", "error", "operator", tensorrt="11")
def later_than_the_list(ill: bool) -> onnx.ModelProto:
    s = Sketch(26)
    x = s.input("x", [16])
    return s.proto(s.op("CumProd" if ill else "CumSum", x, np.array(0), name="operator"))


@fault("form-unparsed", "error", "sum", tensorrt="11")
def computed_axes(ill: bool) -> onnx.ModelProto:
    s = Sketch()
    x, axes = s.input("x", [2, 3]), s.input("axes", [1], onnx.TensorProto.INT64)
    given = s.op("Neg", axes, name="neg")
    total = s.op("ReduceSum", x, given if ill else [1], name="sum")
    return s.proto(s.op("Size", total, name="size"), given)


@fault("form-unparsed", "info", "sum", tensorrt="10.15")
def computed_axes_before(ill: bool) -> onnx.ModelProto:
    return computed_axes(ill)


@fault("form-unparsed", "error", "pool", tensorrt="11.4")
def dilated(ill: bool) -> onnx.ModelProto:
    s = Sketch()
    x, wide = s.input("x", [1, 2, 9, 9]), 2 if ill else 1
    pool = s.op("MaxPool", x, name="pool", kernel_shape=[2, 2], dilations=[wide, wide])
    return s.proto(pool)


@fault("form-unparsed", "error", "norm", tensorrt="11")
def second_output(ill: bool) -> onnx.ModelProto:
    s = Sketch()
    y = s.op("LayerNormalization", s.input("x", [2, 16]), f32(np.ones(16)), name="norm")
    if ill:
        s.nodes[-1].output.append("mean")
    return s.proto(y, *(["mean"] if ill else []))


@fault("form-unparsed", "warning", "scatter", tensorrt="11")
def scattered_sum(ill: bool) -> onnx.ModelProto:
    s = Sketch(18)
    x, updates = s.input("x", [8]), s.input("updates", [2])
    where = np.array([[1], [3]])
    how = {"reduction": "add"} if ill else {}
    return s.proto(s.op("ScatterND", x, where, updates, name="scatter", **how))


@fault("form-unparsed", "error", "top", tensorrt="11")
def many_largest(ill: bool) -> onnx.ModelProto:
    s = Sketch()
    top = s.op("TopK", s.input("x", [1, 8000]), [4000 if ill else 100], name="top")
    s.nodes[-1].output.append("which")
    return s.proto(top, "which")


@fault("type-unparsed", "error", "cast", tensorrt="11")
def short_integers(ill: bool) -> onnx.ModelProto:
    s = Sketch()
    kind = onnx.TensorProto.INT16 if ill else onnx.TensorProto.INT32
    return s.proto(s.op("Cast", s.input("x", [4]), name="cast", to=kind))


@fault("operator-custom", "warning", "custom", tensorrt="8.6")
def contributed(ill: bool) -> onnx.ModelProto:
    proto = _relu(17)
    proto.graph.node[0].name = "custom"
    if ill:
        proto.graph.node[0].op_type, proto.graph.node[0].domain = "FastGelu", "com.microsoft"
        proto.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    return proto


@fault("operator-unparsed", "warning", "objects", tensorrt="rtx 1.7")
def not_ahead_of_time(ill: bool) -> onnx.ModelProto:
    s = Sketch()
    x = s.input("x", [1, 16])
    return s.proto(s.op("Size", s.op("NonZero" if ill else "Relu", x, name="objects")))


@fault("product-folded", "warning", "kept", tensorrt="rtx 1.4")
def kept_product(ill: bool) -> onnx.ModelProto:
    s = Sketch(17)
    x = s.op("Cast", s.op("Cast", s.input("x", [4, 16]), to=10), to=1)
    y = s.op("MatMul", x, f32(np.full((16, 8), 0.5)), name="kept")
    y = s.op("Cast", y if ill else s.op("Sigmoid", y), to=10)
    return s.proto(s.op("Cast", s.op("Relu", y), to=1))
