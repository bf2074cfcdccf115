"""selection."""

import numpy as np

from tests.models.illness import COUNT, Ill, illness
from tests.unit.graph.sketch import Sketch, f32


@illness("Near choices")
def arg_max() -> Ill:
    """The class with the largest of ten scores that differ by less than FP16's spacing."""
    s = Sketch()
    x = s.input("x", [1, 64, 8])
    basis = np.random.default_rng(14).normal(size=(8, 10))
    basis -= basis.mean(axis=0)
    scores = s.op("MatMul", x, f32(12.5 + 0.004 * basis), name="scores")
    y = s.op("ArgMax", scores, name="choose", axis=-1, keepdims=0)
    generator = np.random.default_rng(15)
    inputs = {"x": f32(1 + 0.3 * generator.normal(size=(COUNT, 1, 64, 8)))}
    return Ill(
        s.proto(y),
        inputs,
        frozenset({"scores", "choose"}),
        frozenset({"margin"}),
    )
