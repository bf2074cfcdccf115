"""Draws networks that no rule of the bands was made on, each with one fault for FP16.

As in `sequences` and `vision`, the fault changes no FP32 function.
"""

from __future__ import annotations

import numpy as np

from bench.gpu import data
from bench.gpu.basic_pitch import RATE, music
from bench.gpu.blocks import COUNT, WIDE, Blocks
from bench.gpu.models import Made
from bench.gpu.sequences import recurrent

LOUD = 2.0**9
"""Factor on sound before its spectrum: power is this squared."""
HEAD = 4 * WIDE
"""Factor for what reads means of gated values, which are small."""


def gru_forecaster() -> Made:
    """Two convolutions over time, a GRU, and a head on its last state, × 2¹⁹ inside."""
    b, bands, frames, hidden = Blocks(11), 48, 64, 96
    x = b.op("Relu", "stem.0/Relu", b.conv("stem.0", "spectra", (bands, 96), axes=1, side=5))
    x = b.op("Relu", "stem.1/Relu", b.conv("stem.1", x, (96, 96), axes=1, stride=2))
    x = b.op("Transpose", "stem/Transpose", x, perm=[2, 0, 1])
    y = recurrent(b, "GRU", "rnn", x, (96, hidden))
    y = b.op("Reshape", "rnn/Reshape", y, b.integers("rnn.shape", [frames // 2, hidden]))
    last = b.op("Gather", "last", y, b.integers("last.at", [frames // 2 - 1]), axis=0)
    ahead = b.ffn("head", last, hidden, 192, act="relu", factor=HEAD)
    ahead = b.linear("ahead", ahead, (hidden, bands))
    spectra = data.spectra(COUNT, frames, bands).transpose(0, 2, 1)[:, None]
    return b.made("gru_forecaster", {"spectra": spectra}, {"ahead": (ahead, [1, bands])}, 17)


def lstm_reader() -> Made:
    """Word vectors × 2¹⁷, a bidirectional LSTM that reads them, attention over words, classes."""
    b, dim, tokens, hidden, vocabulary = Blocks(12), 96, 24, 96, 600
    table = b.constant("embed.weight", WIDE * b.rng.standard_normal((vocabulary, dim)))
    x = b.op("Gather", "embed", table, "text")
    y = recurrent(b, "LSTM", "rnn", x, (dim, hidden), directions=2, reading=1 / WIDE)
    y = b.op("Transpose", "rnn/Transpose", y, perm=[0, 2, 1, 3])
    y = b.op("Reshape", "rnn/Reshape", y, b.integers("rnn.shape", [tokens, 2 * hidden]))
    told = b.op("Tanh", "look/Tanh", b.linear("look", y, (2 * hidden, 64), gain=2.0))
    told = b.linear("score", told, (64, 1), gain=4.0)
    share = b.op("Softmax", "share", told, axis=0)
    share = b.op("Transpose", "share/Transpose", share, perm=[1, 0])
    pooled = b.op("MatMul", "pool/MatMul", share, y)
    classes = b.ffn("head", pooled, 2 * hidden, 192)
    classes = b.linear("classes", b.add("head", pooled, classes), (2 * hidden, 12))
    text = data.words(COUNT, (1, tokens), vocabulary).transpose(0, 2, 1)
    return b.made("lstm_reader", {"text": text}, {"classes": (classes, [1, 12])}, 17)


def excite_cnn() -> Made:
    """Residual convolutions whose channels are weighed by their means, × 2¹⁷ inside one gate."""
    b, x, sides = Blocks(13), "images", (32, 64, 96)
    x = b.op("Relu", "stem/Relu", b.conv("stem", x, (3, sides[0]), stride=2))
    for i, dim in enumerate(sides):
        scope = f"stages.{i}"
        if i:
            x = b.op(
                "Relu",
                f"{scope}.smaller/Relu",
                b.conv(f"{scope}.smaller", x, (sides[i - 1], dim), stride=2),
            )
        y = b.op("Relu", f"{scope}.0/Relu", b.conv(f"{scope}.0", x, (dim, dim)))
        y = b.conv(f"{scope}.1", y, (dim, dim))
        factor = HEAD if i == 1 else 1.0
        gate = b.op("GlobalAveragePool", f"{scope}/gate/pool", y)
        gate = b.conv(f"{scope}/gate.0", gate, (dim, dim // 4), side=1, factor=factor)
        gate = b.op("Relu", f"{scope}/gate/Relu", gate)
        gate = b.conv(f"{scope}/gate.1", gate, (dim // 4, dim), side=1, reading=1 / factor)
        y = b.op("Mul", f"{scope}/Mul", y, b.op("Sigmoid", f"{scope}/gate/Sigmoid", gate))
        x = b.op("Relu", f"{scope}/Relu", b.add(scope, x, y))
    x = b.op("ReduceMean", "pool", x, axes=[2, 3], keepdims=0)
    logits = b.linear("head", x, (sides[-1], 20))
    images = data.photographs(COUNT, (64, 64), seed=13)[:, None]
    return b.made("excite_cnn", {"images": images}, {"logits": (logits, [1, 20])}, 17)


def text_decoder() -> Made:
    """Two causal layers with RMS norms and gated products, one of them × 2¹⁷ inside."""
    b, dim, tokens, vocabulary = Blocks(14), 128, 32, 500
    x = b.op("Gather", "embed", b.drawn("embed.weight", vocabulary, dim, deviation=1.0), "text")
    x = b.op("Add", "position", x, b.drawn("positions", 1, tokens, dim, deviation=0.2))
    mask = b.constant("mask", np.triu(np.full((1, 1, tokens, tokens), -1e4), 1))
    for i in range(2):
        scope, factor = f"layers.{i}", WIDE if i == 1 else 1.0
        y = _rms_norm(b, f"{scope}/norm1", x, dim)
        y = b.attention(f"{scope}/attn", (y, y), (tokens, tokens, dim), 4, mask=mask)
        x = b.add(f"{scope}/attn", x, y)
        y = _rms_norm(b, f"{scope}/norm2", x, dim)
        gate = b.silu(f"{scope}/mlp/silu", b.linear(f"{scope}/mlp/gate", y, (dim, 3 * dim)))
        up = b.linear(f"{scope}/mlp/up", y, (dim, 3 * dim), scale=(factor, factor))
        y = b.op("Mul", f"{scope}/mlp/Mul", gate, up)
        y = b.linear(f"{scope}/mlp/down", y, (3 * dim, dim), scale=(1 / factor, 1.0), gain=0.5)
        x = b.add(f"{scope}/mlp", x, y)
    logits = b.linear("head", _rms_norm(b, "norm", x, dim), (dim, vocabulary))
    outputs = {"logits": (logits, [1, tokens, vocabulary])}
    text = data.words(COUNT, (1, tokens), vocabulary)
    return b.made("text_decoder", {"text": text}, outputs, 17)


def mel_classifier() -> Made:
    """Sound × 2⁹, its power in mel bands as products, logarithms, convolutions, classes."""
    b, size, frames, bands = Blocks(15), 512, 48, 40
    window = np.hanning(size)
    turn = 2 * np.pi * np.arange(size)[:, None] * np.arange(size // 2)[None] / size
    parts = {"cos": np.cos(turn), "sin": np.sin(turn)}
    powers = []
    for name, wave in parts.items():
        kernel = b.constant(f"mel.{name}", LOUD * window[:, None] * wave / np.sqrt(size))
        y = b.op("MatMul", f"mel/{name}/MatMul", "sound", kernel)
        powers.append(b.op("Mul", f"mel/{name}/Mul", y, y))
    power = b.op("Add", "mel/Add", *powers)
    edges = np.geomspace(100, RATE / 2, bands + 2)[:, None]
    heard = np.arange(size // 2)[None] * RATE / size
    rising = (heard - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - heard) / (edges[2:] - edges[1:-1])
    filters = np.maximum(np.minimum(rising, falling), 1e-3)
    x = b.op("MatMul", "mel/MatMul", power, b.constant("mel.filters", filters.T))
    x = b.op("Add", "mel/floor", x, b.constant("mel.floor.at", 1e-3 * LOUD**2))
    x = b.op("Log", "mel/Log", x)
    x = b.op("Sub", "mel/Sub", x, b.constant("mel.level", 2 * np.log(LOUD)))
    x = b.op("Mul", "mel/scale", x, b.constant("mel.scale.at", 0.25))
    x = b.op("Transpose", "mel/Transpose", x, perm=[0, 2, 1])
    for i, channels in enumerate(((bands, 96), (96, 96), (96, 128))):
        x = b.op("Relu", f"convs.{i}/Relu", b.conv(f"convs.{i}", x, channels, axes=1, stride=2))
    x = b.op("ReduceMean", "pool", x, axes=[2], keepdims=0)
    classes = b.linear("head", x, (128, 16))
    sound = np.stack([_framed(music(seed), size, frames) for seed in range(COUNT)])
    arrays = {"sound": sound[:, None].astype(np.float32)}
    return b.made("mel_classifier", arrays, {"classes": (classes, [1, 16])}, 17)


def _framed(sound: np.ndarray, size: int, frames: int) -> np.ndarray:
    hop = (len(sound) - size) // frames
    return np.stack([sound[i * hop : i * hop + size] for i in range(frames)])


def residual_cnn() -> Made:
    """Plain residual convolutions; between the two of one block all is × 2¹⁷."""
    b, dim, x = Blocks(16), 64, "images"
    x = b.op("Relu", "stem/Relu", b.conv("stem", x, (3, dim), side=7, stride=4))
    for i in range(4):
        scope, factor = f"blocks.{i}", WIDE if i == 2 else 1.0
        y = b.conv(f"{scope}.0", x, (dim, dim), factor=factor)
        y = b.op("Relu", f"{scope}.0/Relu", y)
        y = b.conv(f"{scope}.1", y, (dim, dim), reading=1 / factor)
        x = b.op("Relu", f"{scope}/Relu", b.add(scope, x, y))
    x = b.op("ReduceMean", "pool", x, axes=[2, 3], keepdims=0)
    logits = b.linear("head", x, (dim, 20))
    images = data.photographs(COUNT, (64, 64), seed=16)[:, None]
    return b.made("residual_cnn", {"images": images}, {"logits": (logits, [1, 20])}, 17)


def mixer() -> Made:
    """Products over patches and over channels in turns; the values inside one are × 2¹⁷."""
    b, dim, side = Blocks(17), 128, 8
    tokens = side * side
    x = b.conv("patches", "images", (3, dim), side=8, stride=8, pad=0)
    x = b.heads("tokens", x, [1, dim, tokens], (0, 2, 1))
    for i in range(3):
        scope, factor = f"layers.{i}", WIDE if i == 1 else 1.0
        y = b.op(
            "Transpose", f"{scope}/turn", b.layer_norm(f"{scope}/norm1", x, dim), perm=[0, 2, 1]
        )
        y = b.ffn(f"{scope}/tokens", y, tokens, 2 * tokens, act="relu", factor=factor)
        x = b.add(f"{scope}/tokens", x, b.op("Transpose", f"{scope}/back", y, perm=[0, 2, 1]))
        y = b.ffn(f"{scope}/channels", b.layer_norm(f"{scope}/norm2", x, dim), dim, 3 * dim)
        x = b.add(f"{scope}/channels", x, y)
    x = b.op("ReduceMean", "pool", b.layer_norm("norm", x, dim), axes=[1], keepdims=0)
    logits = b.linear("head", x, (dim, 20))
    images = data.photographs(COUNT, (64, 64), seed=17)[:, None]
    return b.made("mixer", {"images": images}, {"logits": (logits, [1, 20])}, 17)


def depthwise_cnn() -> Made:
    """Inverted bottlenecks with convolutions by channel; what one of them reads is × 2¹⁷."""
    b, dims, x = Blocks(18), (24, 32, 48), "images"
    x = b.op("Relu", "stem/Relu", b.conv("stem", x, (3, dims[0]), stride=2))
    for i, dim in enumerate(dims):
        scope, given, factor = f"blocks.{i}", dims[max(i - 1, 0)], WIDE if i == 1 else 1.0
        wide, stride = 4 * given, 1 if i == 0 else 2
        y = b.conv(f"{scope}.wide", x, (given, wide), side=1, factor=factor)
        y = b.op("Relu", f"{scope}.wide/Relu", y)
        y = b.conv(f"{scope}.each", y, (wide, wide), stride=stride, group=wide, reading=1 / factor)
        y = b.conv(f"{scope}.narrow", b.op("Relu", f"{scope}.each/Relu", y), (wide, dim), side=1)
        x = b.add(scope, x, y) if given == dim and stride == 1 else y
    x = b.op("Relu", "last/Relu", b.conv("last", x, (dims[-1], 128), side=1))
    x = b.op("ReduceMean", "pool", x, axes=[2, 3], keepdims=0)
    logits = b.linear("head", x, (128, 20))
    images = data.photographs(COUNT, (64, 64), seed=18)[:, None]
    return b.made("depthwise_cnn", {"images": images}, {"logits": (logits, [1, 20])}, 17)


def _rms_norm(b: Blocks, name: str, x: str, dim: int) -> str:
    """Add an RMS norm of the last axis, written out."""
    square = b.op("Mul", f"{name}/Mul", x, x)
    mean = b.op("ReduceMean", f"{name}/ReduceMean", square, axes=[-1], keepdims=1)
    mean = b.op("Add", f"{name}/Add", mean, b.constant(f"{name}.eps", 1e-5))
    y = b.op("Div", f"{name}/Div", x, b.op("Sqrt", f"{name}/Sqrt", mean))
    return b.op("Mul", f"{name}/Mul_1", y, b.drawn(f"{name}.gamma", dim, deviation=0.1, mean=1.0))
