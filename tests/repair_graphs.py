"""Hypothesis strategy for FP32 models at scales that break FP16, with data, for rules of repair.

Every value that blocks pass on is f32[n, 4, 8]: streams, norms in one node and written out, chains
of convolutions and products, gates, attention with masks, logarithms, shared weights, bodies.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import TensorProto, helper

from tests.repairing import Arrays
from tests.unit.graph.sketch import Sketch, f32

ROWS, WIDTH = 4, 8
SIZES = (1e-6, 1e-3, 0.1, 1.0, 1.0, 30.0, 600.0, 3e4)
"""Of weights and gains."""
EPS = (1e-12, 1e-6, 1e-5, 1e-2, 10.0)
MASKS = (-1e4, -65_504.0, -1e9, -1e12, float(np.finfo(np.float32).min), -np.inf)


@dataclass(frozen=True)
class Drawn:
    """A model, what rules see of it, and data beyond that: larger, smaller, zero, other masks."""

    proto: onnx.ModelProto
    seen: list[Arrays]
    unseen: list[Arrays]


@dataclass
class _Sheet:
    draw: Callable[..., Any]
    random: np.random.Generator
    s: Sketch
    values: list[str] = field(default_factory=lambda: ["x"])
    weights: list[str] = field(default_factory=list)
    masked: bool = False

    def of(self, *options: Any) -> Any:
        return self.draw(st.sampled_from(options))

    def pick(self) -> str:
        """Return a value, the last one most of the time: graphs grow deep."""
        return str(self.of(*self.values, *[self.values[-1]] * 4))

    def weight(self, *shape: int) -> str:
        if shape == (WIDTH, WIDTH) and self.weights and self.draw(st.booleans()):
            return str(self.of(*self.weights))
        size = self.of(*SIZES) / np.sqrt(shape[0])
        name = self.s.constant(f32(size * self.random.standard_normal(shape)))
        if shape == (WIDTH, WIDTH):
            self.weights.append(name)
        return name

    def op(self, op: str, *read: Any, **attributes: Any) -> str:
        return self.s.op(op, *read, **attributes)

    def product(self, x: str) -> str:
        y = self.op("MatMul", x, self.weight(WIDTH, WIDTH))
        return self.op("Add", y, self.weight(WIDTH)) if self.draw(st.booleans()) else y


def _product(s: _Sheet, x: str) -> str:
    return s.product(x)


def _conv(s: _Sheet, x: str) -> str:
    bias = [s.weight(ROWS)] if s.draw(st.booleans()) else []
    y = s.op("Conv", x, s.weight(ROWS, ROWS, 3), *bias, pads=[1, 1])
    if not s.draw(st.booleans()):
        return y
    ones = [s.s.constant(f32(np.abs(s.random.standard_normal(ROWS)) + 0.1)) for _ in range(3)]
    large = s.s.constant(f32(s.of(1e-6, 1.0, 1e10) * np.ones(ROWS)))
    return s.op("BatchNormalization", y, *ones, large)


def _chain(s: _Sheet, x: str) -> str:
    first = s.op(s.of("Relu", "LeakyRelu", "Neg", "Abs"), s.product(x))
    return s.product(s.op("MaxPool", first, kernel_shape=[1]))


def _residual(s: _Sheet, x: str) -> str:
    branch = s.product(s.op("LayerNormalization", x, f32(np.ones(WIDTH)), axis=-1))
    return s.op("Add", x, s.op("Mul", branch, f32(s.of(*SIZES))))


def _norm(s: _Sheet, x: str) -> str:
    eps, gain = s.of(*EPS), s.weight(WIDTH)
    if s.draw(st.booleans()):
        return s.op("LayerNormalization", x, gain, s.weight(WIDTH), axis=-1, epsilon=eps)
    if s.draw(st.booleans()):
        x = s.op("Sub", x, s.op("ReduceMean", x, axes=[-1]))
    square = s.op("Pow", x, f32(2)) if s.draw(st.booleans()) else s.op("Mul", x, x)
    mean = s.op("ReduceMean", square, axes=[-1])
    root = s.op("Sqrt", s.op("Add", mean, f32(eps)))
    return s.op("Mul", s.op("Div", x, root), gain)


def _length(s: _Sheet, x: str) -> str:
    norm = s.op("ReduceL2", x, axes=[-1])
    return s.op("Div", x, s.op(s.of("Add", "Max"), norm, f32(s.of(*EPS))))


def _gate(s: _Sheet, x: str) -> str:
    return s.op("Mul", s.product(x), s.op(s.of("Sigmoid", "Tanh", "Relu"), s.product(x)))


def _logarithm(s: _Sheet, x: str) -> str:
    return s.op("Log", s.op("Add", s.op("Mul", x, x), f32(s.of(*EPS))))


def _softmax(s: _Sheet, x: str) -> str:
    if s.draw(st.booleans()):
        return s.op("Softmax", x, axis=-1)
    exp = s.op("Exp", s.op("Sub", x, s.op("ReduceMax", x, axes=[-1])))
    return s.op("Div", exp, s.op("ReduceSum", exp, [-1]))


def _attention(s: _Sheet, x: str) -> str:
    query, key = s.product(x), s.op("Transpose", s.product(x), perm=[0, 2, 1])
    scores = s.op("Mul", s.op("MatMul", query, key), f32(s.of(*SIZES)))
    if s.draw(st.booleans()):
        largest, s.masked = s.of(*MASKS), True
        if s.draw(st.booleans()):
            fill = s.op("Where", "hidden", f32(largest), f32(0))
        else:
            finite = max(largest, float(np.finfo(np.float32).min))
            fill = s.op("Mul", s.op("Cast", "hidden", to=1), f32(finite))
        scores = s.op("Add", scores, fill)
    return s.op("MatMul", s.op("Softmax", scores, axis=-1), x)


def _squash(s: _Sheet, x: str) -> str:
    return s.op(s.of("Sigmoid", "Tanh", "Erf", "Softplus"), x)


def _move(s: _Sheet, x: str) -> str:
    other = s.op("Transpose", s.pick(), perm=[0, 2, 1])
    halves = s.op("Slice", x, [0], [WIDTH // 2], [2])
    back = s.op("Transpose", other, perm=[0, 2, 1])
    rest = s.op("Slice", back, [WIDTH // 2], [WIDTH], [2])
    return s.op("Concat", halves, rest, axis=2)


def _add(s: _Sheet, x: str) -> str:
    return s.op(s.of("Add", "Sub", "Mul", "Max"), x, s.pick())


def _branch(s: _Sheet, x: str) -> str:
    other, name = s.pick(), f"If_{len(s.s.nodes)}"
    graphs = []
    for side, op, inner in (("then", "Add", other), ("else", "Mul", x)):
        y = f"{name}_{side}_y"
        node = helper.make_node(op, [x, inner], [y], name=f"{name}_{side}")
        given = helper.make_tensor_value_info(y, TensorProto.FLOAT, None)
        graphs.append(helper.make_graph([node], side, [], [given]))
    return s.op("If", "flag", name=name, then_branch=graphs[0], else_branch=graphs[1])


_BLOCKS = (
    *(_product, _conv, _chain, _residual, _residual, _norm, _norm, _length, _gate, _logarithm),
    *(_softmax, _attention, _attention, _squash, _move, _add, _branch),
)


@st.composite
def repair_graphs(draw: Callable[..., Any], most: int = 5) -> Drawn:
    """Draw a model of up to `most` blocks; now and then, values inside are outputs too."""
    random = np.random.default_rng(draw(st.integers(0, 2**16)))
    sheet = _Sheet(draw, random, Sketch())
    sheet.s.input("x", ["n", ROWS, WIDTH])
    sheet.s.input("hidden", [1, ROWS, ROWS], TensorProto.BOOL)
    sheet.s.input("flag", [], TensorProto.BOOL)
    for _ in range(draw(st.integers(1, most))):
        block = draw(st.sampled_from(_BLOCKS))
        sheet.values.append(block(sheet, sheet.pick()))
    read = {name for node in sheet.s.nodes for name in node.input}
    unread = [v for v in sheet.values[1:] if v not in read]
    inside = draw(st.sets(st.sampled_from(sheet.values[1:]), max_size=1))
    ends = dict.fromkeys((*unread, *inside, sheet.values[-1]))
    peak = draw(st.sampled_from((1e-3, 1.0, 1.0, 100.0)))
    hidden = random.random((1, ROWS, ROWS)) < 0.4
    hidden[:, 0] = draw(st.booleans())
    hidden[:, 1:, 0] = False

    def sample(factor: float, batch: int = 1) -> Arrays:
        x = f32(factor * peak * random.standard_normal((batch, ROWS, WIDTH)))
        x[:, -1] *= draw(st.sampled_from((0.0, 1.0, 1.0)))
        return {"x": x, "hidden": hidden, "flag": np.array(random.random() < 0.5)}

    seen = [sample(1.0), sample(1.0)]
    unseen = [sample(10.0, batch=2), sample(0.01), {**sample(1.0), "hidden": ~hidden}]
    return Drawn(sheet.s.proto(*ends), seen, unseen)
