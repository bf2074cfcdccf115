"""Convolutions whose weights are computed state the size of their kernel; others stay."""

import numpy as np
import pytest

from halfwise.graph.quantisation.kernel_shapes import give_kernel_shapes, without_kernel_shape
from tests.unit.graph.sketch import Sketch


@pytest.mark.parametrize("kernel", [(2,), (3, 1), (1, 2, 3)])
def test_what_is_missing_is_given(kernel):
    s = Sketch()
    x = s.input("x", [1, 2, *[6] * len(kernel)])
    weights = np.ones((4, 2, *kernel), np.float32)
    computed = s.op("Conv", x, s.op("Identity", weights), name="computed")
    constant = s.op("Conv", x, weights, name="constant")
    given = s.op("Conv", x, s.op("Neg", weights), name="given", kernel_shape=list(kernel))
    open_ = s.op("Conv", x, s.input("w", [4, 2, *["k"] * len(kernel)]), name="open")
    network = s.network(computed, constant, given, open_)
    assert [n.name for n in without_kernel_shape(network.graph)] == ["computed"]
    give_kernel_shapes(network.graph)
    told = {n.name: n.attributes.get_ints("kernel_shape", ()) for n in network.graph}
    assert told["computed"] == told["given"] == kernel
    assert told["constant"] == told["open"] == ()
