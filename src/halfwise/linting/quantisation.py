"""Quantisation that TensorRT refuses, reads as another type or cannot fuse, and lost channels."""

from collections import Counter
from collections.abc import Iterator

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from halfwise.graph.model import QUANTISED, is_standard
from halfwise.graph.unchecked import numbers
from halfwise.linting.rule import Found, Subject, name_of, rule, standard_nodes
from halfwise.records import Severity
from halfwise.tensorrt.versions import Feature, has, since, text_of

_PARSER = "https://github.com/NVIDIA/TensorRT/issues/4698"
_TYPES = (
    "https://docs.nvidia.com/deeplearning/tensorrt/latest/inference-library/"
    "work-quantized-types.html"
)
_TAKEN: dict[ir.DataType, Feature | None] = {
    ir.DataType.INT8: None,
    ir.DataType.FLOAT8E4M3FN: "FP8",
    ir.DataType.INT4: "INT4",
    ir.DataType.FLOAT4E2M1: "FP4",
}
"""What TensorRT quantises to, and what a version needs for it."""
_AGAIN = (
    "Quantise to INT8 with zero points of 0: QInt8 and ActivationSymmetric in "
    "onnxruntime.quantization, or halfwise fix --to int8."
)


@rule("quantised", "info", _TYPES, reads_graph=False)
def quantised(subject: Subject) -> Iterator[Found]:
    """Quantised operators fix the type of what is around them, and lose accuracy by themselves."""
    found = [each for each in standard_nodes(subject) if each[1].op_type.startswith(QUANTISED)]
    if found:
        counts = Counter(node.op_type for _, node in found)
        kinds = ", ".join(f"{number} {op}" for op, number in counts.items())
        yield Found(
            f"the model is quantised: {kinds}",
            "Judge it against the model before: halfwise verify ORIGINAL QUANTISED --inputs DATA.",
            found[0][0],
        )


@rule("quantisation-zero-point", "warning", _PARSER)
def zero_points(subject: Subject) -> Iterator[Found]:
    """TensorRT quantises symmetrically: its parser ends at a zero point other than 0.

    An error with --trt-version. Of a pair, the QuantizeLinear is named.
    """
    for node in _steps(subject):
        zero = _zero_point(node)
        if zero is not None and zero.any():
            yield Found(
                f"its zero point is not 0 but {zero[zero != 0].flat[0]}",
                _AGAIN,
                node,
                name_of(node.inputs[2]),
                _graver(subject),
            )


@rule("quantisation-type", "warning", _TYPES)
def types(subject: Subject) -> Iterator[Found]:
    """TensorRT quantises to INT8, FP8 (E4M3), INT4 and FP4.

    It reads UINT8, which is also what a QuantizeLinear without zero point gives, as INT8, so that
    what is above 127 saturates; other types end the parser. An error with --trt-version.
    """
    for node in _steps(subject):
        dtype, zero = _type(node), _zero_point(node)
        if dtype is None or (zero is not None and zero.any()):
            continue
        needed = _TAKEN.get(dtype)
        if dtype not in _TAKEN:
            message, fix = _foreign(node, dtype)
        elif needed and subject.tensorrt and not has(needed, subject.tensorrt):
            message = f"TensorRT {text_of(subject.tensorrt)} has no {needed}"
            fix = f"Build with TensorRT {since(needed)} or later, or quantise to INT8."
        else:
            continue
        yield Found(message, fix, node, severity=_graver(subject))


def _foreign(node: ir.Node, dtype: ir.DataType) -> tuple[str, str]:
    """Return what TensorRT does with a type that it does not quantise to, and what helps."""
    if dtype == ir.DataType.UINT8:
        given = len(node.inputs) > 2 and node.inputs[2] is not None
        why = "" if given else ", which no zero point means"
        return f"it is of UINT8{why}: TensorRT reads INT8, and above 127 saturates", _AGAIN
    if dtype == ir.DataType.INT32:
        fix = "Leave biases as they are: QuantizeBias=False in onnxruntime.quantization."
        return "TensorRT dequantises no INT32", fix
    return f"TensorRT quantises to INT8, FP8 (E4M3), INT4 and FP4, not to {dtype}", _AGAIN


@rule("quantisation-scale", "error", "https://onnx.ai/onnx/operators/onnx__QuantizeLinear.html")
def scales(subject: Subject) -> Iterator[Found]:
    """A scale that is no positive number: what is divided by it is lost, and parsers refuse it."""
    for node in _steps(subject):
        scale = numbers(node.inputs[1])
        if scale is None or not scale.size:
            continue
        wide = scale.astype(np.float32)
        wrong = wide[~(np.isfinite(wide) & (wide > 0))]
        if wrong.size:
            many = f"{wrong.size} of {wide.size} scales are" if wide.size > 1 else "its scale is"
            yield Found(
                f"{many} no positive number but {wrong.flat[0]}",
                "Calibrate again, on data that reach this tensor.",
                node,
                name_of(node.inputs[1]),
            )


def _steps(subject: Subject) -> Iterator[ir.Node]:
    """Yield each QuantizeLinear, and each DequantizeLinear that is behind none of the same kind.

    A pair has one finding.
    """
    for node in subject.nodes():
        if is_standard(node, "QuantizeLinear"):
            yield node
        elif is_standard(node, "DequantizeLinear") and node.inputs[0] is not None:
            before = node.inputs[0].producer()
            if before is None or before.op_type != "QuantizeLinear":
                yield node


def _zero_point(node: ir.Node) -> NDArray[np.generic] | None:
    """Return the integers of a constant zero point; None where it is none, or of FP8."""
    value = node.inputs[2] if len(node.inputs) > 2 else None
    if value is None or value.dtype is None or not value.dtype.is_integer():
        return None
    return numbers(value)


def _type(node: ir.Node) -> ir.DataType | None:
    """Return what a node quantises to, or dequantises; None where nobody knows."""
    value = node.outputs[0] if node.op_type == "QuantizeLinear" else node.inputs[0]
    return None if value is None else value.dtype


def _graver(subject: Subject) -> Severity | None:
    return "error" if subject.tensorrt else None
