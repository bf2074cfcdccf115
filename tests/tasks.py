"""Models whose outputs have a task that is recognised, and what `fix` finds of a model."""

import numpy as np

from halfwise.fixing.fixed import Fixed
from halfwise.fixing.loop import fix
from halfwise.options.loading import load_case
from halfwise.options.options import understand
from halfwise.progress import Silent
from tests import models
from tests.unit.graph.sketch import Sketch, f32


def fixed(ill: models.Ill, **options: object) -> Fixed:
    """What `fix` finds of a model, before anything is stored."""
    request = understand(dict(ill.inputs), options)
    case = load_case(ill.proto, request.data, request.criterion)
    return fix(case, request.settings, Silent())


def classifier(count: int = 12, seed: int = 1) -> models.Ill:
    """Class probabilities, which no plan gives exactly but the original."""
    sketch, random = Sketch(), np.random.default_rng(seed)
    x = sketch.input("x", [1, 16])
    scores = sketch.op("MatMul", x, f32(random.normal(size=(16, 10))), name="dense")
    bent = sketch.op("Tanh", sketch.op("Mul", scores, f32(0.5), name="scale"), name="bend")
    y = sketch.op("Softmax", bent, axis=-1, name="probs")
    return models.Ill(sketch.proto(y), {"x": models.signals(1, 16, seed=2, count=count)})


def overflowing_classifier(count: int = 12) -> models.Ill:
    """Class probabilities that hardly change where squares on the way overflow."""
    sketch, random = Sketch(), np.random.default_rng(1)
    x = sketch.input("x", [1, 16])
    large = sketch.op("Mul", x, f32(2000.0), name="large")
    square = sketch.op("Mul", large, large, name="square")
    root = sketch.op("Sqrt", sketch.op("ReduceMean", square, name="mean"), name="root")
    little = sketch.op("Mul", sketch.op("Div", large, root, name="norm"), f32(1e-3), name="little")
    weights = f32(random.normal(size=(16, 10)))
    inner = sketch.op("MatMul", sketch.op("Add", x, little, name="sum"), weights, name="dense")
    y = sketch.op("Softmax", inner, axis=-1, name="probs")
    return models.Ill(sketch.proto(y), {"x": models.signals(1, 16, seed=2, count=count)})


def close_calls(count: int = 12) -> models.Ill:
    """Class probabilities whose order rounding changes, but on every fourth sample."""
    sketch, random = Sketch(), np.random.default_rng(1)
    x, weights = sketch.input("x", [1, 16]), random.normal(size=(16, 10))
    scores = sketch.op("MatMul", x, f32(weights), name="dense")
    raised = sketch.op("Add", scores, f32(100.0), name="up")
    lowered = sketch.op("Sub", raised, f32(100.0), name="down")
    y = sketch.op("Softmax", lowered, axis=-1, name="probs")
    return models.Ill(sketch.proto(y), {"x": _by_gap(weights, count)})


def _by_gap(weights: np.ndarray, count: int) -> np.ndarray:
    every = models.signals(1, 16, seed=2, count=400)
    scores = np.sort(every[:, 0] @ np.asarray(weights), axis=-1)
    order = np.argsort(scores[:, -1] - scores[:, -2])
    close, far = iter(order), iter(order[::-1])
    return every[[next(far if i % 4 == 3 else close) for i in range(count)]]


def pricing_classifier(count: int = 12, scale: float = 1e4) -> models.Ill:
    """Class probabilities, and an output that overflows on the first sample, which is searched."""
    sketch, random = Sketch(), np.random.default_rng(1)
    x = sketch.input("x", [1, 16])
    scores = sketch.op("MatMul", x, f32(random.normal(size=(16, 10))), name="dense")
    probs = sketch.op("Softmax", scores, axis=-1, name="probs")
    price = sketch.op("Mul", x, f32(scale), name="price")
    inputs = models.signals(1, 16, seed=2, count=count)
    inputs[0] *= 12 / np.abs(inputs[0]).max()
    return models.Ill(sketch.proto(probs, price), {"x": inputs})
