"""Compares a chain of NODES tensors of 1 MB with its TF32 form; prints the peak RSS in bytes.

python bench/compare_memory.py NODES
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from bench.observe_memory import peak_rss
from halfwise.case import Samples
from halfwise.emulation.runner import ModelRunner
from halfwise.graph.loading import network_from_proto
from halfwise.tools.compare.divergence import find_divergence
from halfwise.tools.compare.walk import Walk

SHAPE = (1, 1 << 18)


def main(nodes: int) -> None:
    """Compare all tensors of a chain on two samples."""
    names = ["x", *(f"t{i}" for i in range(nodes))]
    made = [
        helper.make_node("Sigmoid" if i % 2 else "Sin", [names[i]], [names[i + 1]], f"n{i}")
        for i in range(nodes)
    ]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, SHAPE) for n in ("x", names[-1])]
    graph = helper.make_graph(made, "chain", ends[:1], ends[1:])
    opset = [helper.make_opsetid("", 17)]
    network = network_from_proto(helper.make_model(graph, opset_imports=opset, ir_version=8))
    data = np.random.default_rng(0).normal(size=(2, *SHAPE)).astype(np.float32)
    samples = Samples(("0", "1"), lambda i: {"x": data[i]})
    right = ModelRunner(network.model, samples, "right", exact=True)
    other = ModelRunner(network.model, samples, "other", optimise=True)
    walk = Walk(network, samples, right, other)
    assert len(find_divergence(walk).nodes) == nodes
    print(peak_rss())


if __name__ == "__main__":
    main(int(sys.argv[1]))
