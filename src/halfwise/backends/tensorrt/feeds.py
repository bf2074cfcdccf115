"""Arrays as an engine takes and gives them."""

from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from halfwise.backends.tensorrt.described import Description
from halfwise.errors import CaseError

Feeds = Mapping[str, NDArray[Any]]


def packed(feeds: Feeds, engine: Description) -> tuple[list[dict[str, Any]], bytes]:
    """Return what a request says about arrays, and their bytes one after another.

    An array of another type than the engine's is converted where that changes no value: TensorRT
    before 10 reads int64 as int32. Names are checked by the worker.

    Raises:
        CaseError: values that the engine's type cannot hold.
    """
    types = {str(tensor.name): tensor.dtype for tensor in engine.tensors if tensor.is_input}
    entries, parts = [], []
    for name, given in feeds.items():
        array = _exactly(name, given, types.get(name, given.dtype.name))
        entries.append({"name": name, "dtype": array.dtype.name, "shape": list(array.shape)})
        parts.append(array.tobytes())
    return entries, b"".join(parts)


def unpacked(entries: Sequence[Mapping[str, Any]], data: bytes) -> dict[str, NDArray[Any]]:
    """Return the arrays that an answer holds, read-only, by name."""
    found, offset = {}, 0
    for entry in entries:
        dtype, shape = named_dtype(entry["dtype"]), tuple(entry["shape"])
        count = int(np.prod(shape, dtype=np.int64))
        array = np.frombuffer(data, dtype, count, offset).reshape(shape)
        found[entry["name"]] = array
        offset += array.nbytes
    return found


def named_dtype(name: str) -> np.dtype[Any]:
    """Return the dtype of a name that NumPy or ml_dtypes knows."""
    return np.dtype(getattr(ml_dtypes, name, name))


def _exactly(name: str, array: NDArray[Any], dtype: str) -> NDArray[Any]:
    if array.dtype.name == dtype:
        return array
    with np.errstate(all="ignore"):
        converted = array.astype(named_dtype(dtype))
        back = converted.astype(array.dtype)
    same = back == array
    if array.dtype.kind not in "iub":
        same |= (back != back) & (array != array)  # noqa: PLR0124 - NaN, in types without isnan
    if not np.all(same):
        raise CaseError(
            f"Input {name} is {array.dtype.name} with values that {dtype}, the engine's type for "
            "it, cannot hold.",
            "Give values within its range, or build the engine with another input type.",
        )
    return converted
