"""positions."""

import numpy as np
from onnx import TensorProto

from tests.models.illness import COUNT, Ill, illness
from tests.unit.graph.sketch import Sketch, f32


@illness("Positions, angles and coordinates", "pytorch/pytorch#81926")
def rotary() -> Ill:
    """Sines and cosines of positions up to 5000 times frequencies."""
    s = Sketch()
    positions = s.input("positions", [1, 16], TensorProto.INT64)
    column = s.op("Unsqueeze", positions, [-1], name="column")
    counted = s.op("Cast", column, name="count", to=TensorProto.FLOAT)
    angle = s.op("Mul", counted, f32([1.0, 0.3, 0.1, 0.03]), name="angle")
    sine, cosine = s.op("Sin", angle, name="sine"), s.op("Cos", angle, name="cosine")
    starts = np.arange(COUNT)[:, None, None] * 600
    inputs = {"positions": (starts + np.arange(16) * 11).astype(np.int64)}
    return Ill(
        s.proto(sine, cosine), inputs, frozenset({"angle", "sine", "cosine"}), frozenset({"angle"})
    )
