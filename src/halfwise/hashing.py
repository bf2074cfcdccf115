"""Hashes of samples: which data a run had, and whether user code returns the same again."""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfwise.case import Sample


def hash_sample(
    sample: Sample, *, leave_out: Callable[[NDArray[Any]], bool] = lambda _: False
) -> str:
    """Return the SHA-256 of a sample, in hexadecimal.

    It covers each input's name, dtype, shape and bytes (so -0.0 differs from 0.0), except the bytes
    of inputs that `leave_out` selects. It does not cover identifiers, labels, the order of inputs
    or their layout in memory: the same data from another file has the same hash.
    """
    digest = hashlib.sha256(f"{len(sample)} inputs\n".encode())
    for name, array in sorted(sample.items()):
        # The length separates the name from what follows.
        digest.update(f"{len(name)}:{name} {array.dtype.name} {array.shape}\n".encode())
        if not leave_out(array):
            digest.update(_content(array))
    return digest.hexdigest()


def hash_together(hashes: Sequence[str]) -> str:
    """Return one SHA-256, in hexadecimal, of the hashes of samples and of their order."""
    return hashlib.sha256("\n".join(hashes).encode()).hexdigest()


def _content(array: NDArray[Any]) -> bytes | memoryview:
    if array.dtype.kind == "O":
        return "".join(f"{len(text)}:{text}" for text in array.flat).encode()
    return np.ravel(np.asarray(array, order="C")).view(np.uint8).data
