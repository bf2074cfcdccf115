"""Quantisation that TensorRT refuses, misreads or runs in floats, or that loses channels."""

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from halfwise.graph.loading import numbers
from halfwise.graph.model import is_standard, node_name
from halfwise.graph.quantised import (
    LEVELS,
    NARROW,
    Pair,
    half_quantised,
    keeps_nothing,
    pairs_of,
)
from halfwise.linting.rule import Found, Subject, name_of, rule
from halfwise.records import Severity
from halfwise.tensorrt.constrain import AGAIN, TAKEN
from halfwise.tensorrt.versions import has, since, text_of
from halfwise.wording import number, verb

_PARSER = "https://github.com/NVIDIA/TensorRT/issues/4698"
_TYPES = (
    "https://docs.nvidia.com/deeplearning/tensorrt/latest/inference-library/"
    "work-quantized-types.html"
)
_PLACES = (
    "https://docs.nvidia.com/deeplearning/tensorrt/latest/inference-library/"
    "quantized-types-explicit-quantization.html"
)

_FOUR_BITS = frozenset((ir.DataType.INT4, ir.DataType.UINT4, ir.DataType.FLOAT4E2M1))
"""Types for weights only: their readers compute in floats, as intended."""


@rule("quantisation-zero-point", "warning", _PARSER)
def zero_points(subject: Subject) -> Iterator[Found]:
    """TensorRT quantises symmetrically: its parser fails at zero points other than 0.

    An error with --trt-version.
    """
    for node in _steps(subject):
        zero = _zero_point(node)
        if zero is not None and zero.any():
            yield Found(
                f"its zero point is {zero[zero != 0].flat[0]}, not 0",
                AGAIN,
                node,
                name_of(node.inputs[2]),
                _graver(subject),
            )


@rule("quantisation-type", "warning", _TYPES)
def types(subject: Subject) -> Iterator[Found]:
    """TensorRT quantises to INT8, FP8 (E4M3), INT4 and FP4.

    It reads UINT8, the default of a QuantizeLinear without zero point, as INT8: values above 127
    saturate. Other types make the parser fail. An error with --trt-version.
    """
    for node in _steps(subject):
        value = node.outputs[0] if node.op_type == "QuantizeLinear" else node.inputs[0]
        dtype, zero = None if value is None else value.dtype, _zero_point(node)
        if dtype is None or (zero is not None and zero.any()):
            continue
        needed = TAKEN.get(dtype)
        if dtype not in TAKEN:
            message, fix = _foreign(node, dtype)
        elif needed and subject.tensorrt and not has(needed, subject.tensorrt):
            message = f"TensorRT {text_of(subject.tensorrt)} has no {needed}"
            fix = f"Build with TensorRT {since(needed)} or later, or quantise to INT8."
        else:
            continue
        yield Found(message, fix, node, severity=_graver(subject))


def _foreign(node: ir.Node, dtype: ir.DataType) -> tuple[str, str]:
    """Return what TensorRT does with a type that it does not quantise to, and the remedy."""
    if dtype == ir.DataType.UINT8:
        zero_point = len(node.inputs) > 2 and node.inputs[2] is not None
        why = "" if zero_point else ", the default without a zero point"
        return f"it is UINT8{why}: TensorRT reads INT8, so values above 127 saturate", AGAIN
    if dtype == ir.DataType.INT32:
        fix = "Leave biases as they are: QuantizeBias=False in onnxruntime.quantization."
        return "TensorRT does not dequantise INT32", fix
    return f"TensorRT quantises to INT8, FP8 (E4M3), INT4 and FP4, not to {dtype}", AGAIN


@rule("quantisation-scale", "error", "https://onnx.ai/onnx/operators/onnx__QuantizeLinear.html")
def scales(subject: Subject) -> Iterator[Found]:
    """A scale that is not a positive number loses values, and parsers refuse it."""
    for node in _steps(subject):
        scale = numbers(node.inputs[1])
        if scale is None or not scale.size:
            continue
        wide = scale.astype(np.float32)
        wrong = wide[~(np.isfinite(wide) & (wide > 0))]
        if wrong.size:
            first = number(float(wrong.flat[0]))
            said = f"its scale is not a positive number: {first}"
            if wide.size > 1:
                are = verb(wrong.size, "is not a positive number", "are not positive numbers")
                said = f"{wrong.size} of its {wide.size} scales {are}; the first is {first}"
            yield Found(
                said,
                "Calibrate again with data that reaches this tensor.",
                node,
                name_of(node.inputs[1]),
            )


_UNIT = ("HardSigmoid", "Sigmoid", "Softmax")
"""Operators whose results are at most 1."""


@rule("quantisation-joined", "warning", "https://arxiv.org/abs/2004.09602")
def joined(subject: Subject) -> Iterator[Found]:
    """One scale for joined tensors of very different size, such as boxes and scores.

    Reported if the scale behind a Concat leaves less than 1.27 of 127 levels to a joined tensor
    that is a constant, was quantised itself, or is at most 1 by its operator.
    """
    pairs = pairs_of(subject.network)
    known = {pair.dequantise: LEVELS * float(pair.scale.max(initial=0)) for pair in pairs}
    for pair in pairs:
        join = None if pair.source is None else pair.source.producer()
        if join is None or not is_standard(join, "Concat") or pair.scale.size != 1:
            continue
        for value in join.inputs:
            most, step = _most(value, known), float(pair.scale.item())
            if most is not None and keeps_nothing(most, step):
                yield Found(
                    f"its scale is {number(step)}, but {name_of(value)}, one of the tensors that "
                    f"{join.name} joins, is at most {number(most)}: it keeps no levels",
                    "Quantise the tensors before they are joined, or leave the Concat and what "
                    "follows out of INT8.",
                    pair.quantise,
                    name_of(value),
                )


def _most(value: ir.Value | None, known: Mapping[ir.Node, float]) -> float | None:
    """Return the largest magnitude that a tensor can have, if it shows without running."""
    maker = None if value is None else value.producer()
    if maker is not None:
        return 1.0 if is_standard(maker, *_UNIT) else known.get(maker)
    constant = numbers(value)
    return None if constant is None or not constant.size else float(np.abs(constant).max())


@rule("quantisation-half", "warning", _PLACES)
def half(subject: Subject) -> Iterator[Found]:
    """A product of which only the data or only the weights have 8 bits has no INT8 kernel.

    Quantisation then costs accuracy and time. Weights of 4 bits are meant to be used this way.
    """
    nodes = {node_name(node): node for node in subject.network.nodes()}
    for name, pairs in half_quantised(subject.network).items():
        if any(pair.dtype in _FOUR_BITS for pair in pairs):
            continue
        node = nodes[name]
        bits = [_bits(pairs, node, slot) for slot in (0, 1)]
        narrow = 0 if 0 < bits[0] <= NARROW else 1
        other, wide = name_of(node.inputs[1 - narrow]), bits[1 - narrow]
        yield Found(
            f"its {('data', 'weights')[narrow]} are quantised, but {other} is "
            + (f"{wide} bits wide, which no INT8 kernel takes" if wide else "not"),
            f"Quantise {other} {'to 8 bits' if wide else 'too'}, or neither.",
            node,
            other,
        )


def _bits(pairs: Iterable[Pair], node: ir.Node, slot: int) -> int:
    """Return the number of bits to which one of `pairs` quantises a node's slot; 0 if none does."""
    return next((pair.dtype.bitwidth for pair in pairs if (node, slot) in pair.readers), 0)


def _steps(subject: Subject) -> Iterator[ir.Node]:
    """Yield each QuantizeLinear, and each DequantizeLinear without one: a pair has one finding."""
    for node in subject.nodes():
        if is_standard(node, "QuantizeLinear"):
            yield node
        elif is_standard(node, "DequantizeLinear") and node.inputs[0] is not None:
            before = node.inputs[0].producer()
            if before is None or before.op_type != "QuantizeLinear":
                yield node


def _zero_point(node: ir.Node) -> NDArray[np.generic] | None:
    """Return the integers of a constant zero point; None if there is none, or if it is FP8."""
    value = node.inputs[2] if len(node.inputs) > 2 else None
    if value is None or value.dtype is None or not value.dtype.is_integer():
        return None
    return numbers(value)


def _graver(subject: Subject) -> Severity | None:
    return "error" if subject.tensorrt else None
