"""normalisation."""

import numpy as np

from tests.models.illness import Ill, illness, signals
from tests.unit.graph.sketch import Sketch, f32


@illness(
    "Normalisation written out",
    "NVIDIA/TensorRT#2781",
    "NVIDIA/TensorRT#4355",
    "microsoft/onnxruntime#13639",
)
def layer_norm(peak: float = 5e3) -> Ill:
    """A written-out LayerNorm whose squares leave the range, and come back after the root."""
    s = Sketch()
    x = s.input("x", [1, 4, 32])
    mean = s.op("ReduceMean", x, name="mean", axes=[-1])
    centred = s.op("Sub", x, mean, name="centre")
    square = s.op("Pow", centred, f32(2.0), name="square")
    variance = s.op("ReduceMean", square, name="variance", axes=[-1])
    shifted = s.op("Add", variance, f32(1e-5), name="eps")
    root = s.op("Sqrt", shifted, name="root")
    y = s.op("Div", centred, root, name="divide")
    y = s.op("Mul", y, f32(np.linspace(0.5, 1.5, 32)), name="gamma")
    inputs = {"x": signals(1, 4, 32, seed=5, peak=peak)}
    return Ill(
        s.proto(y),
        inputs,
        frozenset({"square", "variance", "eps", "root"}),
        frozenset({"square", "overflow"}),
    )
