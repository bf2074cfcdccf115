"""A plain pre-norm vision transformer as an ONNX graph, every operator written out.

The graph holds only primitive operators (no LayerNormalization, Gelu or Attention), as older
exporters wrote them, so that each step of a LayerNorm is a node with a precision of its own.

Weights travel as a flat ``dict[str, np.ndarray]``, all float32, named after timm's parameters.
With D = dim, C = channels, K = classes, p = patch and T = (image / patch)² + 1 tokens:

=========================================  ==================  ================================
key                                        shape               role
=========================================  ==================  ================================
``patch_embed.weight``, ``.bias``          [D, C, p, p], [D]   Conv over patches, stride p
``cls_token``                              [1, 1, D]           class token
``pos_embed``                              [1, T, D]           learned position embedding
``blocks.<i>.norm1.weight``, ``.bias``     [D], [D]            LayerNorm gamma and beta
``blocks.<i>.norm1.eps``                   []                  LayerNorm epsilon
``blocks.<i>.attn.q.weight``, ``.bias``    [D, D], [D]         x @ weight + bias; also k, v, proj
``blocks.<i>.norm2.*``                     as norm1
``blocks.<i>.mlp.fc1.weight``, ``.bias``   [D, 4D], [4D]       x @ weight + bias
``blocks.<i>.mlp.fc2.weight``, ``.bias``   [4D, D], [D]        x @ weight + bias
``norm.*``                                 as norm1            final LayerNorm
``head.weight``, ``.bias``                 [D, K], [K]         classifier on the class token
=========================================  ==================  ================================

Sources: Dosovitskiy et al. 2021, "An Image is Worth 16x16 Words" (architecture); Ba et al. 2016,
"Layer Normalization" (its invariance to the scale of its input, which `rescale_residual` uses).
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Weights = dict[str, np.ndarray]


def random_weights(
    seed: int,
    *,
    dim: int,
    depth: int,
    heads: int,
    patch: int,
    image: int,
    classes: int,
    channels: int,
    eps: float = 1e-6,
) -> Weights:
    """Draws an initialised set of weights.

    Matrices are normal with the standard deviation of torch's ``nn.Linear`` default,
    1 / sqrt(3 · fan_in), which is 0.021 at ViT-B's width; biases, tokens and the deviation of
    LayerNorm's gamma from one have standard deviation 0.02 (Dosovitskiy et al. 2021).

    Args:
        seed: Seed of the random generator; equal seeds give equal weights.
        dim: Width of the residual stream.
        depth: Number of transformer blocks.
        heads: Attention heads per block.
        patch: Side of a square patch, in pixels.
        image: Side of the square image, in pixels.
        classes: Number of output classes.
        channels: Number of image channels.
        eps: LayerNorm's epsilon.

    Returns:
        float32 arrays under the keys and with the shapes of the module's table.

    Raises:
        ValueError: `heads` does not divide `dim`, or `patch` does not divide `image`.
    """
    if dim % heads or image % patch:
        raise ValueError(f"{heads} heads must divide dim {dim}, patch {patch} image {image}")
    rng = np.random.default_rng(seed)
    weights: Weights = {}

    def normal(name: str, *shape: int, std: float = 0.02, mean: float = 0.0) -> None:
        weights[name] = (mean + std * rng.standard_normal(shape)).astype(np.float32)

    def linear(name: str, fan_in: int, fan_out: int) -> None:
        normal(f"{name}.weight", fan_in, fan_out, std=1 / math.sqrt(3 * fan_in))
        normal(f"{name}.bias", fan_out)

    def layer_norm(name: str) -> None:
        normal(f"{name}.weight", dim, mean=1.0)
        normal(f"{name}.bias", dim)
        weights[f"{name}.eps"] = np.array(eps, np.float32)

    pixels = channels * patch * patch
    normal("patch_embed.weight", dim, channels, patch, patch, std=1 / math.sqrt(3 * pixels))
    normal("patch_embed.bias", dim)
    normal("cls_token", 1, 1, dim)
    normal("pos_embed", 1, (image // patch) ** 2 + 1, dim)
    for i in range(depth):
        layer_norm(f"blocks.{i}.norm1")
        for part in ("q", "k", "v", "proj"):
            linear(f"blocks.{i}.attn.{part}", dim, dim)
        layer_norm(f"blocks.{i}.norm2")
        linear(f"blocks.{i}.mlp.fc1", dim, 4 * dim)
        linear(f"blocks.{i}.mlp.fc2", 4 * dim, dim)
    layer_norm("norm")
    linear("head", dim, classes)
    return weights


def rescale_residual(weights: Weights, factor: float) -> Weights:
    """Multiplies the residual stream by a factor without changing the function.

    Everything that writes to the stream (patch embedding, class token, position embedding,
    attention projection, second MLP layer) grows by `factor`. Everything that reads it does so
    through a LayerNorm, whose output stays the same in exact arithmetic once its epsilon, which
    is added to a variance, grows by `factor`².

    Args:
        weights: Weights as `random_weights` gives them.
        factor: Scale of the new residual stream relative to the old one, > 0.

    Returns:
        A new dict of the same keys, shapes and dtypes; unscaled arrays are shared.

    Raises:
        ValueError: `factor` is not a positive finite number.
    """
    if not (math.isfinite(factor) and factor > 0):
        raise ValueError(f"factor must be positive and finite, got {factor}")

    def gain(name: str) -> float:
        if name.endswith(".eps"):
            return factor * factor
        writes = name.startswith(("patch_embed.", "cls_token", "pos_embed"))
        return factor if writes or ".attn.proj." in name or ".mlp.fc2." in name else 1.0

    return {
        name: array if gain(name) == 1.0 else (array.astype(np.float64) * gain(name)).astype("f4")
        for name, array in weights.items()
    }


def layer_norms(weights: Weights) -> list[str]:
    """Lists the LayerNorms, in the order in which the model runs them.

    Args:
        weights: Weights as `random_weights` gives them.

    Returns:
        Names such as ``blocks.0.norm1``, ending with ``norm``. The nodes of one are named
        ``/blocks.0/norm1/<operator>``: ReduceMean, Sub, Pow, ReduceMean_1, Add, Sqrt, Div, Mul,
        Add_1.
    """
    return [name.removesuffix(".eps") for name in weights if name.endswith(".eps")]


def build_vit(
    weights: Weights,
    *,
    heads: int,
    patch: int,
    image: int,
    opset: int = 16,
    dynamic_batch: bool = True,
) -> onnx.ModelProto:
    """Builds the model ``images`` → ``logits``.

    Args:
        weights: Weights as `random_weights` gives them; depth, widths and classes follow from
            their shapes.
        heads: Attention heads per block.
        patch: Side of a square patch, in pixels.
        image: Side of the square image, in pixels.
        opset: Version of the default ONNX operator set, at least 13.
        dynamic_batch: Whether the batch is a symbolic dimension, its size computed with
            Shape/Gather/Unsqueeze/Concat as torch's exporter does; otherwise it is one.

    Returns:
        A model with input ``images`` float32 [batch, C, image, image] and output ``logits``
        float32 [batch, K], the unnormalised class scores.

    Raises:
        KeyError: A weight of the module's table is missing.
        ValueError: `heads`, `patch` or `image` contradict the weights, or `opset` is below 13.
    """
    dim, channels, kernel, _ = weights["patch_embed.weight"].shape
    if opset < 13:
        raise ValueError(f"opset must be at least 13, got {opset}")
    if dim % heads or kernel != patch or image % patch:
        raise ValueError(f"heads {heads}, patch {patch}, image {image} contradict the weights")
    if weights["pos_embed"].shape[1] != (image // patch) ** 2 + 1:
        raise ValueError(f"image {image} does not match pos_embed {weights['pos_embed'].shape}")

    graph = _Graph(weights, opset, dynamic_batch)
    x = _embed(graph, patch, image)
    for i in range(sum(name.endswith(".norm1.eps") for name in weights)):
        x = _attention(graph, f"blocks.{i}", x, heads)
        x = _mlp(graph, f"blocks.{i}", x)
    x = _layer_norm(graph, "norm", x)
    x = graph.node("", "Gather", x, graph.index(0), axis=1)
    head = [x, graph.weight("head.weight"), graph.weight("head.bias")]
    graph.nodes.append(helper.make_node("Gemm", head, ["logits"], "/head/Gemm"))

    batch: str | int = "batch" if dynamic_batch else 1
    shape_in = [batch, channels, image, image]
    shape_out = [batch, weights["head.bias"].shape[0]]
    proto = helper.make_graph(
        graph.nodes,
        "vit",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, shape_in)],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, shape_out)],
        list(graph.initializers.values()),
    )
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(
        proto,
        producer_name="halfwise-vit",
        opset_imports=opsets,
        ir_version=helper.find_min_ir_version_for(opsets),
    )


class _Graph:
    """Nodes and initializers under construction, named the way torch's exporter names them."""

    def __init__(self, weights: Weights, opset: int, dynamic_batch: bool) -> None:
        self.weights = weights
        self.opset = opset
        self.dynamic_batch = dynamic_batch
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: dict[str, onnx.TensorProto] = {}
        self._seen: Counter[str] = Counter()

    def node(self, scope: str, op_type: str, *inputs: str, **attributes: Any) -> str:
        """Appends a node; ``blocks.0.norm1`` becomes the prefix ``/blocks.0/norm1``."""
        # A dot before a digit belongs to the name of a block.
        path = re.sub(r"\.(?!\d)", "/", f".{scope}") if scope else ""
        name = f"{path}/{op_type}"
        count = self._seen[name]
        self._seen[name] += 1
        name = f"{name}_{count}" if count else name
        output = f"{name}_output_0"
        self.nodes.append(helper.make_node(op_type, list(inputs), [output], name, **attributes))
        return output

    def constant(self, name: str, array: np.ndarray) -> str:
        if name not in self.initializers:
            self.initializers[name] = numpy_helper.from_array(array, name)
        return name

    def weight(self, name: str) -> str:
        return self.constant(name, self.weights[name])

    def scalar(self, name: str, value: float) -> str:
        return self.constant(name, np.array(value, np.float32))

    def index(self, value: int) -> str:
        return self.constant(f"index.{value}", np.array(value, np.int64))

    def dims(self, *values: int) -> str:
        name = "dims." + ".".join(map(str, values))
        return self.constant(name, np.array(values, np.int64))

    def linear(self, scope: str, x: str) -> str:
        x = self.node(scope, "MatMul", x, self.weight(f"{scope}.weight"))
        return self.node(scope, "Add", x, self.weight(f"{scope}.bias"))

    def mean(self, scope: str, x: str) -> str:
        # ReduceMean's axes moved from an attribute to an input in opset 18.
        if self.opset < 18:
            return self.node(scope, "ReduceMean", x, axes=[-1], keepdims=1)
        return self.node(scope, "ReduceMean", x, self.dims(-1), keepdims=1)

    def shape(self, scope: str, source: str, lead: Sequence[int], tail: Sequence[int]) -> str:
        """A shape whose first ``len(lead)`` entries are those of `source`, then `tail`.

        `lead` holds the sizes to write where the batch is not dynamic.
        """
        if not self.dynamic_batch:
            return self.dims(*lead, *tail)
        sizes = []
        for axis in range(len(lead)):
            size = self.node(scope, "Shape", source)
            size = self.node(scope, "Gather", size, self.index(axis), axis=0)
            sizes.append(self.node(scope, "Unsqueeze", size, self.dims(0)))
        return self.node(scope, "Concat", *sizes, *(self.dims(t) for t in tail), axis=0)


def _embed(graph: _Graph, patch: int, image: int) -> str:
    scope, dim = "patch_embed", graph.weights["cls_token"].shape[2]
    weight, bias = graph.weight(f"{scope}.weight"), graph.weight(f"{scope}.bias")
    sides = [patch, patch]
    x = graph.node(scope, "Conv", "images", weight, bias, kernel_shape=sides, strides=sides)
    shape = graph.shape(scope, x, [1, dim], [(image // patch) ** 2])
    x = graph.node(scope, "Reshape", x, shape)
    x = graph.node(scope, "Transpose", x, perm=[0, 2, 1])
    token = graph.weight("cls_token")
    if graph.dynamic_batch:
        token = graph.node("", "Expand", token, graph.shape("", x, [1], [1, dim]))
    x = graph.node("", "Concat", token, x, axis=1)
    return graph.node("", "Add", x, graph.weight("pos_embed"))


def _layer_norm(graph: _Graph, scope: str, x: str) -> str:
    centred = graph.node(scope, "Sub", x, graph.mean(scope, x))
    squared = graph.node(scope, "Pow", centred, graph.scalar("two", 2.0))
    variance = graph.mean(scope, squared)
    shifted = graph.node(scope, "Add", variance, graph.weight(f"{scope}.eps"))
    x = graph.node(scope, "Div", centred, graph.node(scope, "Sqrt", shifted))
    x = graph.node(scope, "Mul", x, graph.weight(f"{scope}.weight"))
    return graph.node(scope, "Add", x, graph.weight(f"{scope}.bias"))


def _attention(graph: _Graph, block: str, x: str, heads: int) -> str:
    scope = f"{block}.attn"
    _, tokens, dim = graph.weights["pos_embed"].shape
    normed = _layer_norm(graph, f"{block}.norm1", x)

    def split(part: str, perm: list[int]) -> str:
        y = graph.linear(f"{scope}.{part}", normed)
        shape = graph.shape(f"{scope}.{part}", y, [1, tokens], [heads, dim // heads])
        y = graph.node(f"{scope}.{part}", "Reshape", y, shape)
        return graph.node(f"{scope}.{part}", "Transpose", y, perm=perm)

    q = split("q", [0, 2, 1, 3])
    k = split("k", [0, 2, 3, 1])
    v = split("v", [0, 2, 1, 3])
    scores = graph.node(scope, "MatMul", q, k)
    scores = graph.node(scope, "Div", scores, graph.scalar("sqrt_head", math.sqrt(dim // heads)))
    y = graph.node(scope, "MatMul", graph.node(scope, "Softmax", scores, axis=-1), v)
    y = graph.node(scope, "Transpose", y, perm=[0, 2, 1, 3])
    y = graph.node(scope, "Reshape", y, graph.shape(scope, y, [1, tokens], [dim]))
    return graph.node(block, "Add", x, graph.linear(f"{scope}.proj", y))


def _mlp(graph: _Graph, block: str, x: str) -> str:
    scope = f"{block}.mlp"
    h = graph.linear(f"{scope}.fc1", _layer_norm(graph, f"{block}.norm2", x))
    act = f"{scope}.act"
    erf = graph.node(act, "Erf", graph.node(act, "Div", h, graph.scalar("sqrt_two", 2**0.5)))
    h = graph.node(act, "Mul", h, graph.node(act, "Add", erf, graph.scalar("one", 1.0)))
    h = graph.node(act, "Mul", h, graph.scalar("half", 0.5))
    return graph.node(block, "Add", x, graph.linear(f"{scope}.fc2", h))
