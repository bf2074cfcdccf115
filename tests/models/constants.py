"""Weights and statistics that FP16 cannot hold."""

import numpy as np

from tests.models.illness import Ill, illness, signals, weights
from tests.unit.graph.sketch import Sketch, f32

FAMILY = "Weights"


@illness(FAMILY, "NVIDIA/TensorRT#3101")
def tiny_weights() -> Ill:
    """Weights of 1e-8 become zero."""
    s = Sketch()
    x = s.input("x", [1, 16])
    hidden = s.op("Tanh", x, name="tanh")
    y = s.op("MatMul", hidden, weights(16, 4, seed=9, scale=1e-8), name="matmul")
    inputs = {"x": signals(1, 16, seed=10, peak=2)}
    return Ill(s.proto(y), inputs, {"matmul"}, {"constant-subnormal"})


@illness(FAMILY, "NVIDIA/TensorRT#3101")
def subnormal_weights() -> Ill:
    """Weights of 3e-7 keep two or three bits."""
    s = Sketch()
    x = s.input("x", [1, 16])
    y = s.op("MatMul", x, weights(16, 4, seed=120, scale=3e-7), name="matmul")
    inputs = {"x": signals(1, 16, seed=121, peak=1e4)}
    return Ill(s.proto(y), inputs, {"matmul"}, {"constant-subnormal"})


@illness(FAMILY, "NVIDIA/TensorRT#2186")
def huge_weights() -> Ill:
    """Weights of 1e6 saturate at 65504, although their products with small inputs would fit."""
    s = Sketch()
    x = s.input("x", [1, 16])
    hidden = s.op("Mul", x, f32(1e-3), name="small")
    y = s.op("MatMul", hidden, weights(16, 4, seed=11, scale=1e6), name="matmul")
    return Ill(s.proto(y), {"x": signals(1, 16, seed=12)}, {"matmul"}, {"constant-range"})


def busy_product() -> Ill:
    """As `huge_weights`; the product's arithmetic takes longer than its memory traffic."""
    s = Sketch()
    small = s.op("Mul", s.input("x", [1, 256, 128]), f32(1e-3), name="small")
    y = s.op("MatMul", small, weights(128, 128, seed=11, scale=1e6), name="matmul")
    return Ill(s.proto(y), {"x": signals(1, 256, 128, seed=12)}, {"matmul"}, {"constant-range"})


@illness(FAMILY, "NVIDIA/TensorRT#2186")
def batch_norm() -> Ill:
    """A BatchNormalization with variances of 1e10."""
    s = Sketch()
    x = s.input("x", [1, 3, 8])
    large = s.op("Mul", x, f32(1e4), name="enlarge")
    ones, zeros = np.ones(3), np.zeros(3)
    y = s.op(
        *("BatchNormalization", large, f32(ones), f32(zeros), f32(zeros)),
        f32([1e10, 2e10, 4e10]),
        name="norm",
    )
    return Ill(s.proto(y), {"x": signals(1, 3, 8, seed=13)}, {"norm"}, {"constant-range"})


@illness(FAMILY, "NVIDIA/TensorRT#3101")
def batch_norm_of_still_channels() -> Ill:
    """A BatchNormalization whose channels hardly vary: variances of 1e-8 become zero."""
    s = Sketch()
    x = s.input("x", [1, 3, 8])
    ones, zeros = np.ones(3), np.zeros(3)
    y = s.op(
        *("BatchNormalization", x, f32(ones), f32(zeros), f32(zeros)),
        f32([1e-8, 2e-8, 4e-8]),
        name="norm",
        epsilon=1e-9,
    )
    inputs = {"x": signals(1, 3, 8, seed=122, peak=1e-2)}
    return Ill(s.proto(y), inputs, {"norm"}, {"constant-subnormal"})
