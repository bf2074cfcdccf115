"""Small pictures and a small network that looks at their colours and shapes."""

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_sample_images

from halfwise.case import Samples
from tests.unit.graph.sketch import Sketch, f32

SIDE, COUNT = 24, 5
MEAN = np.array([0.485, 0.456, 0.406])[:, None, None]
DEVIATION = np.array([0.229, 0.224, 0.225])[:, None, None]
RNG = np.random.default_rng(7)
_WEIGHTS = [RNG.normal(size=(8, 3, 3, 3)) / 3, RNG.normal(size=(6, 8, 3, 3)) / 5]
_HEAD = RNG.normal(size=(6, 10)) / 2


def pictures(count: int = COUNT) -> NDArray[np.float64]:
    """Return crops of photos, f64[count, 3, 24, 24] of whole numbers from 0 to 255, in RGB."""
    photos = load_sample_images()["images"]
    places = np.random.default_rng(1).integers(0, 200, (count, 2))
    cuts = [
        photos[i % 2][a : a + 5 * SIDE : 5, b : b + 5 * SIDE : 5] for i, (a, b) in enumerate(places)
    ]
    return np.stack(cuts).transpose(0, 3, 1, 2).astype(np.float64)


def samples(arrays: NDArray[np.float64]) -> Samples:
    """Return each array as one sample of the input `images`."""
    return Samples(tuple(f"s{i}" for i in range(len(arrays))), lambda i: {"images": one(arrays[i])})


def one(array: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return a picture as a batch of one, f32."""
    return np.ascontiguousarray(array[None], np.float32)


def imagenet(pixels: NDArray[np.float64]) -> NDArray[np.float64]:
    normalised: NDArray[np.float64] = (pixels / 255 - MEAN) / DEVIATION
    return normalised


def sketch(outputs: int = 10, *, head: float = 1.0) -> Sketch:
    """Return a network from `images` f32[n, 3, 24, 24] to `scores` f32[n, outputs]."""
    made = Sketch()
    x = made.input("images", ["n", 3, SIDE, SIDE])
    for i, weights in enumerate(_WEIGHTS):
        x = made.op("Conv", x, f32(weights), name=f"conv{i}", strides=[2, 2], pads=[1, 1, 1, 1])
        x = made.op("Sigmoid", x, name=f"act{i}") if i else made.op("Relu", x, name=f"act{i}")
    pooled = made.op("ReduceMean", x, name="pool", axes=[2, 3], keepdims=0)
    made.op("MatMul", pooled, f32(head * _HEAD[:, :outputs]), name="scores")
    return made


OUTPUT = "scores_out"
