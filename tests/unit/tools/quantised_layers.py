"""Products with Relu between, quantised by scales that a test chooses."""

import numpy as np
import onnx

from tests.unit.graph.sketch import Sketch, f32

SIZE = 16
LAYERS = ("first", "second", "third")
RNG = np.random.default_rng(3)
WEIGHTS = {n: f32(RNG.normal(size=(SIZE, SIZE)) / 4) for n in LAYERS}
SAMPLES = f32(np.abs(RNG.normal(size=(6, 1, 4, SIZE))) ** 2 + np.linspace(0, 1, SIZE))
GOOD = {"first": 0.1, "second": 0.15, "third": 0.15}


def model(
    scales: dict[str, float] | None = None, weights: str = "channel", end: float | None = None
) -> onnx.ModelProto:
    """Products with Relu between; quantised where there are scales of what they read.

    The output comes from a pair, too, where there is a scale `end` for it.
    """
    s = Sketch(17)
    x = s.input("x", [1, 4, SIZE])
    for name, weight in WEIGHTS.items():
        given: str | np.ndarray = weight
        if scales is not None:
            scale, zero = s.constant(scales[name]), s.constant(np.zeros((), np.int8))
            codes = s.op("QuantizeLinear", x, scale, zero, name=f"{name}/q")
            x = s.op("DequantizeLinear", codes, scale, zero, name=f"{name}/dq")
            steps = np.abs(weight).max(0) / 127
            zeros: np.ndarray = np.zeros(SIZE, np.int8)
            if weights == "tensor":
                steps, zeros = np.abs(weight).max() / 16, np.zeros((), np.int8)
            stored = s.constant(np.rint(weight / steps).astype(np.int8))
            parameters = (s.constant(f32(steps)), s.constant(zeros))
            given = s.op("DequantizeLinear", stored, *parameters, name=f"{name}/w", axis=1)
        x = s.op("Relu", s.op("MatMul", x, given, name=name), name=f"{name}/relu")
    if end is not None:
        ends = s.constant(end), s.constant(np.zeros((), np.int8))
        x = s.op("DequantizeLinear", s.op("QuantizeLinear", x, *ends), *ends)
    return s.proto(x)
