"""Writes graphs node by node, weights drawn from a seed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


class Writer:
    """A graph under construction: `op` adds a node `name` whose output is `name.y`."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def op(self, kind: str, name: str, *inputs: str, **attributes: Any) -> str:
        """Add a node with one output; return the output's name."""
        self.nodes.append(helper.make_node(kind, inputs, [f"{name}.y"], name, **attributes))
        return f"{name}.y"

    def constant(self, name: str, array: np.ndarray | float) -> str:
        """Add a float constant."""
        self.constants.append(numpy_helper.from_array(np.asarray(array, np.float32), name))
        return name

    def integers(self, name: str, values: Iterable[int]) -> str:
        """Add an int64 constant."""
        self.constants.append(numpy_helper.from_array(np.array(list(values), np.int64), name))
        return name

    def drawn(self, name: str, *shape: int, deviation: float, mean: float = 0.0) -> str:
        """Add a normally distributed constant."""
        return self.constant(name, mean + deviation * self.rng.standard_normal(shape))

    def model(
        self,
        name: str,
        inputs: Mapping[str, Sequence[int]],
        outputs: Mapping[str, tuple[str, Sequence[int]]],
        *,
        opset: int,
        integers: Sequence[str] = (),
    ) -> onnx.ModelProto:
        """Return the model.

        Args:
            name: Of the graph.
            inputs: Shapes of float inputs, or int32 where `integers` has the name.
            outputs: By name, the value that it is, and its shape.
            opset: Of ONNX's operators.
            integers: Inputs that are int32.
        """
        nodes = [onnx.NodeProto.FromString(n.SerializeToString()) for n in self.nodes]
        renamed = {value: output for output, (value, _) in outputs.items()}
        for node in nodes:
            for ends in (node.input, node.output):
                for i, value in enumerate(ends):
                    ends[i] = renamed.get(value, value)
        given = [
            helper.make_tensor_value_info(
                n, TensorProto.INT32 if n in integers else TensorProto.FLOAT, shape
            )
            for n, shape in inputs.items()
        ]
        made = [
            helper.make_tensor_value_info(n, TensorProto.FLOAT, shape)
            for n, (_, shape) in outputs.items()
        ]
        graph = helper.make_graph(nodes, name, given, made, self.constants)
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", opset)],
            ir_version=8,
            producer_name="halfwise",
        )
        onnx.checker.check_model(model, full_check=True)
        return model
