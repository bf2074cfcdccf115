"""A sum rounded to the low format after each block of its terms, as a loop."""

from collections.abc import Callable, Sequence
from math import ceil, prod

import numpy as np
import onnx_ir as ir

from halfwise.emulation.rounding import Steps, round_value
from halfwise.formats import Format

BLOCK = 16
"""Terms summed in FP32 before the accumulator is rounded: the k of PTX mma.m16n8k16 with .f16
accumulators, which is one HMMA.16816.F16."""

MOST = 4096
"""Longest sum whose products are rounded one by one; longer ones in as many parts, as a loop takes
time for each."""

INT64 = ir.DataType.INT64


class LowSteps(Steps):
    """Nodes under construction, whose sums are rounded to the low format."""

    def __init__(self, prefix: str, fmt: Format, opset: int, *, each: bool) -> None:
        super().__init__(prefix)
        self.fmt, self.opset, self.each = fmt, opset, each
        self.shortest = -1 if each else BLOCK
        self._integers: dict[object, ir.Value] = {}

    def integers(self, values: int | Sequence[int]) -> ir.Value:
        """Return a constant i64[] or i64[len(values)]; the same values are one node."""
        array = np.array(values, np.int64)
        key = array.shape, array.tobytes()
        if key not in self._integers:
            value = {"value": ir.Tensor(array)}
            self._integers[key] = self.op("Constant", [], value, INT64)
        return self._integers[key]

    def count(self, value: ir.Value, axes: Sequence[int]) -> ir.Value:
        """Return the number of elements of `value` along `axes`, i64[]; a constant if known."""
        sizes = [None] if value.shape is None else [value.shape[axis] for axis in axes]
        known = [size for size in sizes if isinstance(size, int)]
        if len(known) == len(axes):
            return self.integers(prod(known))
        shape = self.op("Shape", [value], dtype=INT64)
        lengths = self.op("Gather", [shape, self.integers(axes)], dtype=INT64)
        return self.op("ReduceProd", [lengths], {"keepdims": 0}, INT64)

    def width(self, terms: int | None) -> int:
        """Return how many of `terms` terms form a block."""
        return ceil(max(terms or 1, 1) / MOST) if self.each else BLOCK

    def round(self, value: ir.Value) -> ir.Value:
        """Return `value` rounded to the low format."""
        rounded = round_value(value, self.fmt, self.next_name("round"))
        self.nodes += rounded.nodes
        return rounded.wide


class Call:
    """A node, the values to read, and what is known about their shapes."""

    def __init__(
        self, node: ir.Node, inputs: Sequence[ir.Value | None], shortest: int = BLOCK
    ) -> None:
        self.node, self._shortest = node, shortest
        self.attributes = node.attributes
        self._inputs = inputs

    def has(self, index: int) -> bool:
        """Return whether an optional input is given."""
        return index < len(self._inputs) and self._inputs[index] is not None

    def input(self, index: int) -> ir.Value:
        """Return an input that is given."""
        value = self._inputs[index]
        assert value is not None
        return value

    def shape(self, index: int) -> ir.Shape | None:
        """Return the shape of an input; None if not even its rank is known."""
        # Of the node's own input: a rounded copy carries neither shape nor constant.
        value = self.node.inputs[index]
        return None if value is None else value.shape

    def is_short(self, *slots: tuple[int, Sequence[int]]) -> bool:
        """Return whether the sizes of any (input, axes) show that the sum fits in one block."""
        terms = self.terms(*slots)
        return terms is not None and terms <= self._shortest

    def terms(self, *slots: tuple[int, Sequence[int]]) -> int | None:
        """Return the least number of terms that the sizes of any (input, axes) show, if any do."""
        counts = []
        for index, axes in slots:
            shape = self.shape(index)
            sizes = [] if shape is None else [d for d in (shape[a] for a in axes) if type(d) is int]
            if len(sizes) == len(axes):
                counts.append(prod(sizes))
        return min(counts, default=None)

    def constant_ints(self, index: int) -> tuple[int, ...] | None:
        """Return the elements of a constant input; None if it is not constant."""
        value = self.node.inputs[index]
        if value is None or value.const_value is None:
            return None
        return tuple(int(v) for v in value.const_value.numpy().flat)


Operand = tuple[ir.Value, int]
BlockSum = Callable[[LowSteps, list[ir.Value]], ir.Value]


def blocked(
    steps: LowSteps,
    operands: Sequence[Operand],
    block_sum: BlockSum,
    width: int = BLOCK,
    addend: ir.Value | None = None,
) -> ir.Value:
    """Return round(… round(round(a + s₀) + s₁) … + sₙ), where sᵢ is the wide sum of block i.

    Args:
        steps: Takes the nodes.
        operands: What to slice into blocks, each along its axis; these axes are equally long.
        block_sum: Appends the sum over one block of all operands.
        width: Terms of a block.
        addend: a; 0 if it is not given.
    """
    value, axis = operands[0]
    # At least one block, of no terms if there are none: division truncates toward 0.
    less = steps.op("Sub", [steps.count(value, [axis]), steps.integers(1)], dtype=INT64)
    more = steps.op("Div", [less, steps.integers(width)], dtype=INT64)
    blocks = steps.op("Add", [more, steps.integers(1)], dtype=INT64)
    inner = LowSteps(f"{steps.prefix}::loop", steps.fmt, steps.opset, each=steps.each)
    body = _loop_body(inner, operands, block_sum, width)
    # A scalar takes the shape of the first block.
    first = steps.scalar(0) if addend is None else addend
    return steps.op("Loop", [blocks, None, first], {"body": body})


def _loop_body(
    steps: LowSteps, operands: Sequence[Operand], block_sum: BlockSum, size: int
) -> ir.Graph:
    """Return the body (i: i64[], go: bool[], sum) → (go, round(sum + sᵢ))."""
    i, go, total = loop_inputs(steps)
    width = steps.integers([size])
    start = steps.op("Mul", [i, width], dtype=INT64)
    end = steps.op("Add", [start, width], dtype=INT64)
    # Slice stops at the end of an axis, so the last block may be shorter.
    slices = [
        steps.op("Slice", [v, start, end, steps.integers([axis])], dtype=v.dtype or INT64)
        for v, axis in operands
    ]
    new_total = steps.round(steps.op("Add", [total, block_sum(steps, slices)]))
    go_on = steps.op("Identity", [go], dtype=ir.DataType.BOOL)
    return ir.Graph([i, go, total], [go_on, new_total], nodes=steps.nodes, name=steps.prefix)


def loop_inputs(steps: LowSteps) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Return the inputs of a loop over blocks: its number i64[], whether to go on, the sum."""
    return (
        ir.val(f"{steps.prefix}::i", INT64, ir.Shape([])),
        ir.val(f"{steps.prefix}::go", ir.DataType.BOOL, ir.Shape([])),
        ir.val(f"{steps.prefix}::sum", ir.DataType.FLOAT),
    )


def shape_of(steps: LowSteps, value: ir.Value) -> ir.Value:
    """Return the shape of a value, i64[rank]."""
    return steps.op("Shape", [value], dtype=INT64)


def part(steps: LowSteps, shape: ir.Value, start: int, end: int) -> ir.Value:
    """Return the elements from `start` to `end` of a shape."""
    return steps.op("Slice", [shape, *(steps.integers([i]) for i in (start, end))], dtype=INT64)


def sum_one_axis(
    steps: LowSteps, x: ir.Value, axis: int, keepdims: int, width: int = BLOCK
) -> ir.Value:
    """Return the low sum along one axis, in blocks of `width` terms."""

    def block_sum(steps: LowSteps, blocks: list[ir.Value]) -> ir.Value:
        return steps.op("ReduceSum", [*blocks, steps.integers([axis])], {"keepdims": keepdims})

    return blocked(steps, [(x, axis)], block_sum, width)
