"""Convert sample arrays to an engine's types, and its outputs back to the model's.

An engine's types may differ from its model's: TensorRT before 10 turns int64 into int32 and float64
into float32, and users set FP16 inputs and outputs. Integers must convert without loss; floats are
rounded, and that error counts in the verdict.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from halfwise.case import Sample
from halfwise.errors import CaseError
from halfwise.formats import BF16
from halfwise.graph.sizes import declared_axes
from halfwise.tensorrt.versions import since
from halfwise.wording import dimensions, quoted

_NAMES = {"fp32": "float32", "float": "float32", "fp16": "float16", "half": "float16"}
_NAMES |= {"bf16": "bfloat16", "boolean": "bool"}


@dataclass(frozen=True)
class Port:
    """An input or output of an engine or of a model.

    Attributes:
        name: Its name.
        dtype: Its type.
        shape: Sizes of its axes, -1 for a dynamic one; None if not even the rank is known.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...] | None = None


def dtype_of(name: str) -> np.dtype[Any]:
    """Return the NumPy dtype for TensorRT's or NumPy's name of it ("HALF", "float16", "bf16").

    Raises:
        CaseError: arrays of this type are not supported, such as FP8 or INT4.
    """
    plain = name.lower().rpartition(".")[2]
    plain = _NAMES.get(plain, plain)
    if plain == "bfloat16":
        return BF16.dtype
    if plain in ("bool", "float16", "float32", "float64", "int8", "int32", "int64", "uint8"):
        found: np.dtype[Any] = np.dtype(plain)
        return found
    raise CaseError(
        f"Engine inputs and outputs of type {name} are not supported here.",
        "Build the engine with inputs and outputs in FP32, FP16, BF16, INT32, INT64 or BOOL.",
    )


def model_ports(values: Iterable[ir.Value]) -> tuple[Port, ...]:
    """Return the ports of graph inputs or outputs, which must be numeric tensors."""
    ports = []
    for value in values:
        assert value.name is not None
        assert value.dtype is not None
        shape = None
        if value.shape is not None:
            shape = tuple(a if isinstance(a, int) else -1 for a in declared_axes(value))
        ports.append(Port(value.name, value.dtype.numpy(), shape))
    return tuple(ports)


def check_names(found: Sequence[str], expected: Sequence[str], kind: str) -> None:
    """Check that an engine has the model's inputs, or outputs, by name and in any order.

    Args:
        found: Names in the engine.
        expected: Names in the model.
        kind: "inputs" or "outputs".

    Raises:
        CaseError: the two sets of names differ.
    """
    if set(found) != set(expected):
        raise CaseError(
            f"The engine's {kind} are {quoted(found)}, the model's {quoted(expected)}.",
            "Give the model that this engine was built from.",
        )


def fit_inputs(
    sample: Sample, ports: Sequence[Port], identifier: str
) -> dict[str, NDArray[np.generic]]:
    """Return a sample's arrays in the engine's types, C-contiguous, in the ports' order.

    Args:
        sample: Model inputs in the model's types.
        ports: Inputs of the engine.
        identifier: Identifier of the sample, for errors.

    Raises:
        CaseError: names or shapes differ, a value does not fit the engine's type, or the types
            cannot be converted.
    """
    check_names([port.name for port in ports], list(sample), "inputs")
    fitted = {}
    for port in ports:
        where = f"Sample {identifier}: input {port.name!r}"
        array = sample[port.name]
        _check_shape(array.shape, port, where)
        fitted[port.name] = np.asarray(_converted(array, port.dtype, where), order="C")
    return fitted


def fit_outputs(
    outputs: Mapping[str, NDArray[Any]], ports: Sequence[Port], identifier: str
) -> dict[str, NDArray[np.generic]]:
    """Return an engine's outputs in the model's types, in the ports' order.

    NaN and infinities stay. So does a shape that differs from the model's in the same rank: the
    verdict reports it.

    Args:
        outputs: Arrays by name; those that the model lacks (debug tensors) are dropped.
        ports: Outputs of the model.
        identifier: Identifier of the sample, for errors.

    Raises:
        CaseError: an output is missing, its rank differs, a value does not fit the model's type, or
            the types cannot be converted.
    """
    if not outputs.keys() >= {port.name for port in ports}:
        check_names(list(outputs), [port.name for port in ports], "outputs")
    fitted = {}
    for port in ports:
        where = f"Sample {identifier}: the engine's output {port.name!r}"
        array = outputs[port.name]
        if port.shape is not None and array.ndim != len(port.shape):
            raise CaseError(
                f"{where} has rank {array.ndim}, the model's {len(port.shape)}.",
                "Give the model that this engine was built from.",
            )
        fitted[port.name] = _converted(array, port.dtype, where)
    return fitted


def _check_shape(shape: tuple[int, ...], port: Port, where: str) -> None:
    if port.shape is None:
        return
    pairs = zip(shape, port.shape, strict=False)
    if len(shape) != len(port.shape) or any(b not in (-1, a) for a, b in pairs):
        raise CaseError(
            f"{where} is {dimensions(shape)}, the engine takes {dimensions(port.shape)}.",
            "Build the engine with a profile that covers this shape.",
        )


def _converted(array: NDArray[Any], dtype: np.dtype[Any], where: str) -> NDArray[np.generic]:
    """Return `array` as `dtype`, without a copy if nothing changes."""
    if array.dtype == dtype:
        return array
    kinds = {_kind(array.dtype), _kind(dtype)}
    if kinds == {"float"}:
        # Values that overflow reach the engine as infinity.
        with np.errstate(over="ignore", under="ignore"):
            return array.astype(dtype)
    if kinds <= {"integer", "bool"}:
        with np.errstate(all="ignore"):
            fitted = array.astype(dtype)
        # Modulo 2^64, a negative number survives the way to uint64 and back.
        changed = (fitted.astype(array.dtype) != array) | ((fitted < 0) != (array < 0))
        lost = np.flatnonzero(changed)
        if not lost.size:
            return fitted
        raise CaseError(
            f"{where} holds {np.ravel(array)[lost[0]]}, which {dtype.name} cannot hold.",
            f"Check the data, or build with TensorRT {since('int64')} or later, which has 64-bit "
            "integers.",
        )
    raise CaseError(
        f"{where} has type {array.dtype.name}; expected {dtype.name}.",
        "Build the engine with the types of the model's inputs and outputs.",
    )


def _kind(dtype: np.dtype[Any]) -> str:
    if dtype == BF16.dtype:
        return "float"
    return {"f": "float", "i": "integer", "u": "integer", "b": "bool"}.get(dtype.kind, dtype.name)
