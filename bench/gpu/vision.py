"""Draws vision networks, each with one fault for FP16 that does not change the FP32 function."""

from __future__ import annotations

import numpy as np

from bench.gpu import data
from bench.gpu.blocks import COUNT, WIDE, Blocks
from bench.gpu.models import Made

MATCHED, COSINES, NORMED = 2.0**9, 2.0**10, 2.0**11
"""Factors within FP16's range whose squares are beyond it."""


def flow_transformer() -> Made:
    """Optical flow of two frames: convolutions, self and cross attention, global matching.

    Features are × 2⁹ before they are matched, and their products are divided by 2¹⁸.
    """
    b, dim, grid = Blocks(1), 96, (8, 12)
    tokens, factor = grid[0] * grid[1], MATCHED
    x = b.op("Concat", "frames", "frame0", "frame1", axis=0)
    for i, channels in enumerate(((3, 32), (32, 64), (64, dim))):
        x = b.op("Relu", f"encoder.{i}/Relu", b.conv(f"encoder.{i}", x, channels, stride=2))
    x = b.heads("tokens", x, [2, dim, tokens], (0, 2, 1))
    x = b.op("Add", "position", x, b.drawn("positions", 1, tokens, dim, deviation=0.2))
    order = b.integers("other", [1, 0])
    for i in range(2):
        scope, size = f"layers.{i}", (tokens, tokens, dim)
        y = b.layer_norm(f"{scope}/norm1", x, dim)
        x = b.add(f"{scope}/self", x, b.attention(f"{scope}/self", (y, y), size, 4, batch=2))
        y = b.layer_norm(f"{scope}/norm2", x, dim)
        other = b.op("Gather", f"{scope}/cross/Gather", y, order, axis=0)
        x = b.add(f"{scope}/cross", x, b.attention(f"{scope}/cross", (y, other), size, 4, batch=2))
        y = b.layer_norm(f"{scope}/norm3", x, dim)
        x = b.add(f"{scope}/ffn", x, b.ffn(f"{scope}/ffn", y, dim, 4 * dim))
    x = b.linear("features", b.layer_norm("norm", x, dim), (dim, dim), scale=(factor, factor))
    first, second = (
        b.op("Gather", f"match/{n}", x, b.integers(f"match.{n}", [i]), axis=0)
        for i, n in enumerate(("first", "second"))
    )
    turned = b.op("Transpose", "match/Transpose", second, perm=[0, 2, 1])
    y = b.op("MatMul", "match/MatMul", first, turned)
    y = b.op("Mul", "match/Mul", y, b.constant("match.scale", 1 / np.sqrt(dim) / factor**2))
    y = b.op("Softmax", "match/Softmax", y, axis=-1)
    places = np.stack(np.meshgrid(np.arange(grid[1]), np.arange(grid[0])), -1).reshape(1, tokens, 2)
    y = b.op("MatMul", "match/MatMul_1", y, b.constant("places", places))
    flow = b.op("Sub", "match/Sub", y, "places")
    still = data.photographs(COUNT, (64, 96), seed=1)
    moved = np.stack(
        [np.roll(image, (i % 5 - 2, 2 * i % 7 - 3), (1, 2)) for i, image in enumerate(still)]
    )
    arrays = {"frame0": still[:, None], "frame1": moved[:, None]}
    return b.made("flow_transformer", arrays, {"flow": (flow, [1, tokens, 2])}, 16)


def query_detector() -> Made:
    """A detector whose decoder queries attend to an encoded image.

    The values between the layers of one decoder FFN are × 2¹⁷.
    """
    b, dim, grid, queries = Blocks(3), 128, (8, 12), 24
    tokens, x = grid[0] * grid[1], "images"
    for i, channels in enumerate(((3, 32), (32, 64), (64, dim))):
        x = b.op("Relu", f"backbone.{i}/Relu", b.conv(f"backbone.{i}", x, channels, stride=2))
    x = b.heads("tokens", x, [1, dim, tokens], (0, 2, 1))
    x = b.op("Add", "position", x, b.drawn("positions", 1, tokens, dim, deviation=0.3))
    y = b.attention("encoder/attn", (x, x), (tokens, tokens, dim), 4)
    x = b.layer_norm("encoder/norm1", b.add("encoder/attn", x, y), dim)
    y = b.ffn("encoder/ffn", x, dim, 4 * dim)
    memory = b.layer_norm("encoder/norm2", b.add("encoder/ffn", x, y), dim)
    z = b.drawn("queries", 1, queries, dim, deviation=1.0)
    for i in range(2):
        scope = f"decoder.{i}"
        y = b.attention(f"{scope}/self", (z, z), (queries, queries, dim), 4)
        z = b.layer_norm(f"{scope}/norm1", b.add(f"{scope}/self", z, y), dim)
        y = b.attention(f"{scope}/cross", (z, memory), (queries, tokens, dim), 4)
        z = b.layer_norm(f"{scope}/norm2", b.add(f"{scope}/cross", z, y), dim)
        factor = WIDE if i == 1 else 1.0
        y = b.ffn(f"{scope}/ffn", z, dim, 4 * dim, act="relu", factor=factor)
        z = b.layer_norm(f"{scope}/norm3", b.add(f"{scope}/ffn", z, y), dim)
    scores = b.op("Sigmoid", "scores/Sigmoid", b.linear("scores", z, (dim, 10)))
    y = b.op("Relu", "boxes.0/Relu", b.linear("boxes.0", z, (dim, dim)))
    y = b.linear("boxes.1", y, (dim, 4))
    y = b.op("Add", "boxes/Add", y, b.drawn("references", 1, queries, 4, deviation=1.0))
    boxes = b.op("Sigmoid", "boxes/Sigmoid", y)
    outputs = {"scores": (scores, [1, queries, 10]), "boxes": (boxes, [1, queries, 4])}
    images = data.photographs(COUNT, (64, 96), seed=3)[:, None]
    return b.made("query_detector", {"images": images}, outputs, 16)


def shifted_windows() -> Made:
    """Attention in windows that shift, by cosines; in one block q and k are × 2¹⁰ before them."""
    b, dim, side, window = Blocks(4), 96, 16, 8
    x = b.conv("patches", "images", (3, dim), side=4, stride=4, pad=0)
    x = b.heads("tokens", x, [1, dim, side * side], (0, 2, 1))
    for i in range(2):
        x = _windowed(
            b, f"stages.0.{i}", x, (dim, side, window), shift=4 * i, factor=COSINES if i == 0 else 1
        )
    # Four neighbours become one token.
    y = b.op("Reshape", "merge/Reshape", x, b.integers("merge.in", [8, 2, 8, 2, dim]))
    y = b.op("Transpose", "merge/Transpose", y, perm=[0, 2, 1, 3, 4])
    y = b.op("Reshape", "merge/Reshape_1", y, b.integers("merge.out", [1, 64, 4 * dim]))
    x = b.linear("merge", b.layer_norm("merge/norm", y, 4 * dim), (4 * dim, 2 * dim))
    for i in range(2):
        x = _windowed(b, f"stages.1.{i}", x, (2 * dim, 8, window))
    features = b.layer_norm("norm", x, 2 * dim)
    pooled = b.op("ReduceMean", "pool", features, axes=[1], keepdims=0)
    logits = b.linear("head", pooled, (2 * dim, 20))
    outputs = {"logits": (logits, [1, 20]), "features": (features, [1, 64, 2 * dim])}
    images = data.photographs(COUNT, (64, 64), seed=4)[:, None]
    return b.made("shifted_windows", {"images": images}, outputs, 17)


def _windowed(
    b: Blocks,
    scope: str,
    x: str,
    sizes: tuple[int, int, int],
    *,
    shift: int = 0,
    factor: float = 1.0,
) -> str:
    """Add a block of attention by cosines in windows, and an FFN; the norms come last."""
    dim, side, window = sizes
    heads, windows, inside = dim // 32, (side // window) ** 2, window * window
    across, width = side // window, 32
    tokens, y = side * side, x
    grid = np.roll(np.arange(tokens).reshape(side, side), (-shift, -shift), (0, 1))
    moved = grid.reshape(across, window, across, window).transpose(0, 2, 1, 3).ravel()
    places = b.integers(f"{scope}.places", moved)
    y = b.op("Gather", f"{scope}/Gather", y, places, axis=1)
    y = b.op("Reshape", f"{scope}/Reshape", y, b.integers(f"{scope}.in", [windows, inside, dim]))
    parts = {}
    for part, scale in (("q", factor), ("k", factor), ("v", 1.0)):
        z = b.linear(f"{scope}/{part}", y, (dim, dim), scale=(scale, scale))
        z = b.heads(f"{scope}/{part}", z, [windows, inside, heads, width], (0, 2, 1, 3))
        if part != "v":
            name = f"{scope}/{part}/length"
            z2 = b.op("Mul", f"{name}/Mul", z, z)
            z2 = b.op(
                "ReduceSum", f"{name}/ReduceSum", z2, b.integers(f"{name}.axes", [-1]), keepdims=1
            )
            z2 = b.op("Add", f"{name}/Add", z2, b.constant(f"{name}.eps", 1e-6 * scale**2))
            z = b.op("Div", f"{name}/Div", z, b.op("Sqrt", f"{name}/Sqrt", z2))
        parts[part] = z
    keys = b.op("Transpose", f"{scope}/Transpose", parts["k"], perm=[0, 1, 3, 2])
    z = b.op("MatMul", f"{scope}/MatMul", parts["q"], keys)
    z = b.op(
        "Mul", f"{scope}/Mul", z, b.constant(f"{scope}.scale", np.full((1, heads, 1, 1), 10.0))
    )
    z = b.op(
        "Add", f"{scope}/Add", z, b.drawn(f"{scope}.bias", 1, heads, inside, inside, deviation=0.5)
    )
    z = b.op("Softmax", f"{scope}/Softmax", z, axis=-1)
    z = b.op("MatMul", f"{scope}/MatMul_1", z, parts["v"])
    z = b.heads(
        f"{scope}/out",
        b.op("Transpose", f"{scope}/Transpose_1", z, perm=[0, 2, 1, 3]),
        [1, tokens, dim],
        (0, 1, 2),
    )
    z = b.op(
        "Gather", f"{scope}/Gather_1", z, b.integers(f"{scope}.back", np.argsort(moved)), axis=1
    )
    z = b.linear(f"{scope}/proj", z, (dim, dim))
    x = b.add(f"{scope}/attn", x, b.layer_norm(f"{scope}/norm1", z, dim))
    y = b.ffn(f"{scope}/mlp", x, dim, 3 * dim)
    return b.add(f"{scope}/mlp", x, b.layer_norm(f"{scope}/norm2", y, dim))


def diffusion_unet() -> Made:
    """A U-Net for one diffusion step: GroupNorm, SiLU, time embedding, attention, skips.

    The input of one GroupNorm is × 2¹¹.
    """
    b, (fine, half, low), (wide, mid, deep) = Blocks(6), (24, 12, 6), (24, 48, 96)
    time = b.linear("time.0", "time", (64, 128))
    time = b.linear("time.1", b.silu("time/silu", time), (128, 128))
    time = b.silu("time/silu_1", time)
    first = b.conv("in", "noisy", (3, wide))
    skip = _residual(b, "down.0", first, (wide, wide, fine), time)
    x = b.conv("down.1.smaller", skip, (wide, mid), stride=2)
    x = _residual(b, "down.1", x, (mid, mid, half), time)
    x = coarse = _looking(b, "down.1.attn", x, mid, half)
    x = b.conv("middle.smaller", x, (mid, deep), stride=2)
    x = _residual(b, "middle.0", x, (deep, deep, low), time, factor=NORMED)
    x = _looking(b, "middle.attn", x, deep, low)
    x = _residual(b, "middle.1", x, (deep, deep, low), time)
    x = b.op("Concat", "up.1/Concat", _larger(b, "up.1.larger", x, deep, low), coarse, axis=1)
    x = _residual(b, "up.1", x, (deep + mid, mid, half), time)
    x = b.op("Concat", "up.0/Concat", _larger(b, "up.0.larger", x, mid, half), skip, first, axis=1)
    x = _residual(b, "up.0", x, (mid + 2 * wide, wide, fine), time)
    x = b.silu("out/silu", b.group_norm("out/norm", x, [1, wide, fine, fine], 8))
    x = b.conv("out", x, (wide, 3))
    rng = np.random.default_rng(6)
    clear, kept = data.photographs(COUNT, (fine, fine), seed=6), rng.uniform(0.2, 0.95, COUNT)
    shares = np.sqrt([kept, 1 - kept])[..., None, None, None]
    noisy = shares[0] * clear + shares[1] * rng.standard_normal(clear.shape)
    angles = 1000 * (1 - kept)[:, None] * np.exp(-np.log(10000) * np.arange(32) / 32)
    when = np.concatenate([np.sin(angles), np.cos(angles)], 1)
    arrays = {"noisy": noisy[:, None].astype(np.float32), "time": when[:, None].astype(np.float32)}
    return b.made("diffusion_unet", arrays, {"noise": (x, [1, 3, fine, fine])}, 17)


def _residual(
    b: Blocks, scope: str, x: str, sizes: tuple[int, int, int], time: str, *, factor: float = 1.0
) -> str:
    """Add GroupNorm, SiLU and a convolution, twice, next to a shortcut; time enters between."""
    given, dim, side = sizes
    y = b.silu(f"{scope}/silu", b.group_norm(f"{scope}/norm1", x, [1, given, side, side], 8))
    y = b.conv(f"{scope}.conv1", y, (given, dim), factor=factor)
    shift = b.linear(f"{scope}/time", time, (128, dim), scale=(factor, factor))
    shift = b.op(
        "Reshape", f"{scope}/time/Reshape", shift, b.integers(f"{scope}.time", [1, dim, 1, 1])
    )
    y = b.op("Add", f"{scope}/Add", y, shift)
    y = b.group_norm(f"{scope}/norm2", y, [1, dim, side, side], 8, factor=factor)
    y = b.conv(f"{scope}.conv2", b.silu(f"{scope}/silu_1", y), (dim, dim))
    if given != dim:
        x = b.conv(f"{scope}.shortcut", x, (given, dim), side=1, pad=0)
    return b.add(scope, x, y)


def _looking(b: Blocks, scope: str, x: str, dim: int, side: int) -> str:
    """Add self-attention of all pixels."""
    tokens = side * side
    y = b.heads(
        f"{scope}/tokens",
        b.group_norm(f"{scope}/norm", x, [1, dim, side, side], 8),
        [1, dim, tokens],
        (0, 2, 1),
    )
    y = b.attention(scope, (y, y), (tokens, tokens, dim), 2)
    y = b.op("Transpose", f"{scope}/pixels/Transpose", y, perm=[0, 2, 1])
    y = b.op(
        "Reshape", f"{scope}/pixels/Reshape", y, b.integers(f"{scope}.pixels", [1, dim, side, side])
    )
    return b.add(scope, x, y)


def _larger(b: Blocks, scope: str, x: str, dim: int, side: int) -> str:
    """Double the size by repeating pixels, and add a convolution."""
    y = b.op(
        "Reshape", f"{scope}/Reshape", x, b.integers(f"{scope}.in", [1, dim, side, 1, side, 1])
    )
    y = b.op(
        "Expand", f"{scope}/Expand", y, b.integers(f"{scope}.twice", [1, dim, side, 2, side, 2])
    )
    y = b.op(
        "Reshape", f"{scope}/Reshape_1", y, b.integers(f"{scope}.out", [1, dim, 2 * side, 2 * side])
    )
    return b.conv(scope, y, (dim, dim))
