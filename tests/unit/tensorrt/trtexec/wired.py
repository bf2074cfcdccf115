"""A model with all kinds of layers, and constraints on it."""

import numpy as np
import onnx
from onnx import TensorProto

from halfwise.graph.loading import Unchecked, read_unchecked
from halfwise.records import Finding
from halfwise.tensorrt.trtexec.check import check
from halfwise.tensorrt.trtexec.layers import kinds_of, layers_of, producers_of
from halfwise.tensorrt.trtexec.notation import read
from tests.unit.graph.sketch import Sketch, f32


def model(folder) -> Unchecked:
    """Return /a/MatMul, /a/Relu, /b/Split of two outputs, a Cast to FP16, a Shape and its Cast."""
    s = Sketch()
    x = s.input("x", [2, 4])
    y = s.op("MatMul", x, s.constant(f32(np.eye(4)), "weight"), name="/a/MatMul")
    y = s.op("Relu", y, name="/a/Relu")
    s.nodes.append(onnx.helper.make_node("Split", [y], ["one", "two"], name="/b/Split", axis=1))
    total = s.op("Add", "one", "two", name="/b/Add:0")
    low = s.op("Cast", total, to=TensorProto.FLOAT16, name="/b/Cast")
    size = s.op("Cast", s.op("Shape", y, name="/c/Shape"), to=TensorProto.FLOAT, name="/c/Cast")
    comma = s.op("Neg", size, name="/c/Neg, odd")
    s.nodes.append(onnx.helper.make_node("Abs", [comma], ["unnamed_out"]))
    (folder / "m.onnx").write_bytes(s.proto(low, "unnamed_out").SerializeToString())
    return read_unchecked(folder / "m.onnx")


def checked(folder, version: tuple[int, int], *words: str) -> tuple[tuple[Finding, ...], str]:
    """Return what is found, and the corrected words."""
    unchecked = model(folder)
    layers = layers_of(unchecked)
    kinds = kinds_of(unchecked, layers)
    return check(read(words), layers, producers_of(unchecked), version, kinds)
