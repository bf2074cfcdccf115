"""Sums in the low format: an op becomes a loop over blocks of its terms.

An FP16 tensor-core step multiplies wide, adds the products of one block wide, and adds that to an
accumulator that may be FP16. So a long sum is rounded once per block, and may overflow on the way
even if the total fits. Here a block's sum is FP32, and each addition to the accumulator is rounded
to nearest even.

PTX leaves order and rounding open: products "with at least single precision", FP16 accumulation
"with at least half precision" (PTX ISA, mma, "Precision and rounding"). Kernels that split a sum
add in other orders, and older GPUs add fewer products at a time (V100: 4, as measured in Fasi et
al., "Numerical behavior of NVIDIA tensor cores", PeerJ CS 7:e330, 2021). So this models FP16
accumulation, not any particular kernel.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import onnx_ir as ir

from halfwise.emulation.rounding import Steps, round_value
from halfwise.errors import CaseError
from halfwise.formats import Format
from halfwise.graph.model import is_standard

BLOCK = 16
"""Terms summed in FP32 before the accumulator is rounded: the k of PTX mma.m16n8k16 with .f16
accumulators, which is one HMMA.16816.F16."""

_INT64 = ir.DataType.INT64
_MIN_OPSET = 13  # ReduceSum and Unsqueeze take axes as input, Softmax sums over one axis.
_PRODUCTS = ("Conv", "Gemm", "MatMul")


@dataclass(frozen=True)
class Expansion:
    """Nodes that compute what one node does, with sums in the low format.

    Attributes:
        nodes: In topological order, not yet in a graph.
        output: FP32, with the shape of the node's output. Only the sum is rounded: later steps
            (bias, scale, root, quotient) are FP32, and the caller rounds the result.
    """

    nodes: tuple[ir.Node, ...]
    output: ir.Value


def is_product(node: ir.Node) -> bool:
    """Return whether tensor cores may sum a node in the low format."""
    return is_standard(node, *_PRODUCTS)


def sums_in_low(
    node: ir.Node, inputs: Sequence[ir.Value | None], fmt: Format, prefix: str, opset: int
) -> Expansion | None:
    """Return `node` on `inputs` with running sums in `fmt`.

    This covers MatMul, Gemm, Conv, GlobalAveragePool, ReduceL2, ReduceMean, ReduceSum,
    ReduceSumSquare and Softmax (its denominator). Several reduced axes are one sum, last axis
    fastest. A block of a Conv is 16 input channels under the whole kernel, so its sum is rounded
    less often than on a tensor core, which takes 16 products.

    Args:
        node: Supplies the type, attributes, constant axes and input shapes, where known.
        inputs: Values to read instead of the node's own inputs: FP32, already rounded.
        fmt: Format of the accumulator.
        prefix: Start of all new names; unique in the model.
        opset: Version of the default operator set.

    Returns:
        None if sums stay FP32. They do for at most `BLOCK` terms (input channels, for Conv) where
        shapes are known; for MatMul with a vector, Conv with groups, axes that are not constant,
        and reductions and MatMul of unknown rank; and for all other operators, including
        ConvTranspose, Einsum, AveragePool, LogSoftmax, ReduceL1, ReduceLogSum(Exp), and recurrent,
        normalisation and attention operators.

    Raises:
        CaseError: the operator is covered, but `opset` is below 13.
    """
    expand = _EXPANSIONS.get(node.op_type)
    if expand is None or not is_standard(node):
        return None
    if opset < _MIN_OPSET:
        raise CaseError(
            f"--accumulate fp16 needs opset {_MIN_OPSET} or later; the model has {opset}.",
            "Raise the model's opset, for example with onnx.version_converter.convert_version.",
        )
    steps = _Steps(prefix, fmt, opset)
    output = expand(_Call(node, inputs), steps)
    return None if output is None else Expansion(tuple(steps.nodes), output)


class _Steps(Steps):
    """Nodes under construction, whose sums are rounded to the low format."""

    def __init__(self, prefix: str, fmt: Format, opset: int) -> None:
        super().__init__(prefix)
        self.fmt, self.opset = fmt, opset

    def integers(self, values: int | Sequence[int]) -> ir.Value:
        """Return a constant i64[] or i64[len(values)]."""
        array = ir.tensor(np.array(values, np.int64))
        return self.op("Constant", [], {"value": array}, _INT64)

    def count(self, value: ir.Value, axes: Sequence[int]) -> ir.Value:
        """Return the number of elements of `value` along `axes`, i64[]."""
        shape = self.op("Shape", [value], dtype=_INT64)
        lengths = self.op("Gather", [shape, self.integers(axes)], dtype=_INT64)
        return self.op("ReduceProd", [lengths], {"keepdims": 0}, _INT64)

    def round(self, value: ir.Value) -> ir.Value:
        """Return `value` rounded to the low format."""
        rounded = round_value(value, self.fmt, self.next_name("round"))
        self.nodes += rounded.nodes
        return rounded.wide


class _Call:
    """A node, the values to read, and what is known about their shapes."""

    def __init__(self, node: ir.Node, inputs: Sequence[ir.Value | None]) -> None:
        self.node = node
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
        for index, axes in slots:
            shape = self.shape(index)
            known = [] if shape is None else [d for d in (shape[a] for a in axes) if type(d) is int]
            if len(known) == len(axes) and prod(known) <= BLOCK:
                return True
        return False

    def constant_ints(self, index: int) -> tuple[int, ...] | None:
        """Return the elements of a constant input; None if it is not constant."""
        value = self.node.inputs[index]
        if value is None or value.const_value is None:
            return None
        return tuple(int(v) for v in value.const_value.numpy().flat)


_Operand = tuple[ir.Value, int]
_BlockSum = Callable[[_Steps, list[ir.Value]], ir.Value]


def _blocked(steps: _Steps, operands: Sequence[_Operand], block_sum: _BlockSum) -> ir.Value:
    """Return round(… round(round(s₀) + s₁) … + sₙ), where sᵢ is the wide sum of block i.

    Args:
        steps: Takes the nodes.
        operands: What to slice into blocks, each along its axis; these axes are equally long.
        block_sum: Appends the sum over one block of all operands.
    """
    start, end = steps.integers([0]), steps.integers([BLOCK])
    first = steps.round(_block(steps, operands, start, end, block_sum))
    value, axis = operands[0]
    terms = steps.count(value, [axis])
    # ⌈terms / BLOCK⌉ - 1 more blocks; division truncates toward 0, so zero terms also give 0.
    less = steps.op("Sub", [terms, steps.integers(1)], dtype=_INT64)
    trips = steps.op("Div", [less, steps.integers(BLOCK)], dtype=_INT64)
    body = _loop_body(_Steps(f"{steps.prefix}::loop", steps.fmt, steps.opset), operands, block_sum)
    return steps.op("Loop", [trips, None, first], {"body": body})


def _loop_body(steps: _Steps, operands: Sequence[_Operand], block_sum: _BlockSum) -> ir.Graph:
    """Return the body (i: i64[], go: bool[], sum) → (go, round(sum + sᵢ₊₁))."""
    i = ir.val(f"{steps.prefix}::i", _INT64, ir.Shape([]))
    go = ir.val(f"{steps.prefix}::go", ir.DataType.BOOL, ir.Shape([]))
    total = ir.val(f"{steps.prefix}::sum", ir.DataType.FLOAT)
    width = steps.integers([BLOCK])
    done = steps.op("Mul", [i, width], dtype=_INT64)
    start = steps.op("Add", [done, width], dtype=_INT64)
    end = steps.op("Add", [start, width], dtype=_INT64)
    block = _block(steps, operands, start, end, block_sum)
    new_total = steps.round(steps.op("Add", [total, block]))
    go_on = steps.op("Identity", [go], dtype=ir.DataType.BOOL)
    return ir.Graph([i, go, total], [go_on, new_total], nodes=steps.nodes, name=steps.prefix)


def _block(
    steps: _Steps,
    operands: Sequence[_Operand],
    start: ir.Value,
    end: ir.Value,
    block_sum: _BlockSum,
) -> ir.Value:
    # Slice stops at the end of an axis, so the last block may be shorter.
    slices = [steps.op("Slice", [v, start, end, steps.integers([axis])]) for v, axis in operands]
    return block_sum(steps, slices)


def _matmul(call: _Call, steps: _Steps) -> ir.Value | None:
    a, b = call.shape(0), call.shape(1)
    if a is None or b is None or min(len(a), len(b)) < 2 or call.is_short((0, [-1]), (1, [-2])):
        return None
    operands = ((call.input(0), -1), (call.input(1), -2))
    return _blocked(steps, operands, lambda steps, blocks: steps.op("MatMul", blocks))


def _gemm(call: _Call, steps: _Steps) -> ir.Value | None:
    flags = {name: call.attributes.get_int(name, 0) for name in ("transA", "transB")}
    a_axis, b_axis = (0 if flags["transA"] else 1), (1 if flags["transB"] else 0)
    if call.is_short((0, [a_axis]), (1, [b_axis])):
        return None
    alpha, beta = (call.attributes.get_float(name, 1.0) for name in ("alpha", "beta"))
    operands = ((call.input(0), a_axis), (call.input(1), b_axis))
    total = _blocked(steps, operands, lambda steps, blocks: steps.op("Gemm", blocks, flags))
    if alpha != 1:
        total = steps.op("Mul", [total, steps.scalar(alpha)])
    if call.has(2) and beta != 0:
        c = call.input(2)
        scaled = c if beta == 1 else steps.op("Mul", [c, steps.scalar(beta)])
        total = steps.op("Add", [total, scaled])
    return total


def _conv(call: _Call, steps: _Steps) -> ir.Value | None:
    shape = call.shape(1) or call.shape(0)
    grouped = call.attributes.get_int("group", 1) != 1
    if shape is None or grouped or call.is_short((0, [1]), (1, [1])):
        return None
    operands = ((call.input(0), 1), (call.input(1), 1))
    total = _blocked(
        steps, operands, lambda steps, blocks: steps.op("Conv", blocks, call.attributes)
    )
    if call.has(2):
        spatial = steps.integers(range(1, len(shape) - 1))
        bias = steps.op("Unsqueeze", [call.input(2), spatial])
        total = steps.op("Add", [total, bias])
    return total


def _softmax(call: _Call, steps: _Steps) -> ir.Value | None:
    axis = call.attributes.get_int("axis", -1)
    if call.is_short((0, [axis])):
        return None
    x = call.input(0)
    # From opset 18 on, ReduceMax takes its axes as an input.
    if steps.opset >= 18:
        peak = steps.op("ReduceMax", [x, steps.integers([axis])])
    else:
        peak = steps.op("ReduceMax", [x], {"axes": [axis]})
    exps = steps.op("Exp", [steps.op("Sub", [x, peak])])
    return steps.op("Div", [exps, _sum_one_axis(steps, exps, axis, keepdims=1)])


def _reduction(call: _Call, steps: _Steps) -> ir.Value | None:
    shape = call.shape(0)
    axes = None if shape is None else _reduced_axes(call, len(shape))
    if shape is None or not axes or call.is_short((0, axes)):
        return None
    op_type, x = call.node.op_type, call.input(0)
    if op_type in ("ReduceL2", "ReduceSumSquare"):
        x = steps.op("Mul", [x, x])
    total = _sum_axes(steps, x, len(shape), axes, call.attributes.get_int("keepdims", 1))
    if op_type in ("ReduceMean", "GlobalAveragePool"):
        terms = steps.op("Cast", [steps.count(x, axes)], {"to": int(ir.DataType.FLOAT)})
        return steps.op("Div", [total, terms])
    return steps.op("Sqrt", [total]) if op_type == "ReduceL2" else total


def _reduced_axes(call: _Call, rank: int) -> tuple[int, ...] | None:
    """Return the axes to sum, ascending and not negative; None if unknown."""
    if call.node.op_type == "GlobalAveragePool":
        return tuple(range(2, rank))
    axes = call.constant_ints(1) if call.has(1) else tuple(call.attributes.get_ints("axes", ()))
    if axes is None:
        return None
    if not axes and not call.attributes.get_int("noop_with_empty_axes", 0):
        return tuple(range(rank))
    return tuple(sorted(axis % rank for axis in axes))


def _sum_axes(
    steps: _Steps, x: ir.Value, rank: int, axes: tuple[int, ...], keepdims: int
) -> ir.Value:
    """Return the sum over `axes` as one running sum."""
    if len(axes) == 1:
        return _sum_one_axis(steps, x, axes[0], keepdims)
    kept = [axis for axis in range(rank) if axis not in axes]
    turned = steps.op("Transpose", [x], {"perm": [*kept, *axes]})
    # A 0 in the new shape copies that dimension. The last size is counted, because -1 fails where
    # another size is 0.
    terms = steps.op("Unsqueeze", [steps.count(x, axes), steps.integers([0])], dtype=_INT64)
    shape = steps.op("Concat", [steps.integers([0] * len(kept)), terms], {"axis": 0}, _INT64)
    flat = steps.op("Reshape", [turned, shape])
    total = _sum_one_axis(steps, flat, len(kept), keepdims=0)
    return steps.op("Unsqueeze", [total, steps.integers(axes)]) if keepdims else total


def _sum_one_axis(steps: _Steps, x: ir.Value, axis: int, keepdims: int) -> ir.Value:
    def block_sum(steps: _Steps, blocks: list[ir.Value]) -> ir.Value:
        return steps.op("ReduceSum", [*blocks, steps.integers([axis])], {"keepdims": keepdims})

    return _blocked(steps, [(x, axis)], block_sum)


_EXPANSIONS: Mapping[str, Callable[[_Call, _Steps], ir.Value | None]] = {
    "Conv": _conv,
    "Gemm": _gemm,
    "GlobalAveragePool": _reduction,
    "MatMul": _matmul,
    "ReduceL2": _reduction,
    "ReduceMean": _reduction,
    "ReduceSum": _reduction,
    "ReduceSumSquare": _reduction,
    "Softmax": _softmax,
}
