"""Models that have kept a size of their export."""

import numpy as np

from halfwise.graph.model import Network
from tests.unit.graph.sketch import Sketch, f32

RNG = np.random.default_rng(3)
WIDTH, LENGTH = 8, 6


def frozen_batch(size: int = 2, *, pooled: bool = False) -> Sketch:
    """Return a model with heads split for batches of `size`; optionally pooled by row number.

    Input `x` f32[n, 6, 8]; the output is that of the last node.
    """
    sketch = Sketch()
    x = sketch.input("x", ["n", LENGTH, WIDTH])
    mixed = sketch.op("MatMul", x, _weights(), name="mix")
    heads = sketch.op("Reshape", mixed, [size, LENGTH, 2, -1], name="split")
    turned = sketch.op("Transpose", heads, perm=[0, 1, 3, 2], name="turn")
    joined = sketch.op("Reshape", turned, [size, LENGTH, -1], name="join")
    last = sketch.op("MatMul", joined, _weights(), name="last")
    if pooled:
        # As x[arange(size), 1] is exported.
        rows = sketch.op("Mul", np.arange(size), np.asarray(LENGTH), name="rows")
        flat = sketch.op("Reshape", last, [-1, WIDTH], name="flat")
        picked = sketch.op("Add", rows, np.asarray(1), name="picked")
        sketch.op("Gather", flat, picked, name="pool", axis=0)
    return sketch


def frozen_length() -> Sketch:
    """Return a model whose second axis `t` is dynamic by name alone; input `x` f32[1, t, 8]."""
    sketch = Sketch()
    x = sketch.input("x", [1, "t", WIDTH])
    mixed = sketch.op("MatMul", x, _weights(), name="mix")
    heads = sketch.op("Reshape", mixed, [1, LENGTH, 2, 4], name="split")
    sketch.op("Relu", heads, name="last")
    return sketch


def network(sketch: Sketch) -> Network:
    return sketch.network(sketch.nodes[-1].output[0])


def _weights() -> np.ndarray:
    return f32(RNG.normal(size=(WIDTH, WIDTH)) / 3)
