"""A folder of a tiny model with its inputs."""

import numpy as np
import onnx
import pytest

from tests import models
from tests.unit.graph.sketch import Sketch


def scaled() -> models.Ill:
    """x · 4096 times weights that take the factor back, over its root mean square."""
    sketch = Sketch()
    x = sketch.op("Mul", sketch.input("x", [1, 16]), 4096.0, name="factor")
    weights = models.weights(16, 16, seed=3, scale=0.25) / np.float32(4096.0)
    x = sketch.op("MatMul", x, weights, name="product")
    x = sketch.op("Mul", x, 20.0, name="larger")
    mean = sketch.op("ReduceMean", sketch.op("Mul", x, x, name="square"), axes=[1], name="mean")
    y = sketch.op("Div", x, sketch.op("Sqrt", mean, name="root"), name="norm")
    return models.Ill(sketch.proto(y), {"x": models.signals(1, 16, seed=1, peak=100)})


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "scaled"
    made.mkdir()
    onnx.save(scaled().proto, made / "model.onnx")
    np.savez(made / "inputs.npz", **scaled().inputs)  # type: ignore[arg-type]
    return made
