"""Export norms and GELUs of JAX with jax2onnx.  Usage: python from_jax.py FOLDER"""

from __future__ import annotations

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import onnx
from jax2onnx import to_onnx

WIDTH = 24
ROWS, IMAGES = ("B", 5, WIDTH), ("B", WIDTH, 6, 4)
WEIGHT, BIAS = jnp.linspace(0.5, 1.5, WIDTH), jnp.linspace(-0.3, 0.7, WIDTH)


def by_variance(x):
    y = (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)
    return y * WEIGHT + BIAS


def by_moments(x):
    """As Flax writes it by default."""
    mean, squares = x.mean(-1), (x * x).mean(-1)
    variance = jnp.maximum(0.0, squares - mean * mean)
    factor = jax.lax.rsqrt(variance[..., None] + 1e-6) * WEIGHT
    return (x - mean[..., None]) * factor + BIAS


def standardized(x):
    return jax.nn.standardize(x, axis=-1) * WEIGHT + BIAS


def channels_first(x):
    y = (x - x.mean(1, keepdims=True)) / jnp.sqrt(x.var(1, keepdims=True) + 1e-6)
    return y * WEIGHT[:, None, None] + BIAS[:, None, None]


def root_mean_square(x):
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6) * WEIGHT


def deviation(x):
    return (x - x.mean(-1, keepdims=True)) / (x.std(-1, keepdims=True) + 1e-6) * WEIGHT


FUNCTIONS = {
    "layer_norm_by_variance": (by_variance, ROWS),
    "layer_norm_by_moments": (by_moments, ROWS),
    "layer_norm_standardized": (standardized, ROWS),
    "layer_norm_by_deviation": (deviation, ROWS),
    "layer_norm_channels_first": (channels_first, IMAGES),
    "rms_norm": (root_mean_square, ROWS),
    "gelu": (lambda x: jax.nn.gelu(x, approximate=False), ROWS),
    "gelu_tanh": (lambda x: jax.nn.gelu(x, approximate=True), ROWS),
}


def main() -> int:
    folder = Path(sys.argv[1])
    for name, (function, shape) in FUNCTIONS.items():
        path = folder / f"jax.jax2onnx.{name}.onnx"
        try:
            onnx.save(to_onnx(function, inputs=[shape], model_name=name), path)
        except Exception as error:  # noqa: BLE001 - an exporter may fail in any way
            path.unlink(missing_ok=True)
            print(f"{path.stem}: {type(error).__name__}: {str(error).splitlines()[0][:200]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
