"""Models of products of which INT8 is enough for some."""

import numpy as np

from tests import models
from tests.unit.graph.sketch import Sketch, f32

WIDTH = 32
LAYERS = 4


def outlier(layer: int = 2, count: int = 12, factor: float = 1) -> models.Ill:
    """Layers of which one reads a channel 500 × as large as the others, that is worth nothing.

    With a scale that holds this channel INT8 leaves nothing of the others. With a `factor` for it
    beyond 130 neither does FP16.
    """
    rng = np.random.default_rng(0)
    s = Sketch()
    value = s.input("x", ["n", WIDTH])
    for i in range(LAYERS):
        weight = rng.standard_normal((WIDTH, WIDTH)).astype(np.float32) / np.sqrt(WIDTH / 2)
        if i == layer:
            value = s.op("Add", value, f32(np.eye(1, WIDTH)[0] * 500), name="offset")
            if factor != 1:
                times = np.where(np.arange(WIDTH) == 0, factor, 1)
                value = s.op("Mul", value, f32(times), name="times")
            weight[0] = 0
        value = s.op("Relu", s.op("MatMul", value, f32(weight), name=f"product{i}"))
    x = rng.standard_normal((count, WIDTH)).astype(np.float32)
    return models.Ill(s.proto(value), {"x": x}, set())
