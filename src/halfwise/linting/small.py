"""Constants that keep a value away from zero, and are zero or nearly so in FP16."""

from collections.abc import Iterator

import onnx_ir as ir

from halfwise.formats import FP16
from halfwise.graph.patterns.reading import is_constant, readers, scalar
from halfwise.linting.rule import Found, Subject, name_of, rule

_ADDERS = ("Add", "Sum", "Max", "Clip")
"""Operators that put an eps on a value."""
_DEMANDING = {"Sqrt": (0,), "Log": (0,), "Reciprocal": (0,), "Div": (1,), "Pow": (0,)}
"""Operands that must not become zero; Sqrt and Pow where what follows divides."""


@rule("eps-vanishes", "warning", "https://github.com/pytorch/pytorch/issues/32137")
def vanishing(subject: Subject) -> Iterator[Found]:
    """An eps below FP16's smallest number, 6e-8, keeps no divisor or logarithm from zero there."""
    for node, eps, reader, name in _eps(subject):
        if eps < FP16.smallest_subnormal:
            tiny = f"{FP16.smallest_subnormal:.2g}"
            zero = f"zero in FP16 by plain conversion ({tiny} in what halfwise fix stores)"
            stored = zero if eps <= FP16.flush_threshold else f"{tiny} in FP16"
            yield Found(
                f"the eps {eps:.3g} before {reader} becomes {stored}",
                f"Use an eps of at least {FP16.smallest_normal:.2g}, or keep this node and the "
                f"{reader} in FP32.",
                node,
                name,
            )


@rule("eps-subnormal", "info", "https://github.com/pytorch/pytorch/issues/32137")
def subnormal(subject: Subject) -> Iterator[Found]:
    """An eps between 6e-8 and 6.1e-5 is subnormal in FP16.

    It has few bits there, and is zero where a kernel flushes subnormal numbers.
    """
    for node, eps, reader, name in _eps(subject):
        if FP16.smallest_subnormal <= eps < FP16.smallest_normal:
            bits = int(eps / FP16.smallest_subnormal).bit_length()
            yield Found(
                f"the eps {eps:.3g} before {reader} is subnormal in FP16: {bits} of 11 bits",
                f"Use an eps of at least {FP16.smallest_normal:.2g} where values come near it, or "
                f"keep this node and the {reader} in FP32.",
                node,
                name,
            )


def _eps(subject: Subject) -> Iterator[tuple[ir.Node, float, str, str]]:
    """Yield node, eps, operator that needs it, and name of the constant."""
    for node in subject.nodes():
        if node.op_type not in _ADDERS:
            continue
        constants = [v for v in _bounds(node) if v is not None and is_constant(v)]
        tiny = [(v, n) for v in constants if (n := scalar(v)) and 0 < n < FP16.smallest_normal]
        reader = _demanding(node.outputs[0]) if tiny else ""
        if reader and len(constants) < len(node.inputs):
            yield node, tiny[0][1], reader, name_of(tiny[0][0])


def _bounds(node: ir.Node) -> tuple[ir.Value | None, ...]:
    """Return the operands that may be an eps: of a Clip its lower bound only."""
    return tuple(node.inputs[1:2]) if node.op_type == "Clip" else tuple(node.inputs)


def _demanding(value: ir.Value) -> str:
    """Return the operator that `value` must not be zero for; "" where none reads it."""
    for node, slot, _ in readers(value):
        if slot in _DEMANDING.get(node.op_type, ()):
            power = scalar(node.inputs[1]) if node.op_type == "Pow" else None
            if node.op_type != "Pow" or (power is not None and power < 1.0):
                return node.op_type
    return ""
