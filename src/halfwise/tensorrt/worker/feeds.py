"""Arrays on their way to an engine and back."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfwise.tensorrt.engine.fitting import Port, dtype_of, fit_inputs
from halfwise.tensorrt.worker.described import Description

Feeds = Mapping[str, NDArray[Any]]


def input_ports(engine: Description) -> list[Port]:
    """Return the inputs of an engine.

    Raises:
        CaseError: one has a type that no array here has.
    """
    return [Port(t.name, dtype_of(t.dtype), t.shape) for t in engine.tensors if t.is_input]


def packed(feeds: Feeds, engine: Description) -> tuple[list[dict[str, Any]], bytes]:
    """Return what a request says about a sample in the engine's types, and the bytes of all arrays.

    Raises:
        CaseError: the engine has other inputs, or types that cannot hold these values.
    """
    entries, parts = [], []
    for name, array in fit_inputs(feeds, input_ports(engine), "for the engine").items():
        entries.append({"name": name, "dtype": array.dtype.name, "shape": list(array.shape)})
        parts.append(array.tobytes())
    return entries, b"".join(parts)


def unpacked(
    entries: Sequence[Mapping[str, Any]], data: bytes | memoryview
) -> dict[str, NDArray[Any]]:
    """Return the arrays that an answer holds, read-only, by name.

    Raises:
        CaseError: a type that no array here has.
    """
    found, offset = {}, 0
    for entry in entries:
        dtype, shape = dtype_of(entry["dtype"]), tuple(entry["shape"])
        count = int(np.prod(shape, dtype=np.int64))
        array = np.frombuffer(data, dtype, count, offset).reshape(shape)
        found[entry["name"]] = array
        offset += array.nbytes
    return found
