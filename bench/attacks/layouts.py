"""Models with the outputs of published ones, made of parts that can be broken one at a time.

A layout is the form of a network's outputs: the tensors, their content and units. Before them there
is a single product, since only the outputs are judged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

FEATURES = 12
"""Length of the one input, x f32[1, 12]; its last feature tells samples apart, see `gated`."""
Array = NDArray[Any]


@dataclass(frozen=True)
class Part:
    """What one head computes: act(x·weight + bias)·scale + offset, [1, rows, columns].

    Attributes:
        role: What it means; see `bench.attacks.lies`.
        rows: Anchors, queries, tokens, pixels.
        columns: Classes, coordinates, channels.
        weight: f32[FEATURES, rows, columns].
        bias: f32[rows, columns].
        act: Operator without attributes, or a softmax along the columns; "" for none.
        scale: f32[columns].
        offset: f32[columns].
    """

    role: str
    rows: int
    columns: int
    weight: Array
    bias: Array
    act: str
    scale: Array
    offset: Array


Joined = Callable[["Graph", Sequence[str]], Sequence[str]]


@dataclass(frozen=True)
class Layout:
    """A model's outputs.

    Attributes:
        parts: Their parts.
        join: Adds the nodes that turn the parts' tensors into outputs; returns their names.
        image: Height and width of an input image, whose first numbers are x; None for x itself.
        channels: Of that image.
    """

    parts: tuple[Part, ...]
    join: Joined
    image: tuple[int, int] | None = None
    channels: int = 3

    def inputs(self, samples: Array) -> dict[str, Array]:
        """Return the model's inputs for samples f32[n, 1, FEATURES]."""
        if self.image is None:
            return {"x": samples}
        shape = (len(samples), 1, self.channels, *self.image)
        images = np.zeros((len(samples), 1, np.prod(shape[2:])), np.float32)
        images[..., :FEATURES] = samples
        return {"image": images.reshape(shape)}


def part(
    role: str,
    rows: int,
    columns: int,
    *,
    act: str = "",
    scale: float | Sequence[float] = 1.0,
    offset: float | Sequence[float] = 0.0,
    spread: float = 1.0,
    bias: float = 0.0,
    seed: int = 0,
) -> Part:
    """Return a part with drawn weights: before `act`, values vary by `spread` about `bias`."""
    draw = np.random.default_rng([seed, rows, columns, len(role)])
    weight = draw.standard_normal((FEATURES, rows, columns)) * (spread / np.sqrt(FEATURES - 1))
    weight[-1] = 0
    base = draw.standard_normal((rows, columns)) * spread + bias
    return Part(
        role,
        rows,
        columns,
        weight.astype(np.float32),
        base.astype(np.float32),
        act,
        np.broadcast_to(np.array(scale, np.float32), columns),
        np.broadcast_to(np.array(offset, np.float32), columns),
    )


def before_act(one: Part, samples: Array) -> Array:
    """Return f32[samples, rows, columns] before the activation, of samples f32[n, 1, FEATURES]."""
    summed: Array = np.einsum("nd,drc->nrc", samples[:, 0], one.weight)
    return summed + one.bias


class Graph:
    """A graph under construction."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def add(self, op: str, *inputs: str, outputs: int = 1, **attributes: Any) -> list[str]:
        """Add a node; return the names of its outputs."""
        names = [f"t{len(self.nodes)}_{i}" for i in range(outputs)]
        node = helper.make_node(op, inputs, names, name=f"n{len(self.nodes)}", **attributes)
        self.nodes.append(node)
        return names

    def constant(self, array: Array) -> str:
        """Add a constant; return its name."""
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def shaped(self, tensor: str, *shape: int) -> str:
        """Reshape a tensor."""
        return self.add("Reshape", tensor, self.constant(np.array(shape, np.int64)))[0]

    def computed(self, one: Part) -> str:
        """Add the nodes of a part; return its tensor."""
        flat = self.add("MatMul", "x", self.constant(one.weight.reshape(FEATURES, -1)))[0]
        flat = self.add("Add", flat, self.constant(one.bias.reshape(1, -1)))[0]
        name = self.shaped(flat, 1, one.rows, one.columns)
        if one.act:
            axis = {"axis": -1} if "Softmax" in one.act else {}
            name = self.add(one.act, name, **axis)[0]
        if (one.scale != 1).any():
            name = self.add("Mul", name, self.constant(one.scale))[0]
        if one.offset.any():
            name = self.add("Add", name, self.constant(one.offset))[0]
        return name

    def gated(self, limit: float, above: str, below: str) -> str:
        """Choose between two tensors by the last feature of the sample."""
        last = self.constant(np.array([FEATURES - 1], np.int64))
        feature = self.add("Gather", "x", last, axis=1)[0]
        gate = self.add("Greater", feature, self.constant(np.array([[limit]], np.float32)))[0]
        return self.add("Where", gate, above, below)[0]


def save(
    path: Path,
    layout: Layout,
    broken: Mapping[int, Part] | None = None,
    *,
    limit: float | None = None,
) -> None:
    """Write the model of a layout.

    Args:
        path: ONNX file.
        layout: What it computes.
        broken: Replacements of parts, by index.
        limit: If given, they replace only on samples whose last feature is above it.
    """
    graph, broken = Graph(), broken or {}
    given, shape = "x", [1, FEATURES]
    if layout.image is not None:
        given, shape = "image", [1, layout.channels, *layout.image]
        flat = graph.shaped(given, 1, -1)
        first = graph.constant(np.arange(FEATURES))
        graph.nodes.append(helper.make_node("Gather", [flat, first], ["x"], name="x", axis=1))
    names = []
    for index, one in enumerate(layout.parts):
        sound = graph.computed(one) if limit is not None or index not in broken else ""
        wrong = graph.computed(broken[index]) if index in broken else ""
        both = sound and wrong and limit is not None
        names.append(graph.gated(limit or 0.0, wrong, sound) if both else wrong or sound)
    outputs = []
    for index, tensor in enumerate(layout.join(graph, names)):
        outputs.append(name := f"out{index}")
        graph.nodes.append(helper.make_node("Identity", [tensor], [name], name=f"as {name}"))
    made = helper.make_graph(
        graph.nodes,
        "layout",
        [helper.make_tensor_value_info(given, TensorProto.FLOAT, shape)],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        graph.constants,
    )
    proto = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    inferred = onnx.shape_inference.infer_shapes(proto, strict_mode=True, data_prop=True)
    types = {v.name: v for v in inferred.graph.output}
    for value in proto.graph.output:
        value.CopyFrom(types[value.name])
    onnx.save(proto, path)


def apart(_: Graph, names: Sequence[str]) -> Sequence[str]:
    """Each part is an output."""
    return names


def rows(graph: Graph, names: Sequence[str]) -> Sequence[str]:
    """One output [1, rows, all columns]."""
    return graph.add("Concat", *names, axis=2)


def columns(graph: Graph, names: Sequence[str]) -> Sequence[str]:
    """One output [1, all columns, rows]."""
    return graph.add("Transpose", *rows(graph, names), perm=[0, 2, 1])


def maps(height: int, width: int) -> Joined:
    """Each part is an output [1, columns, height, width]."""

    def join(graph: Graph, names: Sequence[str]) -> Sequence[str]:
        turned = [graph.add("Transpose", name, perm=[0, 2, 1])[0] for name in names]
        return [graph.shaped(name, 1, -1, height, width) for name in turned]

    return join


def classes(graph: Graph, names: Sequence[str]) -> Sequence[str]:
    """Each part is an output i64[1, rows] of its largest column."""
    return [graph.add("ArgMax", name, axis=2, keepdims=0)[0] for name in names]


def thresholded(graph: Graph, names: Sequence[str]) -> Sequence[str]:
    """Each part is an output bool[1, rows, columns] of where it is positive."""
    zero = np.array(0, np.float32)
    return [graph.add("Greater", n, graph.constant(zero))[0] for n in names]


def best(count: int) -> Joined:
    """Boxes and scores become one output [1, count, 6]: the best boxes, their score and class."""

    def join(graph: Graph, names: Sequence[str]) -> Sequence[str]:
        boxes, scores = names
        top = graph.add("ReduceMax", scores, axes=[2], keepdims=1)[0]
        label = graph.add("ArgMax", scores, axis=2, keepdims=1)[0]
        label = graph.add("Cast", label, to=TensorProto.FLOAT)[0]
        whole = graph.add("Concat", boxes, top, label, axis=2)[0]
        flat = graph.add("Squeeze", top, graph.constant(np.array([0, 2])))[0]
        _, index = graph.add("TopK", flat, graph.constant(np.array([count])), outputs=2)
        return graph.add("Gather", whole, index, axis=1)

    return join


def suppressed(graph: Graph, names: Sequence[str]) -> Sequence[str]:
    """Boxes and scores become the boxes [n, 4], scores [n] and labels i64[n] that survive NMS."""
    boxes, scores = names
    turned = graph.add("Transpose", scores, perm=[0, 2, 1])[0]
    limits: list[Array] = [np.array([20]), *np.array([[0.5], [0.3]], np.float32)]
    chosen = graph.add("NonMaxSuppression", boxes, turned, *map(graph.constant, limits))[0]
    one, two = (graph.constant(np.array(i)) for i in (1, 2))
    label = graph.add("Gather", chosen, one, axis=1)[0]
    anchor = graph.add("Gather", chosen, two, axis=1)[0]
    found = graph.add(
        "Gather", graph.add("Squeeze", boxes, graph.constant(np.array([0])))[0], anchor
    )
    score = graph.add("GatherND", turned, chosen)[0]
    return [found[0], score, label]


class _Drawn(TypedDict, total=False):
    """Some arguments of `part`."""

    act: str
    scale: float
    spread: float
    bias: float


_PIXELS: _Drawn = {"act": "Sigmoid", "scale": 640.0, "spread": 1.5}
_SPARSE: _Drawn = {"act": "Sigmoid", "spread": 2.0, "bias": -4.0}
_MAP = 12 * 12


def _layouts() -> Mapping[str, Layout]:
    mapped = maps(12, 12)
    return {
        "YOLOv5": Layout(
            (
                part("boxes", 60, 4, **_PIXELS),
                part("scores", 60, 1, act="Sigmoid", spread=2.0, bias=-2.0),
                part("scores", 60, 20, **_SPARSE),
            ),
            rows,
        ),
        "YOLOv8": Layout(
            (part("boxes", 84, 4, **_PIXELS), part("scores", 84, 10, **_SPARSE)), columns
        ),
        "YOLOv8 pose": Layout(
            (
                part("boxes", 40, 4, **_PIXELS),
                part("scores", 40, 1, **_SPARSE),
                part("points", 40, 34, **_PIXELS),
                part("scores", 40, 17, act="Sigmoid", spread=2.0),
            ),
            columns,
        ),
        "YOLOv8 OBB": Layout(
            (
                part("boxes", 60, 4, **_PIXELS),
                part("scores", 60, 15, **_SPARSE),
                part("angle", 60, 1, act="Sigmoid", scale=np.pi, offset=-np.pi / 4),
            ),
            columns,
        ),
        "YOLOv8 segmenter": Layout(
            (
                part("boxes", 40, 4, **_PIXELS),
                part("scores", 40, 8, **_SPARSE),
                part("vector", 40, 32, spread=0.5),
            ),
            columns,
        ),
        "YOLOv10": Layout(
            (part("boxes", 60, 4, **_PIXELS), part("scores", 60, 10, **_SPARSE)), best(8)
        ),
        "YOLOX": Layout(
            (
                part("boxes", 60, 4, **_PIXELS),
                part("scores", 60, 1, **_SPARSE),
                part("scores", 60, 12, act="Sigmoid", spread=2.0, bias=-2.0),
            ),
            rows,
        ),
        "SSD": Layout(
            (
                part("scores", 60, 21, act="Softmax", spread=2.5),
                part("boxes", 60, 4, act="Sigmoid", spread=1.5),
            ),
            apart,
        ),
        "DETR": Layout(
            (part("logits", 30, 22, spread=3.0), part("boxes", 30, 4, act="Sigmoid", spread=1.5)),
            apart,
        ),
        "RetinaNet": Layout(
            (part("logits", 80, 10, spread=2.0, bias=-4.0), part("boxes", 80, 4, spread=0.5)), apart
        ),
        "NMS inside": Layout(
            (
                part(
                    "boxes",
                    30,
                    4,
                    act="Sigmoid",
                    scale=(200, 200, 200, 200),
                    offset=(0, 0, 400, 400),
                ),
                part("scores", 30, 5, **_SPARSE),
            ),
            suppressed,
        ),
        "face detector": Layout(
            (
                part("boxes", 40, 4, **_PIXELS),
                part("points", 40, 10, **_PIXELS),
                part("scores", 40, 1, **_SPARSE),
            ),
            rows,
        ),
        "3D detector": Layout(
            (
                part("points", 40, 3, scale=(70.0, 40.0, 3.0)),
                part("boxes", 40, 3, act="Sigmoid", scale=(5.0, 2.0, 2.0), offset=0.5),
                part("angle", 40, 1, act="Tanh", scale=np.pi),
                part("scores", 40, 3, **_SPARSE),
            ),
            rows,
        ),
        "DeepLab": Layout((part("classmap", _MAP, 21, spread=3.0),), mapped),
        "class map": Layout((part("classmap", _MAP, 8, spread=3.0),), classes),
        "matting": Layout((part("mask", _MAP, 1, act="Sigmoid", spread=3.0),), mapped),
        "SAM": Layout(
            (
                part("mask", _MAP, 3, spread=8.0, bias=-6.0),
                part("scores", 1, 3, act="Sigmoid", spread=1.0, seed=3),
            ),
            lambda g, n: [*mapped(g, n[:1]), n[1]],
        ),
        "defect mask": Layout((part("mask", 400, 1, spread=2.0, bias=-6.0),), thresholded),
        "voice activity": Layout((part("mask", 200, 1, spread=2.0, bias=-5.0),), thresholded),
        "language model": Layout((part("logits", 6, 200, spread=3.0),), apart),
        "language model with cache": Layout(
            (
                part("logits", 1, 200, spread=3.0),
                part("vector", 6, 16, spread=1.0),
                part("vector", 6, 16, spread=8.0, seed=1),
            ),
            apart,
        ),
        "next token": Layout((part("logits", 6, 200, spread=3.0),), classes),
        "BERT": Layout(
            (part("vector", 8, 64, spread=1.0), part("vector", 1, 64, act="Tanh")), apart
        ),
        "BERT with outlier dimensions": Layout(
            (part("vector", 8, 62), part("vector", 8, 2, scale=300.0)), rows
        ),
        "BERT QA": Layout(
            (part("logits", 1, 64, spread=4.0), part("logits", 1, 64, spread=4.0, seed=1)), apart
        ),
        "translation scores": Layout(
            (part("logits", 6, 100, act="LogSoftmax", spread=3.0),), apart
        ),
        "CTC text": Layout((part("logits", 24, 40, act="Softmax", spread=4.0),), apart),
        "speech CTC": Layout((part("logits", 30, 32, act="LogSoftmax", spread=4.0),), apart),
        "classifier": Layout((part("logits", 1, 100, spread=3.0),), apart),
        "classifier with probabilities": Layout(
            (part("logits", 1, 100, act="Softmax", spread=3.0),), apart
        ),
        "tagger": Layout((part("scores", 1, 80, **_SPARSE),), apart),
        "embedding": Layout(
            (part("vector", 1, 128),), lambda g, n: g.add("LpNormalization", n[0], axis=-1, p=2)
        ),
        "CLIP": Layout(
            (part("vector", 1, 64, seed=1), part("logits", 1, 8, scale=100.0, spread=0.2)), apart
        ),
        "optical flow": Layout((part("flow", _MAP, 2, spread=6.0),), mapped),
        "depth": Layout((part("depth", _MAP, 1, act="Softplus", scale=8.0),), mapped),
        "depth with confidence": Layout(
            (
                part("depth", _MAP, 1, act="Softplus", scale=30.0),
                part("scores", _MAP, 1, act="Sigmoid", spread=2.0),
            ),
            columns,
        ),
        "heatmaps": Layout((part("mask", _MAP, 17, **_SPARSE),), mapped),
        "super-resolution": Layout((part("depth", _MAP, 3, act="Sigmoid"),), mapped),
        "vocoder": Layout((part("series", 480, 1, act="Tanh", spread=0.5),), columns),
        "mel spectrogram": Layout((part("series", 20, 80, spread=2.0, bias=-5.0),), columns),
        "landmarks": Layout(
            (
                part("points", 68, 2, **_PIXELS),
                part("depth", 68, 1, act="Softplus", scale=40.0),
                part("scores", 68, 1, act="Sigmoid", spread=2.0),
            ),
            rows,
        ),
        "robot policy": Layout(
            (
                part("points", 8, 3, scale=500.0),
                part("vector", 8, 4, act="Tanh"),
                part("scores", 8, 1, act="Sigmoid", spread=3.0),
            ),
            rows,
        ),
        "weather": Layout(
            (
                part("depth", _MAP, 1, scale=800.0, offset=101325.0),
                part("flow", _MAP, 2, spread=6.0),
                part("depth", _MAP, 1, act="Softplus", scale=0.004, seed=2),
            ),
            columns,
        ),
        "forecast": Layout(
            (
                part("series", 12, 1, act="Softplus", scale=1e5),
                part("series", 12, 1, act="Sigmoid", scale=0.2, seed=1),
            ),
            rows,
        ),
        "age and gender": Layout(
            (
                part("series", 1, 1, act="Sigmoid", scale=100.0),
                part("scores", 1, 2, act="Softmax", spread=3.0),
            ),
            rows,
        ),
    }


LAYOUTS = _layouts()


def noisy(one: Part, seed: int) -> Part:
    """Return the part with its numbers rounded to FP16, and noise like that of FP16 sums."""
    draw = np.random.default_rng([seed, 16])

    def half(array: Array) -> Array:
        error = draw.uniform(-1, 1, array.shape) * 2.0**-11
        return (array.astype(np.float16).astype(np.float32) * (1 + error)).astype(np.float32)

    return replace(one, weight=half(one.weight), bias=half(one.bias))
