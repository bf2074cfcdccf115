"""Exponentials: beyond 11.09 they overflow, and many of them add up."""

import numpy as np

from tests.models.illness import Ill, illness, signals
from tests.unit.graph.sketch import Sketch, f32

FAMILY = "Exponentials"
KEYS = 65_536


@illness(FAMILY)
def exponential() -> Ill:
    """exp(x) for x up to 15, scaled back afterwards."""
    s = Sketch()
    x = s.input("x", [1, 64])
    y = s.op("Mul", s.op("Exp", x, name="exp"), f32(1e-4), name="scale")
    return Ill(s.proto(y), {"x": signals(1, 64, seed=70, peak=15)}, {"exp", "scale"}, {"overflow"})


@illness(FAMILY, "openvinotoolkit/openvino#31654")
def softplus() -> Ill:
    """log(1 + exp(x)) for x up to 20: the logarithm of infinity."""
    s = Sketch()
    x = s.input("x", [1, 64])
    one = s.op("Add", s.op("Exp", x, name="exp"), f32(1.0), name="one")
    y = s.op("Log", one, name="log")
    inputs = {"x": signals(1, 64, seed=71, peak=20)}
    return Ill(s.proto(y), inputs, {"exp", "one", "log"}, {"overflow"})


@illness(FAMILY, "openvinotoolkit/openvino#31654")
def mish() -> Ill:
    """x · tanh(log(1 + exp(x))): the tanh swallows the infinity, so nothing is kept."""
    s = Sketch()
    x = s.input("x", [1, 64])
    one = s.op("Add", s.op("Exp", x, name="exp"), f32(1.0), name="one")
    y = s.op("Mul", x, s.op("Tanh", s.op("Log", one, name="log"), name="tanh"), name="gate")
    return Ill(s.proto(y), {"x": signals(1, 64, seed=72, peak=20)})


@illness(FAMILY, "openvinotoolkit/openvino#31654")
def mish_quotient() -> Ill:
    """Mish as x · n / (n + 2) with n = eˣ · (eˣ + 2): infinity over infinity."""
    s = Sketch()
    x = s.input("x", [1, 64])
    exp = s.op("Exp", x, name="exp")
    n = s.op("Mul", exp, s.op("Add", exp, f32(2.0), name="two"), name="n")
    gate = s.op("Div", n, s.op("Add", n, f32(2.0), name="more"), name="divide")
    y = s.op("Mul", x, gate, name="gate")
    inputs = {"x": signals(1, 64, seed=73, peak=10)}
    return Ill(s.proto(y), inputs, {"n", "more", "divide"}, {"overflow"})


@illness(FAMILY)
def softmax() -> Ill:
    """exp(x) / Σ exp(x) over 65,536 keys: the normaliser leaves the range."""
    s = Sketch()
    x = s.input("x", [1, KEYS])
    exp = s.op("Exp", x, name="exp")
    y = s.op("Div", exp, s.op("ReduceSum", exp, [-1], name="sum"), name="divide")
    inputs = {"x": signals(1, KEYS, seed=74, peak=3)}
    return Ill(s.proto(y), inputs, {"sum", "divide"}, {"overflow"})


@illness(FAMILY)
def softmax_op() -> Ill:
    """Softmax over 65,536 keys as one node: its sum is inside, in FP32."""
    s = Sketch()
    x = s.input("x", [1, KEYS])
    y = s.op("Softmax", x, name="softmax", axis=-1)
    return Ill(s.proto(y), {"x": f32(np.round(signals(1, KEYS, seed=75, peak=3), 2))})
