"""Large tensors passed to ONNX Runtime separately from the graph, copied or shared."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
from numpy.typing import NDArray

from halfwise.graph.protobufs import STAND_IN
from halfwise.scratch import scratch

_REGISTERED = 2
"""`numpy.dtype.isbuiltin` of types that other packages registered with NumPy."""


def ort_value(array: NDArray[np.generic]) -> ort.OrtValue:
    """Return `array` for ONNX Runtime, sharing its memory if each element takes whole bytes.

    BF16 and the types of quantised models are registered types in NumPy, not built-in ones. Types
    smaller than a byte are packed into the start of a buffer of one byte per element.
    """
    if array.dtype.isbuiltin != _REGISTERED:
        return ort.OrtValue.ortvalue_from_numpy(array)
    dtype = ir.DataType.from_numpy(array.dtype)
    if dtype.bitwidth < 8:
        packed = np.frombuffer(ir.tensor(array).tobytes(), np.uint8)
        raw = np.zeros(array.shape, np.uint8)
        raw.reshape(-1)[: packed.size] = packed
    else:
        raw = array.view(f"u{array.itemsize}")
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(raw, int(dtype))


@contextmanager
def given(options: ort.SessionOptions, values: Mapping[str, ort.OrtValue]) -> Iterator[None]:
    """Pass large tensors by name to the session created within the block, which copies them."""
    options.add_external_initializers(list(values), list(values.values()))
    yield


@contextmanager
def lent(options: ort.SessionOptions, values: Mapping[str, ort.OrtValue]) -> Iterator[None]:
    """Pass large tensors by name to the session created within the block, which shares them.

    ONNX Runtime copies external initializers, but not values shared between sessions. For these,
    the file that the graph names must exist. It is empty, so a missing tensor is an error.
    """
    for name, value in values.items():
        options.add_initializer(name, value)
    with scratch() as folder:
        (folder / STAND_IN).touch()
        options.add_session_config_entry(
            "session.model_external_initializers_file_folder_path", str(folder)
        )
        yield
