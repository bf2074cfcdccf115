"""attention."""

import numpy as np

from tests.models.illness import COUNT, Ill, illness, signals
from tests.unit.graph.sketch import Sketch, f32


@illness("Attention and masks", "NVIDIA/TensorRT#2466")
def mask() -> Ill:
    """Attention scores plus (1 - mask) · -3.4e38: the constant saturates, and that is enough."""
    s = Sketch()
    scores = s.input("scores", [1, 8, 8])
    allowed = s.input("allowed", [1, 1, 8])
    hidden = s.op("Sub", f32(1.0), allowed, name="hidden")
    lowest = s.constant(f32(np.finfo(np.float32).min), "lowest")
    added = s.op("Add", scores, s.op("Mul", hidden, lowest, name="fill"), name="add")
    y = s.op("Softmax", added, name="softmax", axis=-1)
    lengths = 1 + np.arange(COUNT) % 8
    allowed_values = f32(np.arange(8) < lengths[:, None])[:, None, None]
    return Ill(s.proto(y), {"scores": signals(1, 8, 8, seed=8, peak=6), "allowed": allowed_values})
