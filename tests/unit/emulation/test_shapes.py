"""The shapes that tensors have when a model runs."""

import numpy as np

from halfwise.emulation.shapes import seen_shapes
from tests.unit.graph.sketch import Sketch, f32


def test_shapes_are_those_of_the_sample():
    s = Sketch()
    x = s.input("x", ["n", 4])
    y = s.op("MatMul", x, f32(np.ones((4, 3))), name="product")
    z = s.op("ReduceMax", y, name="scalar", keepdims=0)
    network = s.network(y, z)
    shapes = seen_shapes(network, {"x": f32(np.ones((5, 4)))})
    assert shapes == {"x": (5, 4), "product_out": (5, 3), "scalar_out": ()}
