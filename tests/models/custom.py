"""Operators of custom domains, which stay in FP32 unless a rule lowers them."""

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from tests.models.illness import Ill, signals, weights
from tests.unit.graph.sketch import f32


def microsoft() -> Ill:
    """Operators of ONNX Runtime's own domain, with one of ONNX after them; FP16 breaks none."""
    domain = "com.microsoft"
    nodes = [
        helper.make_node("FusedMatMul", ["x", "w1"], ["a"], "fused", domain=domain, alpha=0.5),
        helper.make_node("BiasGelu", ["a", "b1"], ["b"], "bias_gelu", domain=domain),
        helper.make_node("Gelu", ["b"], ["c"], "gelu", domain=domain),
        helper.make_node(
            *("SkipLayerNormalization", ["c", "a", "gamma", "beta"], ["d", "", "", "s"], "skip"),
            domain=domain,
        ),
        helper.make_node("MatMul", ["d", "w2"], ["e"], "matmul"),
        helper.make_node("Add", ["e", "s"], ["y"], "add"),
    ]
    constants = {
        "w1": weights(8, 8, seed=31, scale=0.3),
        "b1": f32(np.linspace(-1, 1, 8)),
        "gamma": f32(np.linspace(0.5, 1.5, 8)),
        "beta": f32(np.linspace(-0.1, 0.1, 8)),
        "w2": weights(8, 8, seed=32, scale=0.3),
    }
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 4, 8]) for n in "xy"]
    tensors = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "microsoft", ends[:1], ends[1:], tensors)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(domain, 1)]
    proto = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return Ill(proto, {"x": signals(1, 4, 8, seed=33)})
