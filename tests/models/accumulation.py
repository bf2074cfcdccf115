"""Sums that are long enough to go wrong where they are kept in FP16 on the way."""

import numpy as np

from tests.models.illness import COUNT, Ill, illness, signals, weights
from tests.unit.graph.sketch import Sketch, f32

FAMILY = "FP16 accumulation"
ISSUES = ("NVIDIA/TensorRT#2942", "NVIDIA/TensorRT#1262")
TERMS = 65_536
OPTIONS = ("--accumulate", "fp16")


@illness(FAMILY, *ISSUES)
def long_product() -> Ill:
    """A MatMul over 65,536 positive terms: the running sum stops growing."""
    s = Sketch()
    x = s.input("x", [1, TERMS])
    y = s.op("MatMul", x, f32(np.full((TERMS, 1), 1.0)), name="matmul")
    generator = np.random.default_rng(130)
    inputs = {"x": f32(generator.uniform(0.4, 0.45, (COUNT, 1, TERMS)))}
    return Ill(s.proto(y), inputs, {"matmul"}, {"sum"}, options=OPTIONS)


@illness(FAMILY, *ISSUES)
def long_sum() -> Ill:
    """A ReduceSum over 65,536 positive terms: the running sum stops growing."""
    s = Sketch()
    x = s.input("x", [1, TERMS])
    y = s.op("ReduceSum", x, [-1], name="sum")
    generator = np.random.default_rng(131)
    inputs = {"x": f32(generator.uniform(0.4, 0.45, (COUNT, 1, TERMS)))}
    return Ill(s.proto(y), inputs, {"sum"}, {"sum"}, options=OPTIONS)


@illness(FAMILY, "NVIDIA/TensorRT#1954", "openvinotoolkit/openvino#31623")
def global_mean() -> Ill:
    """A ReduceMean over 4096 pixels that sums first and divides afterwards."""
    s = Sketch()
    x = s.input("x", [1, 2, 64, 64])
    y = s.op("ReduceMean", x, name="mean", axes=[2, 3])
    inputs = {"x": f32(np.abs(signals(1, 2, 64, 64, seed=132, peak=100)) + 20)}
    return Ill(s.proto(y), inputs, {"mean"}, {"sum"}, options=OPTIONS)


@illness(FAMILY, "NVIDIA/TensorRT#1954")
def inner_squares() -> Ill:
    """A ReduceL2 whose sum of squares leaves the range on the way."""
    s = Sketch()
    x = s.input("x", [1, 4, 32])
    y = s.op("Div", x, s.op("ReduceL2", x, name="norm", axes=[-1]), name="divide")
    inputs = {"x": signals(1, 4, 32, seed=133, peak=1e3)}
    return Ill(s.proto(y), inputs, {"norm"}, {"square"}, options=OPTIONS)


@illness(FAMILY, *ISSUES)
def long_softmax() -> Ill:
    """A Softmax over 65,536 keys: its normaliser stops growing."""
    s = Sketch()
    x = s.input("x", [1, TERMS])
    y = s.op("Softmax", x, name="softmax", axis=-1)
    inputs = {"x": f32(np.round(signals(1, TERMS, seed=134, peak=0.5), 2))}
    return Ill(s.proto(y), inputs, {"softmax"}, {"sum"}, options=OPTIONS)


def mean_beside_products(rows: int = 8192) -> Ill:
    """Products of [1, rows, 64], and values beside them less their mean over 512, which add up to
    beyond FP16's range.
    """
    s = Sketch()
    x = s.input("x", [1, rows, 64])
    for i in range(4):
        x = s.op("MatMul", x, weights(64, 64, seed=i, scale=0.1), name=f"product_{i}")
    z = s.input("z", [1, 512, 8])
    less = s.op("Sub", z, s.op("ReduceMean", z, name="mean", axes=[1]), name="less")
    noise = signals(1, 512, 8, seed=2, peak=100)
    return Ill(s.proto(x, less), {"x": signals(1, rows, 64, seed=3), "z": noise + 200})
