"""Convolutions whose weights are computed state the size of their kernel; others stay."""

import numpy as np
import pytest

from halfwise.fixing.int8.placing import quantisable, quantised
from halfwise.graph.quantisation.channels import (
    give_kernel_shapes,
    small_channels,
    without_kernel_shape,
)
from halfwise.graph.quantisation.pairs import pairs_of
from halfwise.records import TensorName
from tests.unit.graph.sketch import Sketch, f32

SIZES = f32([1, 1e-3, 0])
"""The largest weights of three output channels."""
SHAPES = {"Conv": (3, 2, 1, 1), "ConvTranspose": (2, 3, 1, 1), "Gemm": (3, 2), "MatMul": (2, 3)}
AXES = {"Conv": 0, "ConvTranspose": 1, "Gemm": 0, "MatMul": 1}


@pytest.mark.parametrize("op", SHAPES)
@pytest.mark.parametrize("stored", [True, False])
def test_channels_of_every_product(op, stored):
    axis, shape = AXES[op], SHAPES[op]
    places = [-1 if i == axis else 1 for i in range(len(shape))]
    weights = np.broadcast_to(SIZES.reshape(places), shape) * f32(0.5)
    s = Sketch(17)
    parameters = s.constant(0.5 / 2000), s.constant(np.zeros((), np.int16))
    scaled = np.rint(weights / (0.5 / 2000)).astype(np.int16)
    codes = s.constant(scaled) if stored else s.op("QuantizeLinear", weights, *parameters)
    s.opset = 21
    given = s.op("DequantizeLinear", codes, *parameters)
    rank = {"Conv": [1, 2, 4, 4], "ConvTranspose": [1, 2, 4, 4]}.get(op, [1, 2])
    attributes = {"transB": 1} if op == "Gemm" else {}
    network = s.network(s.op(op, s.input("x", rank), given, name="product", **attributes))
    (pair,) = pairs_of(network)
    ((node, slot),) = pair.readers
    times = small_channels(pair, node, slot)
    assert times is not None
    np.testing.assert_allclose(times, [1, 1000, 0], rtol=1e-3)
    assert small_channels(pair, node, 0) is None


@pytest.mark.parametrize(
    ("op", "shape", "attributes"),
    [("MatMul", (1, 2, 3), {}), ("ConvTranspose", (2, 3, 1, 1), {"group": 2})],
)
def test_what_gets_one_scale_is_not_told_to_have_one_per_channel(op, shape, attributes):
    s = Sketch(17)
    sizes = f32([1, 1 / 120, 0])  # One level is left of the second.
    weights = np.broadcast_to(sizes.reshape((3, 1, 1) if op != "MatMul" else 3), shape)
    x = s.input("x", [1, 2, 4, 4] if op != "MatMul" else [1, 4, 2])
    plain = s.network(s.op(op, x, np.ascontiguousarray(weights), **attributes))
    made = quantised(plain, quantisable(plain), {TensorName("x"): (-1.0, 1.0)})
    pair = next(pair for pair in pairs_of(made) if pair.source is None)
    ((node, slot),) = pair.readers
    assert pair.axis is None
    assert small_channels(pair, node, slot) is None


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
