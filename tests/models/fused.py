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
