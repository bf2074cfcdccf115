"""Small networks with pairs in them."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from onnxruntime.quantization import CalibrationDataReader

from tests.unit.graph.sketch import Sketch, f32

LAYERS = ("first", "second", "third")
SIZE = 4


class Reader(CalibrationDataReader):  # type: ignore[misc]
    """Gives samples to onnxruntime.quantization."""

    def __init__(self, samples: Iterable[Mapping[str, Any]]) -> None:
        self._left = iter(samples)

    def get_next(self) -> Mapping[str, Any] | None:
        return next(self._left, None)


def weights(layer: str) -> NDArray[np.float32]:
    """f32[SIZE, SIZE], of different sizes in each column, none of them what a scale gives."""
    rng = np.random.default_rng(LAYERS.index(layer))
    return f32(rng.normal(size=(SIZE, SIZE)) * [0.1, 1, 3, 10])


def chain(
    quantised: Collection[str],
    *,
    stored: bool = True,
    dtype: Any = np.int8,
    per: str = "channel",
    moved: bool = False,
    opset: int = 21,
) -> Sketch:
    """Products named as `LAYERS`, with Relu between; those `quantised` read pairs.

    Args:
        quantised: These.
        stored: Whether weights are stored as integers, else as floats before a pair.
        dtype: What weights are stored as.
        per: "tensor", "channel" or "block": what has a scale of its own.
        moved: Whether a Transpose stands between a weight's pair and its product.
        opset: The operator set.
    """
    s = Sketch(opset)
    x = s.input("x", [2, SIZE])
    for layer in LAYERS:
        w = weights(layer).T if moved else weights(layer)
        w = np.ascontiguousarray(w)
        if layer in quantised:
            zero = s.constant(np.array(3, np.int8))
            codes = s.op("QuantizeLinear", x, 0.25, zero, name=f"{layer}/q")
            x = s.op("DequantizeLinear", codes, 0.25, zero, name=f"{layer}/dq")
            given = _weight(s, layer, w, stored, dtype, per, 0 if moved else 1)
        else:
            given = s.constant(w, f"{layer}/w")
        if moved:
            given = s.op("Transpose", given, name=f"{layer}/transpose", perm=[1, 0])
        x = s.op("Relu", s.op("MatMul", x, given, name=layer), name=f"{layer}/relu")
    return s


def last(s: Sketch) -> str:
    """The output of a chain."""
    return str(s.nodes[-1].output[0])


def _weight(
    s: Sketch, layer: str, w: NDArray[np.float32], stored: bool, dtype: Any, per: str, axis: int
) -> str:
    most = float(ml_dtypes.iinfo(dtype).max)
    sizes = np.abs(w)
    if per == "tensor":
        scale, attributes = f32(sizes.max() / most), {}
    elif per == "channel":
        scale, attributes = f32(sizes.max(1 - axis) / most), {"axis": axis}
    else:
        halves = np.maximum(*np.split(sizes, 2, axis=1 - axis))
        scale = f32(np.repeat(np.expand_dims(halves.max(1 - axis), 1 - axis), 2, 1 - axis) / most)
        attributes = {"axis": 1 - axis, "block_size": SIZE // 2}
    zero = np.zeros(scale.shape, dtype)
    if stored:
        spread = scale
        if per == "channel":
            spread = np.expand_dims(scale, 1 - axis)
        elif per == "block":
            spread = np.repeat(scale, SIZE // 2, 1 - axis)
        codes = s.constant(np.rint(w / spread).astype(dtype), f"{layer}/codes")
    else:
        codes = s.op(
            "QuantizeLinear", s.constant(w, f"{layer}/w"), s.constant(scale), s.constant(zero),
            name=f"{layer}/wq", **attributes,
        )  # fmt: skip
    return s.op(
        "DequantizeLinear", codes, s.constant(scale), s.constant(zero),
        name=f"{layer}/wdq", **attributes,
    )  # fmt: skip
