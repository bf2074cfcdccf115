"""Small models in ONNX's text format, with inputs, for tables of attacks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
from numpy.typing import NDArray
from onnx import numpy_helper

HEADER = '<ir_version: 8, opset_import: ["": 17]>'
SMALL = """g (float[n, 4] x) => (float[n, 3] y)
    { h = MatMul(x, w)  y = Relu(h) }"""


def drawn(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    """Return standard normal numbers of a shape."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def save(path: Path, text: str, weights: Mapping[str, NDArray[Any]] | None = None) -> Path:
    """Write the model of a text without its header, with initializers; return the path."""
    proto = onnx.parser.parse_model(f"{HEADER} {text}")
    for name, array in (weights or {}).items():
        proto.graph.initializer.append(numpy_helper.from_array(array, name))
    onnx.save(proto, path)
    return path


def small(folder: Path) -> Path:
    """Write a model with an input x f32[n, 4] and an output y f32[n, 3]; return the path."""
    return save(folder / "model.onnx", SMALL, {"w": drawn(4, 3)})
