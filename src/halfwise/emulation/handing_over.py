"""Large tensors passed to ONNX Runtime beside the graph, copied or shared."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
from numpy.typing import NDArray

from halfwise.graph.serialisation import STAND_IN
from halfwise.scratch import scratch

_REGISTERED = 2
"""What NumPy calls the types that others registered with it (`numpy.dtype.isbuiltin`)."""


def ort_value(array: NDArray[np.generic]) -> ort.OrtValue:
    """Return `array` for ONNX Runtime, in the same memory where its elements have whole bytes.

    Of NumPy's types, BF16 and those that quantised models have are none of its own. What has
    several elements in a byte is packed, at the start of as many bytes as elements.
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
    """Pass the large tensors to a session, which copies them."""
    options.add_external_initializers(list(values), list(values.values()))
    yield


@contextmanager
def lent(options: ort.SessionOptions, values: Mapping[str, ort.OrtValue]) -> Iterator[None]:
    """Pass the large tensors to a session, which reads them in place.

    External initializers are copied; values shared between sessions are not, but then the file
    named by the graph must exist. It is empty, so that a missing tensor is an error.
    """
    for name, value in values.items():
        options.add_initializer(name, value)
    with scratch() as folder:
        (folder / STAND_IN).touch()
        options.add_session_config_entry(
            "session.model_external_initializers_file_folder_path", str(folder)
        )
        yield
