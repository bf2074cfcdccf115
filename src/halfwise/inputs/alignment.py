"""Where arrays lie in memory: ONNX Runtime's kernels sum in another order from other addresses.

Without this, results would depend on where in a file a sample lies.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

ALIGNMENT = 64
"""Bytes: as for ONNX Runtime's own tensors (onnxruntime, allocator.h)."""
COPIED = 1 << 16
"""Bytes up to which views of mapped files are copied: many samples of this size may stay loaded at
once (`halfwise.case.HELD_BYTES`), and each map has a file descriptor."""


def aligned(array: NDArray[Any]) -> NDArray[Any]:
    """Return a C-contiguous array whose address is a multiple of `ALIGNMENT`; itself, if it is so.

    Small views of mapped files are copied too (`COPIED`).

    Args:
        array: C-contiguous; numbers or booleans of any shape and type, or objects, which stay.
    """
    pins = isinstance(array.base, np.memmap) and array.nbytes <= COPIED
    if not array.size or array.dtype.hasobject or not (_address(array) % ALIGNMENT or pins):
        return array
    buffer = np.empty(array.nbytes + ALIGNMENT, np.uint8)
    start = -_address(buffer) % ALIGNMENT
    copy = buffer[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def _address(array: NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])
