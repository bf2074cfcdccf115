"""Where arrays lie in memory: ONNX Runtime's kernels sum in another order from other addresses.

Without this, results would depend on where in a file a sample lies.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

ALIGNMENT = 64
"""Bytes: as for ONNX Runtime's own tensors (onnxruntime, allocator.h)."""


def aligned(array: NDArray[Any]) -> NDArray[Any]:
    """Return a C-contiguous array whose address is a multiple of `ALIGNMENT`; itself, if it is so.

    Args:
        array: C-contiguous; numbers or booleans of any shape and type, or objects, which stay.
    """
    if not array.size or array.dtype.hasobject or not _address(array) % ALIGNMENT:
        return array
    buffer = np.empty(array.nbytes + ALIGNMENT, np.uint8)
    start = -_address(buffer) % ALIGNMENT
    copy = buffer[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def _address(array: NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])
