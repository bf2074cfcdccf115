"""Write small ONNX graphs in a line per node."""

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from halfwise.graph.loading import network_from_proto
from halfwise.graph.model import Network

Operand = str | float | list[int] | NDArray[Any]


def f32(values: Any) -> NDArray[np.float32]:
    return np.asarray(values, np.float32)


class Sketch:
    """A graph in the making: `op` adds a node and returns its output's name."""

    def __init__(self, opset: int = 17) -> None:
        self.opset = opset
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.constants: list[onnx.TensorProto] = []

    def input(self, name: str, shape: list[Any], dtype: int = TensorProto.FLOAT) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, dtype, shape))
        return name

    def constant(self, value: float | list[int] | NDArray[Any], name: str = "") -> str:
        array = np.asarray(value, np.int64 if isinstance(value, list) else None)
        array = array.astype(np.float32) if array.dtype == np.float64 else array
        name = name or f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def op(self, op: str, *operands: Operand, name: str = "", **attributes: Any) -> str:
        names = [o if isinstance(o, str) else self.constant(o) for o in operands]
        name = name or f"{op}_{len(self.nodes)}"
        node = helper.make_node(op, names, [f"{name}_out"], name=name, **attributes)
        self.nodes.append(node)
        return f"{name}_out"

    def names(self, *, outside: str = "outside") -> set[str]:
        """Names of all nodes but those that begin with `outside`."""
        return {n.name for n in self.nodes if not n.name.startswith(outside)}

    def proto(self, *outputs: str) -> onnx.ModelProto:
        ends = [helper.make_empty_tensor_value_info(o) for o in outputs]
        graph = helper.make_graph(self.nodes, "sketch", self.inputs, ends, self.constants)
        model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=10
        )
        return onnx.shape_inference.infer_shapes(model, data_prop=True)

    def network(self, *outputs: str) -> Network:
        return network_from_proto(self.proto(*outputs))
