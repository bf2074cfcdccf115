"""What the types of TensorRT keep of a number: float64 arrays with the values that a type has."""

import ml_dtypes
import numpy as np
import onnx_ir as ir

FLOAT, HALF, BF16 = ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16
INT8 = ir.DataType.INT8
_NUMPY = {FLOAT: np.float32, HALF: np.float16, BF16: ml_dtypes.bfloat16, ir.DataType.DOUBLE: float}
FLOATS = frozenset(_NUMPY)
LARGEST_HALF = 65504.0
SMALLEST_HALF = 2.0**-24
_TF32_BITS = 13
"""Of the 23 bits behind a float32's point, those that TF32 lacks."""


def rounded(array, kind) -> np.ndarray:
    """Return what is left of an array that is stored as `kind`: to nearest, ties to even."""
    return np.asarray(array).astype(_NUMPY[kind]).astype(np.float64)


def rounded_weights(array, kind) -> np.ndarray:
    """Return what the builder makes of weights.

    In FP16 nothing finite becomes infinite and nothing vanishes; the builder warns of both, see
    `builder.py`.
    """
    if kind is HALF:
        largest = np.where(np.isinf(array), np.inf, LARGEST_HALF)
        smallest = np.where(array == 0, 0.0, SMALLEST_HALF)
        array = np.copysign(np.clip(np.abs(array), smallest, largest), array)
    return rounded(array, kind)


def tf32(array) -> np.ndarray:
    """Return what a product in TF32 reads: float32 with ten bits behind the point."""
    bits = np.asarray(array).astype(np.float32).view(np.uint32)
    half = (1 << (_TF32_BITS - 1)) - 1 + (bits >> _TF32_BITS & 1)
    kept = (bits + half) >> _TF32_BITS << _TF32_BITS
    return np.where(np.isfinite(array), kept.astype(np.uint32).view(np.float32), array)
