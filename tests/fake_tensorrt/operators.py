"""What operators compute, in float64: by NumPy where that is a line, else by ONNX's reference.

Floating-point arrays come and go as float64; who stores them rounds. Integers and Booleans keep
their types.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator

from tests.fake_tensorrt.rounding import FLOATS

Kernel = Callable[..., Any]

_REFERENCE = frozenset(
    (
        *("ArgMax", "AveragePool", "BatchNormalization", "Clip", "Concat", "Conv", "Div", "Expand"),
        *("Gather", "GatherND", "Gemm", "GlobalAveragePool", "Greater", "GRU", "HannWindow"),
        *("Identity", "InstanceNormalization", "LayerNormalization", "LeakyRelu", "LSTM"),
        *("MaxPool", "NonZero", "Not", "Pow", "ReduceMean", "ReduceSum", "Reshape", "Round"),
        *("Shape", "Slice", "Softmax", "Split", "Squeeze", "TopK", "Transpose", "Unsqueeze"),
        "Where",
    )
)
_NUMPY: Mapping[str, Callable[..., Any]] = {
    "Abs": np.abs,
    "Add": np.add,
    "Cos": np.cos,
    "Erf": lambda x: np.reshape([math.erf(number) for number in x.ravel().tolist()], x.shape),
    "Exp": np.exp,
    "Log": np.log,
    "MatMul": np.matmul,
    "Mul": np.multiply,
    "Neg": np.negative,
    "Reciprocal": np.reciprocal,
    "Relu": lambda x: np.maximum(x, 0.0),
    "Sigmoid": lambda x: 1.0 / (1.0 + np.exp(-x)),
    "Sin": np.sin,
    "Sqrt": np.sqrt,
    "Sub": np.subtract,
    "Tanh": np.tanh,
}
_STEPS = ("QuantizeLinear", "DequantizeLinear")
KNOWN = _REFERENCE.union(("Cast", "Constant"), _STEPS, _NUMPY)


def kernel(node: ir.Node, opset: int) -> Kernel:
    """Return what makes a list of outputs of a node from its inputs, None for one left out.

    Args:
        node: Of an operator in `KNOWN`.
        opset: Version of ONNX's operators.
    """
    if node.op_type == "Cast":
        wanted = ir.DataType(node.attributes["to"].as_int())
        # Between floating-point types it is what stores the result that rounds.
        kind = float if wanted in FLOATS else wanted.numpy()
        return lambda x: [x.astype(kind)]
    if node.op_type in _NUMPY:
        function = _NUMPY[node.op_type]
        return lambda *arrays: [function(*arrays)]
    if node.op_type in _STEPS:
        return _steps(node)
    return _reference(ir.serde.serialize_node(node), opset)


def _steps(node: ir.Node) -> Kernel:
    """Return what rounds to INT8, or makes numbers of it: zero points are 0."""
    axis = node.attributes.get_int("axis", 1)

    def scales(x: Any, scale: Any) -> Any:
        return (
            scale if scale.size == 1 else scale.reshape([-1] + [1] * (x.ndim - axis % x.ndim - 1))
        )

    def quantise(x: Any, scale: Any, *_: Any) -> list[Any]:
        # Kernels divide in FP32: ties would be others in float64.
        steps = np.float32(x) / np.float32(scales(x, scale))
        return [np.clip(np.rint(np.nan_to_num(steps)), -128, 127).astype(np.int8)]

    def dequantise(x: Any, scale: Any, *_: Any) -> list[Any]:
        return [x.astype(float) * scales(x, scale)]

    return quantise if node.op_type == "QuantizeLinear" else dequantise


def _reference(node: onnx.NodeProto, opset: int) -> Kernel:
    given, wanted = (
        [onnx.ValueInfoProto(name=n) for n in ns if n] for ns in (node.input, node.output)
    )
    graph = onnx.helper.make_graph([node], "one", given, wanted)
    evaluator = ReferenceEvaluator(graph, {"": opset})
    names = [n for n in node.output if n]

    def run(*arrays: Any) -> list[Any]:
        given = {n: a for n, a in zip(node.input, arrays, strict=True) if n}
        found = dict(zip(names, evaluator.run(names, given), strict=True))
        return [found.get(n) for n in node.output]

    return run
