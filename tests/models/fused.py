"""Operators of ONNX Runtime that hide scores, sums and squares; FP16 holds them, or it does not."""

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.models.illness import Ill
from tests.unit.graph.sketch import f32

HEADS, SIZE, TOKENS = 2, 16, 4
WIDTH = HEADS * SIZE
OWN: dict[str, Any] = {"domain": "com.microsoft"}
HELD, BEYOND = 60.0, 700.0
"""Factors of queries and keys with which scores stay in FP16's range, or leave it."""


def _tokens(samples: int, *, seed: int) -> np.ndarray:
    """Return tokens that attend to themselves: f32[samples, TOKENS, WIDTH]."""
    rng = np.random.default_rng(seed)
    own = np.tile(np.eye(TOKENS, SIZE), (1, HEADS))
    return f32(own + 0.02 * rng.normal(size=(samples, TOKENS, WIDTH)))


def _ill(nodes, constants, ends, inputs, opset=17) -> Ill:
    tensors = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    kinds = {np.dtype(np.float32): TensorProto.FLOAT, np.dtype(np.int32): TensorProto.INT32}
    given = [
        helper.make_tensor_value_info(name, kinds[array.dtype], ["n", *array.shape[2:]])
        for name, array in inputs.items()
    ]
    given = [ends.get(v.name, v) for v in given]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", TOKENS, WIDTH])]
    graph = helper.make_graph(nodes, "fused", given, outputs, tensors)
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return Ill(helper.make_model(graph, opset_imports=imports, ir_version=10), inputs)


def _products(factor: float, *names: str) -> tuple[list[onnx.NodeProto], dict[str, Any]]:
    """Return products of x that give queries and keys, and their weights."""
    nodes = [helper.make_node("MatMul", ["x", f"w_{n}"], [n], f"{n}_product") for n in names]
    return nodes, {f"w_{n}": f32(np.eye(WIDTH) * factor) for n in names}


def multi_head(factor: float) -> Ill:
    """MultiHeadAttention: scores of factor² / 4."""
    nodes, weights = _products(factor, "q", "k")
    node = helper.make_node(
        "MultiHeadAttention", ["q", "k", "x"], ["y"], "attention", num_heads=HEADS, **OWN
    )
    x = _tokens(8, seed=1)[:, None]
    return _ill([*nodes, node], weights, {}, {"x": x})


def onnx_attention(factor: float) -> Ill:
    """The Attention of ONNX, causal."""
    nodes, weights = _products(factor, "q", "k")
    heads: dict[str, Any] = {"q_num_heads": HEADS, "kv_num_heads": HEADS, "is_causal": 1}
    node = helper.make_node("Attention", ["q", "k", "x"], ["y"], "attention", **heads)
    return _ill([*nodes, node], weights, {}, {"x": _tokens(8, seed=1)[:, None]}, opset=23)


def packed(factor: float) -> Ill:
    """ONNX Runtime's Attention, which multiplies by the weights of queries, keys and values."""
    eye = np.eye(WIDTH)
    weights = {
        "w": f32(np.concatenate([eye * factor, eye * factor, eye], axis=1)),
        "b": f32(np.linspace(-0.01, 0.01, 3 * WIDTH)),
    }
    node = helper.make_node(
        "Attention", ["x", "w", "b"], ["y"], "attention", num_heads=HEADS, **OWN
    )
    return _ill([node], weights, {}, {"x": _tokens(8, seed=1)[:, None]})


def grouped(factor: float, *, past: int = 0) -> Ill:
    """GroupQueryAttention with rotary positions and a cache, which may start empty."""
    angles = np.arange(TOKENS + past)[:, None] * 0.01 * np.arange(SIZE // 2)
    nodes, weights = _products(factor, "q")
    weights |= {"cos": f32(np.cos(angles)), "sin": f32(np.sin(angles))}
    weights |= {"w_k": f32(np.eye(WIDTH, SIZE) * factor), "w_v": f32(np.eye(WIDTH, SIZE))}
    read = ["q", "k", "v", "past_key", "past_value", "lengths", "length", "cos", "sin"]
    nodes += [
        helper.make_node("MatMul", ["x", f"w_{n}"], [n], f"{n}_product") for n in ("k", "v")
    ] + [
        helper.make_node("ReduceMax", ["lengths"], ["last"], "last", keepdims=0),
        helper.make_node("Add", ["last", "one"], ["length"], "length"),
        helper.make_node(
            *("GroupQueryAttention", read, ["y", "present_key", "present_value"], "attention"),
            **{"num_heads": HEADS, "kv_num_heads": 1, "do_rotary": 1, **OWN},
        ),
    ]
    weights["one"] = np.array(1, np.int32)
    rng = np.random.default_rng(2)
    inputs = {
        "x": _tokens(8, seed=1)[:, None],
        "past_key": f32(rng.normal(size=(8, 1, 1, past, SIZE))),
        "past_value": f32(rng.normal(size=(8, 1, 1, past, SIZE))),
        "lengths": np.full((8, 1), past + TOKENS - 1, np.int32),
    }
    cache: tuple[int | str, ...] = ("n", 1, "past", SIZE)
    ends = {
        name: helper.make_tensor_value_info(name, TensorProto.FLOAT, cache)
        for name in ("past_key", "past_value")
    }
    return _ill(nodes, weights, ends, inputs)


def skip_norm(size: float, *, op: str = "SkipLayerNormalization") -> Ill:
    """A residual sum and its norm; the sum reaches about `size`."""
    x = _tokens(8, seed=3)[:, None]
    weights = {"a": f32(size * 0.5), "gamma": f32(np.linspace(0.5, 1.5, WIDTH))}
    weights |= {"beta": f32(np.linspace(-0.1, 0.1, WIDTH))}
    read = ["scaled", "scaled", "gamma", *(["beta"] if op == "SkipLayerNormalization" else [])]
    nodes = [
        helper.make_node("Mul", ["x", "a"], ["scaled"], "scale"),
        helper.make_node(op, read, ["y"], "skip", **OWN),
    ]
    return _ill(nodes, weights, {}, {"x": x})


def bert(factor: float) -> Ill:
    """A layer of BERT as PyTorch exports it; queries and keys are random rotations of their input.

    Their scores reach about 64 · factor² / 4.
    """
    rng, width, heads = np.random.default_rng(5), 64, 4
    turn = np.linalg.qr(rng.normal(size=(width, width)))[0]
    weights: dict[str, Any] = {
        "words": f32(rng.normal(size=(80, width))),
        "apart": np.array([0, 0, heads, width // heads]),
        "joined": np.array([0, 0, width]),
        "first": np.array([1]),
        "second": np.array([2]),
        "one": f32(1),
        "far": f32(-10000),
        "root": f32((width // heads) ** 0.5),
    }
    nodes = []

    def node(op: str, read: str, made: str, **attributes: Any) -> None:
        nodes.append(helper.make_node(op, read.split(), [made], made, **attributes))

    def norm(read: str, made: str) -> None:
        weights.update({f"{made}_g": f32(np.ones(width)), f"{made}_b": f32(np.zeros(width))})
        node("LayerNormalization", f"{read} {made}_g {made}_b", made, axis=-1, epsilon=1e-5)

    def linear(read: str, made: str, weight: np.ndarray) -> None:
        weights.update({f"{made}_w": f32(weight), f"{made}_b": f32(0.1 * rng.normal(size=width))})
        node("MatMul", f"{read} {made}_w", f"{made}_product")
        node("Add", f"{made}_product {made}_b", made)

    node("Unsqueeze", "mask first", "rows")
    node("Unsqueeze", "rows second", "planes")
    node("Cast", "planes", "seen", to=TensorProto.FLOAT)
    node("Sub", "one seen", "hidden")
    node("Mul", "hidden far", "masked_by")
    node("Gather", "words ids", "embedded")
    norm("embedded", "x")
    for name, weight in (("q", factor * turn), ("k", factor * turn), ("v", 0.1 * turn)):
        linear("x", name, weight)
        node("Reshape", f"{name} apart", f"{name}_heads")
        node(
            "Transpose",
            f"{name}_heads",
            f"{name}_t",
            perm=[0, 2, *((3, 1) if name == "k" else (1, 3))],
        )
    node("MatMul", "q_t k_t", "scores")
    node("Div", "scores root", "scaled")
    node("Add", "scaled masked_by", "masked")
    node("Softmax", "masked", "attended", axis=-1)
    node("MatMul", "attended v_t", "context")
    node("Transpose", "context", "context_t", perm=[0, 2, 1, 3])
    node("Reshape", "context_t joined", "flat")
    linear("flat", "out", 0.1 * turn)
    node("Add", "out x", "residual")
    norm("residual", "y")
    ends = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["n", 10])
        for name in ("ids", "mask")
    ]
    given = {"ids": rng.integers(0, 80, (12, 1, 10)), "mask": np.ones((12, 1, 10), np.int64)}
    given["mask"][:, :, 8:] = 0
    result = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 10, width])]
    tensors = [numpy_helper.from_array(np.asarray(a), name) for name, a in weights.items()]
    graph = helper.make_graph(nodes, "bert", ends, result, tensors)
    imports = [helper.make_opsetid("", 17)]
    return Ill(helper.make_model(graph, opset_imports=imports, ir_version=9), given)
