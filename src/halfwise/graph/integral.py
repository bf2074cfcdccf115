"""Turns floats that hold whole numbers because they were made from integers into integers again."""

import numpy as np
import onnx_ir as ir

from halfwise.graph.model import constant_array, is_standard
from halfwise.graph.reading import moves
from halfwise.graph.roles import is_float
from halfwise.graph.writing import Writer

CLOSED = frozenset(("Abs", "Add", "Concat", "Max", "Min", "Mod", "Mul", "Neg", "Sub"))
"""Operators that give whole numbers for whole numbers, as they do for integers."""
_STEPS = frozenset(("Ceil", "Floor", "Round"))
_LARGEST = 2.0**31
"""Largest magnitude of constants: a few products of such numbers fit into 64 bits."""
_DEEPEST = 32
"""Most nodes back to the integers: positions take only a few."""
FIRST_OPSET = 12
"""First operator set whose Max and Min take integers of 64 bits."""


def is_whole(value: ir.Value | None, depth: int = _DEEPEST) -> bool:
    """Return whether a float `value` is whole, whatever integers it is made from.

    It is made by sums, differences, products, remainders, floored quotients and data movement from
    Casts of integers and from whole constants. Exact below 2²⁴, where FP32 has all integers.
    """
    if value is None or depth == 0 or not is_float(value):
        return False
    node = value.producer()
    if node is None:
        return _is_whole_constant(value)
    if from_integer(node):
        return True
    if _floor_divided(node) is not None:
        return is_whole(_floor_divided(node), depth - 1)
    return all(is_whole(v, depth - 1) for v in _operands(node) or (None,))


def from_integer(node: ir.Node) -> bool:
    """Return whether a node is a Cast from an integer type."""
    source = node.inputs[0] if is_standard(node, "Cast") else None
    return source is not None and source.dtype is not None and source.dtype.is_integer()


class Integers:
    """Recomputes values that are whole (`is_whole`) in integers."""

    def __init__(self, w: Writer) -> None:
        self._w = w
        self._made: dict[ir.Value, ir.Value] = {}

    def of(self, value: ir.Value) -> ir.Value:
        """Return an INT64 tensor with the elements of `value`."""
        if value not in self._made:
            self._made[value] = self._integer(value)
        return self._made[value]

    def constant(self, number: int) -> ir.Value:
        """Return a scalar INT64 constant."""
        return self._w.constant("integer", np.array(number, np.int64))

    def _integer(self, value: ir.Value) -> ir.Value:
        node = value.producer()
        if node is None:
            return self._w.constant("integers", constant_array(value).astype(np.int64))
        if from_integer(node):
            source = node.inputs[0]
            assert source is not None
            is_long = source.dtype == ir.DataType.INT64
            return source if is_long else self._w.op("Cast", source, to=int(ir.DataType.INT64))
        divided = _floor_divided(node)
        if divided is not None:
            return self._divided(divided, node)
        operands = _operands(node)
        if is_standard(node, *_STEPS):
            return self.of(operands[0])
        read = [self.of(v) if v in operands else v for v in node.inputs if v is not None]
        return self._w.op(node.op_type, *read, **node.attributes)

    def _divided(self, dividend: ir.Value, floor: ir.Node) -> ir.Value:
        """Return ⌊a / c⌋: (a − remainder) / c, where the remainder has the sign of c."""
        quotient = floor.inputs[0]
        divisor = quotient.producer() if quotient is not None else None
        assert divisor is not None
        assert divisor.inputs[1] is not None
        a, c = self.of(dividend), self.of(divisor.inputs[1])
        return self._w.op("Div", self._w.op("Sub", a, self._w.op("Mod", a, c)), c)


def _operands(node: ir.Node) -> tuple[ir.Value, ...]:
    """Return the operands whose being whole makes the result whole; empty if nothing does."""
    if not is_standard(node):
        return ()
    if node.op_type in CLOSED:
        remainder = node.op_type == "Mod" and not all(_is_divisor(v) for v in node.inputs[1:])
        return () if remainder or len(node.inputs) > 2 else tuple(v for v in node.inputs if v)
    first = node.inputs[0] if node.inputs else None
    passed = moves(node) and node.op_type not in ("Cast", "Dropout")
    return (first,) if first is not None and (passed or node.op_type in _STEPS) else ()


def _floor_divided(node: ir.Node) -> ir.Value | None:
    """Return a of ⌊a / c⌋ if c is a whole constant without zeros, else None."""
    quotient = node.inputs[0] if is_standard(node, "Floor") else None
    maker = quotient.producer() if quotient is not None else None
    if maker is None or not is_standard(maker, "Div") or not _is_divisor(maker.inputs[1]):
        return None
    return maker.inputs[0]


def _is_divisor(value: ir.Value | None) -> bool:
    if value is None or value.producer() is not None or not _is_whole_constant(value):
        return False
    return bool((constant_array(value) != 0).all())


def _is_whole_constant(value: ir.Value) -> bool:
    if value.const_value is None or value.const_value.size > 1 << 20:
        return False
    array = constant_array(value)
    return bool((np.abs(array) <= _LARGEST).all() and (np.rint(array) == array).all())
