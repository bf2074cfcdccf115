"""What exporters got wrong, as far as a file shows it."""

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.faults.fault import fault
from tests.unit.graph.sketch import Sketch, f32


def _by_torch(proto: onnx.ModelProto, version: str) -> onnx.ModelProto:
    proto.producer_name, proto.producer_version = "pytorch", version
    return proto


@fault("exporter-bias", "error", "conv")
def folded_bias(ill: bool) -> onnx.ModelProto:
    s = Sketch()
    x = s.input("x", [1, 3, 8, 8])
    y = s.op("Conv", x, f32(np.ones((4, 3, 3, 3))), f32(np.ones(8 if ill else 4)), name="conv")
    return s.proto(y)


@fault("exporter-bias", "error", "gemm")
def folded_bias_of_gemm(ill: bool) -> onnx.ModelProto:
    s = Sketch()
    weight, bias = f32(np.ones((6, 4))), f32(np.ones(4 if ill else 6))
    return s.proto(s.op("Gemm", s.input("x", [2, 4]), weight, bias, name="gemm", transB=1))


@fault("exporter-cast", "error", "cast")
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


@fault("exporter-early-dynamo", "warning", None)
def early_dynamo(ill: bool) -> onnx.ModelProto:
    domain = "pkg.onnxscript.torch_lib"
    s = Sketch(18)
    proto = s.proto(s.op("Relu", s.input("x", [4]), name="relu"))
    proto.graph.node[0].op_type, proto.graph.node[0].domain = "aten_relu", domain
    body = helper.make_node("Relu", ["a"], ["b"], name="inner")
    opset = helper.make_opsetid("", 18)
    proto.functions.append(helper.make_function(domain, "aten_relu", ["a"], ["b"], [body], [opset]))
    proto.opset_import.append(helper.make_opsetid(domain, 1))
    return _by_torch(proto, "2.2.0" if ill else "2.6.0")
