"""Which FP32 products TensorRT for RTX computes in the low format, and what prevents it.

`graph/anchors.py` states the rule; here each row is built. A product is kept if its kernel reads or
holds an FP32 operand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto

from bench.figures import Figure, equal, reported
from bench.runs import Workbench
from halfwise.graph.anchors import anchor
from halfwise.graph.anchors import folded as predicted
from halfwise.graph.loading import load_network
from halfwise.graph.model import Names
from tests.judges import RtxBuilder, folded
from tests.unit.graph.sketch import Sketch

LOW = {"FP16": TensorProto.FLOAT16, "BF16": TensorProto.BFLOAT16}
SHAPES: dict[str, tuple[tuple[int, ...], list[int]]] = {
    "MatMul": ((48, 64), [32, 48]),
    "MatMul, weights first": ((32, 48), [48, 64]),
    "Gemm": ((48, 64), [32, 48]),
    "Gemm, transposed weights": ((64, 48), [32, 48]),
    "Gemm, bias": ((48, 64), [32, 48]),
    "Einsum": ((48, 64), [32, 48]),
    "Conv": ((16, 16, 3, 3), [1, 16, 16, 16]),
    "Conv, bias": ((16, 16, 3, 3), [1, 16, 16, 16]),
    "Conv, 1×1": ((32, 16, 1, 1), [1, 16, 16, 16]),
    "Conv, depthwise": ((16, 1, 3, 3), [1, 16, 16, 16]),
    "ConvTranspose": ((16, 8, 2, 2), [1, 16, 16, 16]),
}
"""Shapes of a product's weights and of what it reads."""
PLAIN = ("MatMul", "Gemm", "Conv", "Conv, bias", "ConvTranspose")
"""Products whose neighbours are varied."""
Put = Callable[[Sketch, str], str]


def _of(op: str, *operands: float | list[int] | np.ndarray, **attributes: Any) -> Put:
    return lambda s, x: s.op(op, x, *operands, **attributes)


def _low(s: Sketch, x: str, low: int) -> str:
    return s.op("Cast", x, to=low)


def _wide(s: Sketch, x: str) -> str:
    return s.op("Cast", x, to=TensorProto.FLOAT)


NEIGHBOURS: dict[str, Put] = {
    "none": lambda _, x: x,
    **{op: _of(op) for op in ("Abs", "Erf", "Flatten", "Identity", "Neg", "Relu", "Sigmoid")},
    **{op: _of(op) for op in ("Dropout", "Softmax", "Transpose")},
    "LeakyRelu, slope 1": _of("LeakyRelu", alpha=1.0),
    "Mul 1": _of("Mul", 1.0),
    "Mul 1.5": _of("Mul", 1.5),
    "Div 1": _of("Div", 1.0),
    "PRelu 1": _of("PRelu", 1.0),
    "Add 0": _of("Add", 0.0),
    "Add 1": _of("Add", 1.0),
    "Sub 1": _of("Sub", 1.0),
    "Concat with itself": lambda s, x: s.op("Concat", x, x, axis=0),
    **{f"{op} of one": _of(op) for op in ("Max", "Mean", "Min", "Sum")},
    "Concat of one": _of("Concat", axis=0),
    "Expand": lambda s, x: s.op("Expand", x, [1]),
    "Gather": _of("Gather", [0, 1], axis=1),
    "Unsqueeze, Squeeze": lambda s, x: s.op("Squeeze", s.op("Unsqueeze", x, [0]), [0]),
    "Where": lambda s, x: s.op("Where", np.array([True]), x, 0.0),
    "ReduceMean": _of("ReduceMean", axes=[1]),
    "Transpose, Relu": lambda s, x: s.op("Relu", s.op("Transpose", x)),
}
BEFORE = (
    *("Relu", "Sigmoid", "Softmax", "Mul 1", "Mul 1.5", "Add 1", "Identity", "Neg", "Dropout"),
    *("Concat of one", "Max of one", "Sum of one"),
)
IMAGES: dict[str, Put] = {
    "Tile": _of("Tile", [1, 1, 2, 1]),
    "DepthToSpace": _of("DepthToSpace", blocksize=2),
    "SpaceToDepth": _of("SpaceToDepth", blocksize=2),
}
SIZED: dict[str, dict[str, Put]] = {
    "MatMul": {"Tile": _of("Tile", [2, 1])},
    "Gemm": {"Tile": _of("Tile", [1, 3])},
    **dict.fromkeys(("Conv", "Conv, bias", "ConvTranspose"), IMAGES),
}
"""Neighbours behind products that fit their rank."""


def _product(s: Sketch, x: str, kind: str, name: str = "kept") -> str:
    rng = np.random.default_rng(0)
    op, weights = kind.partition(",")[0], rng.normal(size=SHAPES[kind][0]).astype(np.float32)
    bias = [np.zeros(weights.shape[1 if op == "Gemm" else 0], np.float32)] * ("bias" in kind)
    attributes: dict[str, Any] = {}
    if "depthwise" in kind:
        attributes["group"] = 16
    if "transposed" in kind:
        attributes["transB"] = 1
    if op == "Einsum":
        attributes["equation"] = "ij,jk->ik"
    operands = (weights, x) if "first" in kind else (x, weights)
    return s.op(op, *operands, *bias, name=name, **attributes)


def _between(kind: str, low: int, before: Put, after: Put) -> onnx.ModelProto:
    s = Sketch()
    x = _low(s, s.input("x", SHAPES[kind][1]), low)
    x = before(s, _wide(s, s.op("Relu", x)))
    y = after(s, _product(s, x, kind))
    return s.proto(_wide(s, s.op("Relu", _low(s, y, low))))


def _special(low: int) -> Iterator[tuple[str, onnx.ModelProto]]:
    """Yield what is no single product with a neighbour."""

    def begun() -> tuple[Sketch, str]:
        s = Sketch()
        return s, _wide(s, s.op("Relu", _low(s, s.input("x", [32, 48]), low)))

    def ended(s: Sketch, y: str) -> str:
        return _wide(s, s.op("Relu", _low(s, y, low)))

    s, x = begun()
    yield "two products", s.proto(ended(s, s.op("MatMul", _product(s, x, "MatMul"), np.eye(64))))
    s, x = begun()
    between = _wide(s, _low(s, _product(s, x, "MatMul"), low))
    yield "two products, low between", s.proto(ended(s, s.op("MatMul", between, np.eye(64))))
    s, x = begun()
    yield "output in FP32", s.proto(_product(s, x, "MatMul"))
    s, x = begun()
    yield "output in FP32 behind Transpose", s.proto(s.op("Transpose", _product(s, x, "MatMul")))
    s, x = begun()
    y = _product(s, x, "MatMul")
    yield "two low readers", s.proto(ended(s, y), _wide(s, s.op("Sigmoid", _low(s, y, low))))
    s, x = begun()
    y = _product(s, x, "MatMul")
    yield "a low and an FP32 reader", s.proto(ended(s, y), s.op("Sigmoid", y))
    s, x = begun()
    y = _product(s, x, "MatMul")
    yield "Shape reads it too", s.proto(ended(s, y), s.op("Shape", y))
    s, x = begun()
    y = s.op("Transpose", _product(s, x, "MatMul"))
    yield "Size reads it too, behind Transpose", s.proto(ended(s, y), s.op("Size", y))
    s, x = begun()
    y = s.op("Add", _product(s, x, "MatMul"), _wide(s, _low(s, s.input("z", [32, 64]), low)))
    yield "residual sum in FP32, other operand low", s.proto(ended(s, y))
    s = Sketch()
    yield "input in FP32", s.proto(ended(s, _product(s, s.input("x", [32, 48]), "MatMul")))
    s, x = begun()
    z = _wide(s, s.op("Relu", _low(s, s.input("z", [48, 64]), low)))
    yield "no constant", s.proto(ended(s, s.op("MatMul", x, z, name="kept")))
    for name, mover in {"Transpose": (64, 48), "Reshape": (64, 48), "Identity": (48, 64)}.items():
        s, x = begun()
        weights = s.constant(np.linspace(-1, 1, 3072).reshape(mover))
        moved = s.op(name, weights, *([[48, 64]] if name == "Reshape" else []))
        yield f"weights through {name}", s.proto(ended(s, s.op("MatMul", x, moved, name="kept")))


def _rows(low: int) -> Iterator[tuple[str, onnx.ModelProto]]:
    nothing = NEIGHBOURS["none"]
    for kind in SHAPES:
        yield kind, _between(kind, low, nothing, nothing)
    for kind in PLAIN:
        for name, put in NEIGHBOURS.items():
            yield f"{kind} → {name}", _between(kind, low, nothing, put)
        for name, put in SIZED[kind].items():
            yield f"{kind} → {name}", _between(kind, low, nothing, put)
        for name in BEFORE:
            yield f"{name} → {kind}", _between(kind, low, NEIGHBOURS[name], nothing)
    yield from _special(low)


def measure(bench: Workbench) -> tuple[list[Figure], str | None]:
    """Compare the rule with the builder on every row, and build folded ones again with anchors."""
    table: dict[str, str] = {}
    unseen, alarms, anchored, refused = list[str](), list[str](), list[str](), list[str]()
    path = bench.folder / "folding.onnx"
    with RtxBuilder() as builder:
        if reason := builder.missing():
            return [], reason
        for row, proto in ((f"{f}, {row}", p) for f, low in LOW.items() for row, p in _rows(low)):
            onnx.save(proto, path)
            build = builder.build(path)
            if not build.built:
                refused.append(row)
                continue
            network = load_network(path)
            found = set(folded(build.kernels, onnx.load(path)))
            said = {f.node.name for f in predicted(network.graph)}
            table[row] = "folded" if found else "kept"
            unseen += [row] * bool(found - said)
            alarms += [row] * bool(said - found)
            if found:
                anchor([network.graph], Names([network.graph]))
                ir.save(network.model, path)
                again = builder.build(path)
                left = not again.built or folded(again.kernels, onnx.load(path))
                anchored += [row] * bool(left)
    bench.details["folding"] = table
    lost = sum(state == "folded" for state in table.values())
    return [
        reported("rows built", len(table), f"refused: {'; '.join(refused)}"),
        reported("rows with a product that the builder folds", lost),
        equal("folded, and the rule says kept", len(unseen), 0, "; ".join(unseen)),
        reported("kept, and the rule says folded", len(alarms), "; ".join(alarms)),
        equal("folded although anchored", len(anchored), 0, "; ".join(anchored)),
    ], None
