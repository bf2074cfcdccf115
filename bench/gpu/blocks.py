"""Building blocks of current networks, with factors that do not change the function."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from bench.gpu.models import Made
from bench.gpu.writing import Writer

EPS = 1e-5
CALIBRATION, HELDOUT = 8, 4
COUNT = CALIBRATION + HELDOUT
WIDE = 2.0**17
"""Moves values of about 1 out of FP16's range; powers of two round nothing."""


class Blocks(Writer):
    """Building blocks of current networks, written out as exporters do."""

    def linear(
        self,
        name: str,
        x: str,
        channels: tuple[int, int],
        *,
        scale: tuple[float, float] = (1.0, 1.0),
        gain: float = 1.0,
    ) -> str:
        """Add x @ weight + bias; `scale` multiplies weight and bias."""
        fan_in, fan_out = channels
        weight = self.rng.standard_normal(channels) * gain / math.sqrt(fan_in)
        bias = self.rng.standard_normal(fan_out) * 0.05
        product = self.op(
            "MatMul", f"{name}/MatMul", x, self.constant(f"{name}.w", weight * scale[0])
        )
        return self.op("Add", f"{name}/Add", product, self.constant(f"{name}.b", bias * scale[1]))

    def conv(
        self,
        name: str,
        x: str,
        channels: tuple[int, int],
        *,
        side: int = 3,
        stride: int = 1,
        axes: int = 2,
        factor: float = 1.0,
        reading: float = 1.0,
        pad: int | None = None,
        group: int = 1,
    ) -> str:
        """Add a convolution with a bias; `factor` multiplies both, `reading` the weight."""
        fan_in, fan_out = channels[0] // group, channels[1]
        sides = [side] * axes
        deviation = math.sqrt(2 / (fan_in * side**axes))
        weight = self.rng.standard_normal((fan_out, fan_in, *sides)) * deviation
        bias = self.rng.standard_normal(fan_out) * 0.05
        return self.op(
            "Conv",
            f"{name}/Conv",
            x,
            self.constant(f"{name}.w", weight * factor * reading),
            self.constant(f"{name}.b", bias * factor),
            **({} if group == 1 else {"group": group}),
            kernel_shape=sides,
            strides=[stride] * axes,
            pads=[side // 2 if pad is None else pad] * (2 * axes),
        )

    def layer_norm(self, name: str, x: str, dim: int, *, gamma: np.ndarray | float = 1.0) -> str:
        """Add a LayerNorm of the last axis, written out; `gamma` multiplies its result."""
        drawn = 1 + 0.1 * self.rng.standard_normal(dim), 0.1 * self.rng.standard_normal(dim)
        y = self.normalised(name, x, [-1])
        y = self.op("Mul", f"{name}/Mul", y, self.constant(f"{name}.gamma", drawn[0] * gamma))
        return self.op("Add", f"{name}/Add_1", y, self.constant(f"{name}.beta", drawn[1] * gamma))

    def normalised(self, name: str, x: str, axes: Sequence[int], eps: float = EPS) -> str:
        """Add nodes that subtract the mean over `axes` and divide by the deviation."""
        mean = self.op("ReduceMean", f"{name}/ReduceMean", x, axes=list(axes), keepdims=1)
        centred = self.op("Sub", f"{name}/Sub", x, mean)
        square = self.op("Pow", f"{name}/Pow", centred, self.constant(f"{name}.two", 2.0))
        variance = self.op(
            "ReduceMean", f"{name}/ReduceMean_1", square, axes=list(axes), keepdims=1
        )
        added = self.op("Add", f"{name}/Add", variance, self.constant(f"{name}.eps", eps))
        return self.op("Div", f"{name}/Div", centred, self.op("Sqrt", f"{name}/Sqrt", added))

    def group_norm(
        self, name: str, x: str, shape: Sequence[int], groups: int, *, factor: float = 1.0
    ) -> str:
        """Add a GroupNorm of [1, channels, height, width]; x is `factor` × the true input."""
        y = self.op("Reshape", f"{name}/Reshape", x, self.integers(f"{name}.in", [1, groups, -1]))
        y = self.normalised(name, y, [-1], EPS * factor**2)
        y = self.op("Reshape", f"{name}/Reshape_1", y, self.integers(f"{name}.out", shape))
        gamma = self.drawn(f"{name}.gamma", shape[1], 1, 1, deviation=0.1, mean=1.0)
        beta = self.drawn(f"{name}.beta", shape[1], 1, 1, deviation=0.1)
        return self.op("Add", f"{name}/Add_1", self.op("Mul", f"{name}/Mul", y, gamma), beta)

    def gelu(self, name: str, x: str) -> str:
        """Add x (1 + erf(x / √2)) / 2."""
        root = self.constant(f"{name}.root", math.sqrt(2))
        y = self.op("Erf", f"{name}/Erf", self.op("Div", f"{name}/Div", x, root))
        y = self.op("Add", f"{name}/Add", y, self.constant(f"{name}.one", 1.0))
        y = self.op("Mul", f"{name}/Mul", x, y)
        return self.op("Mul", f"{name}/Mul_1", y, self.constant(f"{name}.half", 0.5))

    def silu(self, name: str, x: str, slope: float = 1.0) -> str:
        """Add x · sigmoid(slope · x)."""
        inner = x
        if slope != 1:
            inner = self.op("Mul", f"{name}/Mul", x, self.constant(f"{name}.slope", slope))
        gate = self.op("Sigmoid", f"{name}/Sigmoid", inner)
        return self.op("Mul", f"{name}/Mul_1", x, gate)

    def heads(self, name: str, x: str, shape: Sequence[int], perm: Sequence[int]) -> str:
        """Add a Reshape and a Transpose."""
        y = self.op("Reshape", f"{name}/Reshape", x, self.integers(f"{name}.shape", shape))
        return self.op("Transpose", f"{name}/Transpose", y, perm=list(perm))

    def attention(
        self,
        name: str,
        sides: tuple[str, str],
        sizes: tuple[int, int, int],
        heads: int,
        *,
        batch: int = 1,
        mask: str = "",
        scores: float = 1.0,
        values: float = 1.0,
        reading: np.ndarray | float = 1.0,
    ) -> str:
        """Add multi-head attention of [batch, tokens, dim].

        Args:
            name: Scope of its nodes.
            sides: Input of the queries; input of the keys and values.
            sizes: Tokens of both, and dim.
            heads: Number of heads.
            batch: Number of sequences.
            mask: Tensor added to the scores; empty for none.
            scores: Factor on q and k; their product is divided by its square.
            values: Factor on the values; the weights that read them are divided by it.
            reading: Factors on the rows of the weights that read `sides`, [dim].
        """
        (asking, asked), (own, other, dim) = sides, sizes
        split, width = (0, 2, 1, 3), dim // heads
        rows = np.broadcast_to(np.asarray(reading, np.float64).reshape(-1, 1), (dim, 1))
        parts = {}
        for part, x, tokens, factor in (
            ("q", asking, own, scores),
            ("k", asked, other, scores),
            ("v", asked, other, values),
        ):
            weight = self.rng.standard_normal((dim, dim)) / math.sqrt(dim) * rows * factor
            y = self.op(
                "MatMul", f"{name}/{part}/MatMul", x, self.constant(f"{name}.{part}.w", weight)
            )
            bias = 0.05 * factor * self.rng.standard_normal(dim)
            y = self.op("Add", f"{name}/{part}/Add", y, self.constant(f"{name}.{part}.b", bias))
            perm = (0, 2, 3, 1) if part == "k" else split
            parts[part] = self.heads(f"{name}/{part}", y, [batch, tokens, heads, width], perm)
        y = self.op("MatMul", f"{name}/MatMul", parts["q"], parts["k"])
        scale = self.constant(f"{name}.scale", 1 / math.sqrt(width) / scores**2)
        y = self.op("Mul", f"{name}/Mul", y, scale)
        if mask:
            y = self.op("Add", f"{name}/Add", y, mask)
        y = self.op("Softmax", f"{name}/Softmax", y, axis=-1)
        y = self.op("MatMul", f"{name}/MatMul_1", y, parts["v"])
        y = self.op("Transpose", f"{name}/Transpose", y, perm=list(split))
        y = self.op(
            "Reshape", f"{name}/Reshape", y, self.integers(f"{name}.back", [batch, own, dim])
        )
        return self.linear(f"{name}/proj", y, (dim, dim), scale=(1 / values, 1.0), gain=0.5)

    def ffn(
        self, name: str, x: str, dim: int, hidden: int, *, act: str = "gelu", factor: float = 1.0
    ) -> str:
        """Add two layers with `act` between them; with "relu" the values between are × `factor`."""
        y = self.linear(f"{name}/fc1", x, (dim, hidden), scale=(factor, factor))
        if act == "relu":
            y = self.op("Relu", f"{name}/Relu", y)
        else:
            y = (
                self.gelu(f"{name}/gelu", y)
                if act == "gelu"
                else self.silu(f"{name}/silu", y, 1.702)
            )
        return self.linear(f"{name}/fc2", y, (hidden, dim), scale=(1 / factor, 1.0), gain=0.5)

    def add(self, name: str, x: str, y: str) -> str:
        """Add a residual sum."""
        return self.op("Add", f"{name}/residual", x, y)

    def made(
        self,
        name: str,
        arrays: Mapping[str, np.ndarray],
        outputs: Mapping[str, tuple[str, Sequence[int]]],
        opset: int,
    ) -> Made:
        """Return the network with arrays [`COUNT`, *input shape]; the last are held out."""
        shapes = {n: a.shape[1:] for n, a in arrays.items()}
        integers = [n for n, a in arrays.items() if a.dtype == np.int32]
        model = self.model(name, shapes, outputs, opset=opset, integers=integers)
        return Made(
            model,
            {n: a[:CALIBRATION] for n, a in arrays.items()},
            {n: a[CALIBRATION:] for n, a in arrays.items()},
        )
