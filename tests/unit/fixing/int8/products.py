"""Models of products of which INT8 is enough for some."""

import numpy as np

from halfwise.case import Samples
from halfwise.fixing.int8.placing import peaks
from halfwise.formats import FP16
from halfwise.graph.model import Network
from halfwise.graph.roles import roles_of
from halfwise.observing.reference import observe_network
from halfwise.records import TensorName
from tests import models
from tests.unit.graph.sketch import Sketch, f32

WIDTH = 32
LAYERS = 4


def peaks_of(network: Network, samples: Samples) -> dict[TensorName, float]:
    """Return what decides the scales of tensors, as seen on samples."""
    return peaks(observe_network(network, samples, FP16, roles=roles_of(network))[0])


def residual(at: str = "", count: int = 12) -> models.Ill:
    """A convolution with a residual, one behind it, and a classifier.

    The residual ("sum"), or the input of the convolution that it is added to ("second"), has a
    channel 500 × as large as the others, that is worth nothing.
    """
    rng = np.random.default_rng(0)
    s = Sketch(17)

    def conv(value: str, name: str) -> str:
        weight = rng.standard_normal((8, 8, 3, 3)).astype(np.float32) / 6
        weight[:, 0] = 0
        return s.op("Conv", value, weight, name=name, pads=[1] * 4)

    def widened(value: str, name: str) -> str:
        wide = f32(np.eye(1, 8)[0].reshape(8, 1, 1) * 500)
        return s.op("Add", value, wide, name=f"{name}_wide") if at == name else value

    x = s.input("x", ["n", 8, 4, 4])
    start = s.op("Relu", x, name="start")
    branch = conv(widened(s.op("Relu", conv(start, "first"), name="act"), "second"), "second")
    y = s.op("Relu", s.op("Add", widened(start, "sum"), branch, name="sum"), name="end")
    if at == "sum":
        y = s.op("Mul", y, f32(1 - np.eye(1, 8)[0].reshape(8, 1, 1)), name="masked")
    y = s.op("Flatten", conv(y, "next"), name="flat")
    y = s.op("Gemm", y, rng.standard_normal((128, 4)).astype(np.float32) / 8, name="head")
    return models.Ill(s.proto(y), {"x": f32(rng.standard_normal((count, 8, 4, 4)))}, set())


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
