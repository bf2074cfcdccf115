"""Draws networks that read text or sound, each with one fault for FP16 that changes no function."""

from __future__ import annotations

import numpy as np

from bench.gpu import data
from bench.gpu.blocks import COUNT, WIDE, Blocks
from bench.gpu.models import Made

HEAD = 4 * WIDE
"""Factor for the output of an LSTM, which is below 1."""


def text_encoder() -> Made:
    """A causal text encoder with QuickGELU; two channels are × 2¹⁷ after one LayerNorm."""
    b, dim, tokens, batch, vocabulary = Blocks(2), 192, 24, 3, 1000
    x = b.op("Gather", "embed", b.drawn("embed.weight", vocabulary, dim, deviation=1.0), "text")
    x = b.op("Add", "position", x, b.drawn("positions", 1, tokens, dim, deviation=0.1))
    mask = b.constant("mask", np.triu(np.full((1, 1, tokens, tokens), -1e4), 1))
    outliers = np.ones(dim)
    outliers[[17, 101]] = WIDE
    for i in range(3):
        scope, gamma = f"layers.{i}", outliers if i == 1 else np.ones(dim)
        y = b.layer_norm(f"{scope}/norm1", x, dim, gamma=gamma)
        y = b.attention(
            f"{scope}/attn",
            (y, y),
            (tokens, tokens, dim),
            4,
            batch=batch,
            mask=mask,
            reading=1 / gamma,
        )
        x = b.add(f"{scope}/attn", x, y)
        y = b.layer_norm(f"{scope}/norm2", x, dim)
        x = b.add(f"{scope}/mlp", x, b.ffn(f"{scope}/mlp", y, dim, 4 * dim, act="quick"))
    x = b.layer_norm("norm", x, dim)
    last = b.op("Gather", "pool", x, b.integers("last", [tokens - 1]), axis=1)
    last = b.op("Reshape", "pool/Reshape", last, b.integers("pooled.shape", [batch, dim]))
    pooled = b.linear("projection", last, (dim, 128))
    outputs = {"pooled": (pooled, [batch, 128]), "hidden": (x, [batch, tokens, dim])}
    text = data.words(COUNT, (batch, tokens), vocabulary)
    return b.made("text_encoder", {"text": text}, outputs, 14)


def audio_encoder() -> Made:
    """Two convolutions over time, sine positions, a transformer with LayerNormalization nodes.

    The values of one attention are × 2¹⁷.
    """
    b, dim, bands, frames = Blocks(5), 256, 80, 96
    tokens = frames // 2
    x = b.gelu("stem.0/gelu", b.conv("stem.0", "spectra", (bands, 128), axes=1))
    x = b.gelu("stem.1/gelu", b.conv("stem.1", x, (128, dim), axes=1, stride=2))
    x = b.op("Transpose", "stem/Transpose", x, perm=[0, 2, 1])
    angles = np.arange(tokens)[:, None] * np.exp(
        -np.log(10000) * np.arange(dim // 2) / (dim // 2 - 1)
    )
    waves = np.concatenate([np.sin(angles), np.cos(angles)], 1)
    x = b.op("Add", "position", x, b.constant("positions", waves[None]))
    for i in range(2):
        scope = f"layers.{i}"
        y = _native_norm(b, f"{scope}/norm1", x, dim)
        values = WIDE if i == 1 else 1.0
        y = b.attention(f"{scope}/attn", (y, y), (tokens, tokens, dim), 4, values=values)
        x = b.add(f"{scope}/attn", x, y)
        y = _native_norm(b, f"{scope}/norm2", x, dim)
        x = b.add(f"{scope}/mlp", x, b.ffn(f"{scope}/mlp", y, dim, 4 * dim))
    x = _native_norm(b, "norm", x, dim)
    spectra = data.spectra(COUNT, frames, bands).transpose(0, 2, 1)[:, None]
    return b.made("audio_encoder", {"spectra": spectra}, {"hidden": (x, [1, tokens, dim])}, 17)


def _native_norm(b: Blocks, name: str, x: str, dim: int) -> str:
    gamma = b.drawn(f"{name}.gamma", dim, deviation=0.1, mean=1.0)
    beta = b.drawn(f"{name}.beta", dim, deviation=0.1)
    return b.op(
        "LayerNormalization", f"{name}/LayerNormalization", x, gamma, beta, axis=-1, epsilon=1e-5
    )


def lstm_tagger() -> Made:
    """Two bidirectional LSTMs over spectra, and a head that tags frames, × 2¹⁹ inside."""
    b, bands, frames, hidden = Blocks(7), 64, 40, 128
    x = b.op("Relu", "input/Relu", b.linear("input", "spectra", (bands, 128)))
    for i, given in enumerate((128, 2 * hidden)):
        y = recurrent(b, "LSTM", f"rnn.{i}", x, (given, hidden), directions=2)
        y = b.op("Transpose", f"rnn.{i}/Transpose", y, perm=[0, 2, 1, 3])
        x = b.op(
            "Reshape", f"rnn.{i}/Reshape", y, b.integers(f"rnn.{i}.shape", [frames, 1, 2 * hidden])
        )
    tags = b.ffn("head", x, 2 * hidden, 256, act="relu", factor=HEAD)
    tags = b.linear("tags", b.layer_norm("norm", tags, 2 * hidden), (2 * hidden, 24))
    spectra = data.spectra(COUNT, frames, bands)[:, :, None]
    return b.made("lstm_tagger", {"spectra": spectra}, {"tags": (tags, [frames, 1, 24])}, 17)


def gru_denoiser() -> Made:
    """A mask for spectra from two GRUs; the input of the first is × 2¹⁷."""
    b, bands, frames, hidden = Blocks(8), 96, 32, 128
    x = b.op("Relu", "input/Relu", b.linear("input", "spectra", (bands, 128), scale=(WIDE, WIDE)))
    for i in range(2):
        y = recurrent(b, "GRU", f"rnn.{i}", x, (128, hidden), reading=1 / WIDE if i == 0 else 1.0)
        x = b.op(
            "Reshape", f"rnn.{i}/Reshape", y, b.integers(f"rnn.{i}.shape", [frames, 1, hidden])
        )
    mask = b.op("Sigmoid", "mask/Sigmoid", b.linear("mask", x, (hidden, bands)))
    clean = b.op("Mul", "clean", "spectra", mask)
    spectra = data.spectra(COUNT, frames, bands)[:, :, None]
    outputs = {"clean": (clean, [frames, 1, bands])}
    return b.made("gru_denoiser", {"spectra": spectra}, outputs, 17)


def recurrent(
    b: Blocks,
    kind: str,
    name: str,
    x: str,
    sizes: tuple[int, int],
    *,
    directions: int = 1,
    reading: float = 1.0,
) -> str:
    """Add a recurrent node; `reading` multiplies the weights that read x."""
    given, hidden = sizes
    gates = {"LSTM": 4, "GRU": 3}[kind]
    deviation = 1.0 / np.sqrt(hidden)
    w = b.drawn(f"{name}.w", directions, gates * hidden, given, deviation=deviation * reading)
    r = b.drawn(f"{name}.r", directions, gates * hidden, hidden, deviation=deviation)
    bias = b.drawn(f"{name}.b", directions, 2 * gates * hidden, deviation=0.1)
    options = {"linear_before_reset": 1} if kind == "GRU" else {}
    direction = "bidirectional" if directions == 2 else "forward"
    return b.op(
        kind, f"{name}/{kind}", x, w, r, bias, hidden_size=hidden, direction=direction, **options
    )
