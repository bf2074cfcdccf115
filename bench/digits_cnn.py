"""A small mobile CNN for scikit-learn's digits, trained here in NumPy.

    python -m bench.digits_cnn OUT.onnx

Depthwise and pointwise convolutions with BatchNormalization and ReLU, one residual; about 20 s.
Fixed seeds; the images and their order are those of `examples/digits/train.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from tests.unit.graph.sketch import Sketch

Array = NDArray[Any]
"""Of FP32."""
SEED = 0
TRAIN = 1437
EPOCHS, BATCH, RATE = 30, 64, 4e-3
MOMENTUM, EPSILON = 0.9, 1e-5
BLOCKS = ((16, 32, 2), (32, 48, 1), (48, 48, 1))
"""Channels in and out and stride; the last one has a residual."""


@dataclass(frozen=True)
class Split:
    """Images f32[n, 1, 8, 8] in [-1, 1], labels i64[n]."""

    images: Array
    labels: NDArray[np.int64]


def load_split() -> tuple[Split, Split]:
    """Return training and test images; no image is in both."""
    digits = load_digits()
    images = (digits.images[:, None] / 8.0 - 1.0).astype(np.float32)
    labels = digits.target.astype(np.int64)
    order = np.random.default_rng(SEED).permutation(len(images))
    train, test = order[:TRAIN], order[TRAIN:]
    return Split(images[train], labels[train]), Split(images[test], labels[test])


@dataclass
class Network:
    """Parameters, their gradients, and the steps of the backward pass."""

    parameters: dict[str, Array] = field(default_factory=dict)
    running: dict[str, Array] = field(default_factory=dict)
    gradients: dict[str, Array] = field(default_factory=dict)
    tape: list[Callable[[Array], Array]] = field(default_factory=list)

    def conv(self, x: Array, name: str, stride: int = 1) -> Array:
        """Return a 3 × 3 convolution, depthwise if the weights are f32[3, 3, channels]."""
        w, shape = self.parameters[name], x.shape
        padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))

        def shifted(of: Array, i: int, j: int) -> Array:
            return of[:, i : i + shape[1] : stride, j : j + shape[2] : stride]

        def product(one: Array, weights: Array) -> Array:
            return one * weights if w.ndim == 3 else one @ weights

        made: Array = np.add.reduce(
            [product(shifted(padded, i, j), w[i, j]) for i, j in np.ndindex(3, 3)]
        )

        def back(g: Array) -> Array:
            given, self.gradients[name] = np.zeros_like(padded), np.zeros_like(w)
            for i, j in np.ndindex(3, 3):
                self.gradients[name][i, j] = _gradient(shifted(padded, i, j), g, deep=w.ndim == 3)
                place = shifted(given, i, j)
                place += product(g, w[i, j].T)
            return given[:, 1:-1, 1:-1]

        self.tape.append(back)
        return made

    def pointwise(self, x: Array, name: str) -> Array:
        """Return a 1 × 1 convolution."""
        w = self.parameters[name]

        def back(g: Array) -> Array:
            self.gradients[name] = _gradient(x, g, deep=False)
            return g @ w.T

        self.tape.append(back)
        return x @ w

    def norm(self, x: Array, name: str, *, train: bool) -> Array:
        """Return a BatchNormalization and a ReLU."""
        axes = (0, 1, 2)
        if train:
            mean, variance = x.mean(axes), x.var(axes)
            for key, seen in ((f"{name}.mean", mean), (f"{name}.var", variance)):
                before = self.running.get(key, seen)
                self.running[key] = MOMENTUM * before + (1 - MOMENTUM) * seen
        else:
            mean, variance = self.running[f"{name}.mean"], self.running[f"{name}.var"]
        scale, bias = self.parameters[f"{name}.scale"], self.parameters[f"{name}.bias"]
        width = 1 / np.sqrt(variance + EPSILON)
        normal = (x - mean) * width
        made: Array = np.maximum(normal * scale + bias, 0)

        def back(g: Array) -> Array:
            g = g * (made > 0)
            self.gradients[f"{name}.scale"] = (g * normal).sum(axes)
            self.gradients[f"{name}.bias"] = g.sum(axes)
            inner = g * scale
            centred = inner - inner.mean(axes)
            return np.asarray(width * (centred - normal * (inner * normal).mean(axes)))

        self.tape.append(back)
        return made

    def run(self, images: Array, *, train: bool = False) -> Array:
        """Return the logits f32[n, 10]."""
        self.tape.clear()
        x = self.norm(self.conv(images.transpose(0, 2, 3, 1), "stem"), "stem.norm", train=train)
        for i, (into, out, stride) in enumerate(BLOCKS):
            given = x
            x = self.norm(self.conv(x, f"b{i}.deep", stride), f"b{i}.deep.norm", train=train)
            x = self.norm(self.pointwise(x, f"b{i}.point"), f"b{i}.point.norm", train=train)
            if into == out and stride == 1:
                x = self._residual(x, given)
        pooled, size = x.mean((1, 2)), x.shape
        w, b = self.parameters["head"], self.parameters["head.bias"]

        def back(g: Array) -> Array:
            self.gradients["head"], self.gradients["head.bias"] = g.T @ pooled, g.sum(0)
            each = (g @ w)[:, None, None] / (size[1] * size[2])
            return np.broadcast_to(each, size)

        self.tape.append(back)
        return np.asarray(pooled @ w.T + b)

    def _residual(self, x: Array, given: Array) -> Array:
        inner, self.tape[-4:] = self.tape[-4:], []

        def back(g: Array) -> Array:
            through = g
            for step in reversed(inner):
                through = step(through)
            return through + g

        self.tape.append(back)
        return x + given


def _gradient(x: Array, g: Array, *, deep: bool) -> Array:
    if deep:
        return np.asarray((x * g).sum((0, 1, 2)))
    return x.reshape(-1, x.shape[-1]).T @ g.reshape(-1, g.shape[-1])


def drawn(rng: np.random.Generator) -> Network:
    """Return a network before training."""
    net = Network()

    def normed(name: str, shape: tuple[int, ...]) -> None:
        fan_in = 9 if len(shape) == 3 else np.prod(shape[:-1])
        net.parameters[name] = rng.normal(0, np.sqrt(2 / fan_in), shape).astype(np.float32)
        net.parameters[f"{name}.norm.scale"] = np.ones(shape[-1], np.float32)
        net.parameters[f"{name}.norm.bias"] = np.zeros(shape[-1], np.float32)

    normed("stem", (3, 3, 1, BLOCKS[0][0]))
    for i, (into, out, _) in enumerate(BLOCKS):
        normed(f"b{i}.deep", (3, 3, into))
        normed(f"b{i}.point", (into, out))
    net.parameters["head"] = rng.normal(0, 0.1, (10, BLOCKS[-1][1])).astype(np.float32)
    net.parameters["head.bias"] = np.zeros(10, np.float32)
    return net


def train(split: Split) -> Network:
    """Return a network trained with Adam, a decaying rate, and shifts of up to one pixel."""
    rng = np.random.default_rng(SEED)
    net = drawn(rng)
    first = {name: np.zeros_like(p) for name, p in net.parameters.items()}
    second = {name: np.zeros_like(p) for name, p in net.parameters.items()}
    padded = np.pad(split.images, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=-1.0)
    steps, t = EPOCHS * (len(split.images) // BATCH), 0
    for _ in range(EPOCHS):
        order = rng.permutation(len(split.images))
        for start in range(0, len(order) - BATCH + 1, BATCH):
            rows, (dy, dx) = order[start : start + BATCH], rng.integers(0, 3, 2)
            logits = net.run(padded[rows, :, dy : dy + 8, dx : dx + 8], train=True)
            share = np.exp(logits - logits.max(1, keepdims=True))
            share /= share.sum(1, keepdims=True)
            share[np.arange(BATCH), split.labels[rows]] -= 1
            g = share / BATCH
            for step in reversed(net.tape):
                g = step(g)
            t += 1
            rate = RATE * (1 - t / steps)
            for name in net.parameters:
                grad = net.gradients[name]
                first[name] = 0.9 * first[name] + 0.1 * grad
                second[name] = 0.999 * second[name] + 0.001 * grad**2
                m, v = first[name] / (1 - 0.9**t), second[name] / (1 - 0.999**t)
                net.parameters[name] -= (
                    rate * (m / (np.sqrt(v) + 1e-8) + 1e-4 * net.parameters[name])
                ).astype(np.float32)
    return net


def _as_onnx(w: Array) -> Array:
    """Return weights as f32[out, in of its group, height, width]."""
    if w.ndim == 2:
        return np.ascontiguousarray(w.T[:, :, None, None])
    return np.ascontiguousarray(
        w.transpose(3, 2, 0, 1) if w.ndim == 4 else w.transpose(2, 0, 1)[:, None]
    )


def written(net: Network) -> onnx.ModelProto:
    """Return it as ONNX: images f32[batch, 1, 8, 8] → logits f32[batch, 10]."""
    s = Sketch(17)
    p = net.parameters

    def normed(x: str, name: str, **how: object) -> str:
        x = s.op("Conv", x, _as_onnx(p[name]), name=name, **how)
        seen = (net.running[f"{name}.norm.{what}"].astype(np.float32) for what in ("mean", "var"))
        own = (p[f"{name}.norm.scale"], p[f"{name}.norm.bias"])
        x = s.op("BatchNormalization", x, *own, *seen, name=f"{name}/norm", epsilon=EPSILON)
        return s.op("Relu", x, name=f"{name}/relu")

    x = normed(s.input("images", ["batch", 1, 8, 8]), "stem", pads=[1] * 4)
    for i, (into, out, stride) in enumerate(BLOCKS):
        given = x
        x = normed(x, f"b{i}.deep", pads=[1] * 4, group=into, strides=[stride] * 2)
        x = normed(x, f"b{i}.point")
        if into == out and stride == 1:
            x = s.op("Add", x, given, name=f"b{i}/add")
    x = s.op("Flatten", s.op("GlobalAveragePool", x, name="pool"), name="flat")
    return s.proto(s.op("Gemm", x, p["head"], p["head.bias"], name="head", transB=1))


def main(out: Path) -> None:
    """Train the network, print its accuracy, and write it."""
    given, test = load_split()
    net = train(given)
    right = (net.run(test.images).argmax(1) == test.labels).mean()
    print(f"test accuracy {right:.4f} on {len(test.labels)} images")
    onnx.save(written(net), out)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
