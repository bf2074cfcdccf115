"""Only a sum that a convolution's kernel can compute is a residual."""

import numpy as np
import pytest

from halfwise.graph.quantisation.residuals import residuals
from halfwise.records import NodeName
from tests.unit.graph.sketch import Sketch, f32

WEIGHT = f32(np.ones((2, 2, 1, 1)))


def conv(s: Sketch, x: str, name: str) -> str:
    return s.op("Conv", x, WEIGHT, name=name)


def block(kind: str, shape: list[int | str]) -> Sketch:
    s = Sketch(17)
    x = s.op("Relu", s.input("x", shape), name="start")
    y = conv(s, s.op("Relu", conv(s, x, "first"), name="act"), "second")
    if kind == "norm":
        y = s.op("BatchNormalization", y, *[f32(np.ones(2))] * 4, name="norm")
    if kind == "activation":
        y = s.op("Relu", y, name="last")
    other: str | np.ndarray = x
    if kind == "shortcut":
        other = conv(s, x, "shortcut")
    if kind == "bias":
        other = f32(np.ones((1, 2, 1, 1)))
    if kind == "broadcast":
        other = s.op("GlobalAveragePool", x, name="pool")
    total = s.op("Add", other, y, name="sum")
    if kind == "read twice":
        total = s.op("Mul", total, y, name="twice")
    s.op("Relu", total, name="end")
    return s


@pytest.mark.parametrize("shape", [[1, 2, 4, 4], ["n", 2, "h", "w"]])
@pytest.mark.parametrize(
    ("kind", "found"),
    [
        ("identity", {"sum": ("second", 0)}),
        ("norm", {"sum": ("second", 0)}),
        ("shortcut", {"sum": ("second", 0)}),
        ("activation", {}),
        ("bias", {}),
        ("broadcast", {}),
        ("read twice", {}),
    ],
)
def test_what_a_kernel_adds(kind, found, shape):
    s = block(kind, shape)
    assert residuals(s.network(s.nodes[-1].output[0])) == found


def test_convolutions_that_do_not_count():
    s = block("shortcut", [1, 2, 4, 4])
    network = s.network(s.nodes[-1].output[0])
    assert residuals(network, {NodeName("shortcut")}) == {"sum": ("shortcut", 1)}
    assert residuals(network, ()) == {}
