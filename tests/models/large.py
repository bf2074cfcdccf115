"""Models with weights beyond a kilobyte, which sessions are handed apart from the graph."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto

from tests.models.illness import COUNT, Ill, signals, weights
from tests.unit.graph.sketch import Sketch, f32


def large_weights() -> Ill:
    """Three layers with weights beyond a kilobyte, of which the first two overflow together."""
    s = Sketch()
    x = s.input("x", [1, 8, 64])
    scaled = s.op("Mul", x, s.constant(2.0, "scale"), name="scale_it")
    up = s.constant(weights(64, 64, seed=21, scale=1e5), "up_w")
    down = s.constant(weights(64, 64, seed=22, scale=1e-6), "down_w")
    out = s.constant(weights(64, 64, seed=23, scale=0.1), "out_w")
    hidden = s.op("Relu", s.op("MatMul", scaled, up, name="up"), name="relu")
    y = s.op("MatMul", s.op("MatMul", hidden, down, name="down"), out, name="out")
    inputs = {"x": signals(1, 8, 64, seed=24)}
    return Ill(s.proto(y), inputs, frozenset({"up", "relu", "down"}))


def saved_beside(ill: Ill, folder: Path) -> Path:
    """Save a model with its weights in a file of their own; return its path."""
    proto = onnx.ModelProto()
    proto.CopyFrom(ill.proto)
    path = folder / "model.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    return path


def two_bodies() -> Ill:
    """An If whose bodies multiply by a matrix of threes and one of twos."""
    ends = [onnx.helper.make_tensor_value_info("out", TensorProto.FLOAT, [1, 8, 64])]
    bodies = {}
    for branch, value in (("then_branch", 3), ("else_branch", 2)):
        weight = onnx.numpy_helper.from_array(f32(np.full((64, 64), value)), "weight")
        node = onnx.helper.make_node("MatMul", ["x", "weight"], ["out"], branch)
        bodies[branch] = onnx.helper.make_graph([node], branch, [], ends, [weight])
    s = Sketch()
    s.input("x", [1, 8, 64])
    flag = s.input("flag", [], TensorProto.BOOL)
    s.nodes.append(onnx.helper.make_node("If", [flag], ["y"], "choose", **bodies))
    inputs = {"x": signals(1, 8, 64, seed=25), "flag": np.arange(COUNT) % 2 == 0}
    return Ill(s.proto("y"), inputs)
