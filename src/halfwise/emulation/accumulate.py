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

A kernel without tensor cores may round every product and every addition. ONNX Runtime's WebGPU
provider does: `each` matches its MatMul bit for bit. It adds reductions in a tree, which rounds
less often than a running sum; so `each` leaves these in blocks.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, prod

import numpy as np
import onnx_ir as ir

from halfwise.emulation.rounding import Steps, round_value
from halfwise.errors import CaseError
from halfwise.formats import Format
from halfwise.graph.model import is_standard

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

    def integers(self, values: int | Sequence[int]) -> ir.Value:
        """Return a constant i64[] or i64[len(values)]."""
        array = ir.tensor(np.array(values, np.int64))
        return self.op("Constant", [], {"value": array}, INT64)

    def count(self, value: ir.Value, axes: Sequence[int]) -> ir.Value:
        """Return the number of elements of `value` along `axes`, i64[]."""
        shape = self.op("Shape", [value], dtype=INT64)
        lengths = self.op("Gather", [shape, self.integers(axes)], dtype=INT64)
        return self.op("ReduceProd", [lengths], {"keepdims": 0}, INT64)

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
            known = [] if shape is None else [d for d in (shape[a] for a in axes) if type(d) is int]
            if len(known) == len(axes):
                counts.append(prod(known))
        return min(counts, default=None)

    def constant_ints(self, index: int) -> tuple[int, ...] | None:
        """Return the elements of a constant input; None if it is not constant."""
        value = self.node.inputs[index]
        if value is None or value.const_value is None:
            return None
        return tuple(int(v) for v in value.const_value.numpy().flat)


Operand = tuple[ir.Value, int]
BlockSum = Callable[[LowSteps, list[ir.Value]], ir.Value]


def products(
    steps: LowSteps, operands: Sequence[Operand], product: BlockSum, terms: int | None
) -> ir.Value:
    """Return the low sum of products along the axes of two operands, of `terms` if known."""
    if not steps.each:
        return blocked(steps, operands, product)

    def rounded(steps: LowSteps, blocks: list[ir.Value]) -> ir.Value:
        return steps.round(product(steps, blocks))

    return blocked(steps, operands, rounded, ceil(max(terms or 1, 1) / MOST))


def blocked(
    steps: LowSteps, operands: Sequence[Operand], block_sum: BlockSum, width: int = BLOCK
) -> ir.Value:
    """Return round(… round(round(s₀) + s₁) … + sₙ), where sᵢ is the wide sum of block i.

    Args:
        steps: Takes the nodes.
        operands: What to slice into blocks, each along its axis; these axes are equally long.
        block_sum: Appends the sum over one block of all operands.
        width: Terms of a block.
    """
    start, end = steps.integers([0]), steps.integers([width])
    first = steps.round(_block(steps, operands, start, end, block_sum))
    value, axis = operands[0]
    terms = steps.count(value, [axis])
    # ⌈terms / width⌉ - 1 more blocks; division truncates toward 0, so zero terms also give 0.
    less = steps.op("Sub", [terms, steps.integers(1)], dtype=INT64)
    trips = steps.op("Div", [less, steps.integers(width)], dtype=INT64)
    inner = LowSteps(f"{steps.prefix}::loop", steps.fmt, steps.opset, each=steps.each)
    body = _loop_body(inner, operands, block_sum, width)
    return steps.op("Loop", [trips, None, first], {"body": body})


def _loop_body(
    steps: LowSteps, operands: Sequence[Operand], block_sum: BlockSum, size: int
) -> ir.Graph:
    """Return the body (i: i64[], go: bool[], sum) → (go, round(sum + sᵢ₊₁))."""
    i = ir.val(f"{steps.prefix}::i", INT64, ir.Shape([]))
    go = ir.val(f"{steps.prefix}::go", ir.DataType.BOOL, ir.Shape([]))
    total = ir.val(f"{steps.prefix}::sum", ir.DataType.FLOAT)
    width = steps.integers([size])
    done = steps.op("Mul", [i, width], dtype=INT64)
    start = steps.op("Add", [done, width], dtype=INT64)
    end = steps.op("Add", [start, width], dtype=INT64)
    block = _block(steps, operands, start, end, block_sum)
    new_total = steps.round(steps.op("Add", [total, block]))
    go_on = steps.op("Identity", [go], dtype=ir.DataType.BOOL)
    return ir.Graph([i, go, total], [go_on, new_total], nodes=steps.nodes, name=steps.prefix)


def _block(
    steps: LowSteps,
    operands: Sequence[Operand],
    start: ir.Value,
    end: ir.Value,
    block_sum: BlockSum,
) -> ir.Value:
    # Slice stops at the end of an axis, so the last block may be shorter.
    slices = [steps.op("Slice", [v, start, end, steps.integers([axis])]) for v, axis in operands]
    return block_sum(steps, slices)


def matmul(call: Call, steps: LowSteps) -> ir.Value | None:
    """Return a MatMul; None for a vector, unknown ranks and short sums."""
    a, b = call.shape(0), call.shape(1)
    if a is None or b is None or min(len(a), len(b)) < 2 or call.is_short((0, [-1]), (1, [-2])):
        return None
    operands = ((call.input(0), -1), (call.input(1), -2))
    return _multiplied(steps, operands, call.terms((0, [-1]), (1, [-2])))


def _multiplied(steps: LowSteps, operands: Sequence[Operand], terms: int | None) -> ir.Value:
    return products(steps, operands, lambda steps, blocks: steps.op("MatMul", blocks), terms)


def gemm(call: Call, steps: LowSteps) -> ir.Value | None:
    """Return a Gemm, its bias added in FP32; None for short sums."""
    flags = {name: call.attributes.get_int(name, 0) for name in ("transA", "transB")}
    a_axis, b_axis = (0 if flags["transA"] else 1), (1 if flags["transB"] else 0)
    if call.is_short((0, [a_axis]), (1, [b_axis])):
        return None
    alpha, beta = (call.attributes.get_float(name, 1.0) for name in ("alpha", "beta"))
    operands = ((call.input(0), a_axis), (call.input(1), b_axis))
    terms = call.terms((0, [a_axis]), (1, [b_axis]))
    total = products(steps, operands, lambda steps, blocks: steps.op("Gemm", blocks, flags), terms)
    if alpha != 1:
        total = steps.op("Mul", [total, steps.scalar(alpha)])
    if call.has(2) and beta != 0:
        c = call.input(2)
        scaled = c if beta == 1 else steps.op("Mul", [c, steps.scalar(beta)])
        total = steps.op("Add", [total, scaled])
    return total


def conv(call: Call, steps: LowSteps) -> ir.Value | None:
    """Return a Conv, its bias added in FP32; None for short sums, and for groups unless `each`."""
    shape = call.shape(1) or call.shape(0)
    groups = call.attributes.get_int("group", 1)
    if shape is None or (groups != 1 and not steps.each):
        return None
    if steps.each and (taps := _taps(call)) is not None:
        total = _each_tap(call, steps, groups, taps)
    elif groups != 1 or call.is_short((0, [1]), (1, [1])):
        return None
    else:
        operands = ((call.input(0), 1), (call.input(1), 1))
        total = blocked(
            steps, operands, lambda steps, blocks: steps.op("Conv", blocks, call.attributes)
        )
    if call.has(2):
        spatial = steps.integers(range(1, len(shape) - 1))
        bias = steps.op("Unsqueeze", [call.input(2), spatial])
        total = steps.op("Add", [total, bias])
    return total


LARGEST_KERNEL = 128
"""Most taps of a kernel that are rounded one by one: they are taken apart by a Conv with a kernel
of that many squared."""


def _taps(call: Call) -> tuple[int, ...] | None:
    """Return the shape of a Conv's weights, if it is known and the kernel is not too large."""
    shape = call.shape(1)
    known = () if shape is None else tuple(d for d in shape if isinstance(d, int))
    fits = shape is not None and len(known) == len(shape) and prod(known[2:]) <= LARGEST_KERNEL
    return known if fits else None


def _each_tap(call: Call, steps: LowSteps, groups: int, weights: tuple[int, ...]) -> ir.Value:
    """Return a Conv without bias as a low matrix product with all that its kernel covers.

    A Conv with one one at each place of the kernel, [taps, 1, *kernel], takes these apart.
    """
    outputs, channels, *kernel = weights
    taps, rank = prod(kernel), len(weights)
    x, w = call.input(0), call.input(1)
    ones = np.eye(taps, dtype=np.float32).reshape(taps, 1, *kernel)
    places = steps.op("Constant", [], {"value": ir.tensor(ones)})
    sizes = steps.op("Shape", [x], dtype=INT64)
    spatial = _part(steps, sizes, 2, rank)
    flat = steps.op("Concat", [steps.integers([-1, 1]), spatial], {"axis": 0}, INT64)
    own = {n: a for n, a in call.attributes.items() if n not in ("group", "kernel_shape")}
    covered = steps.op("Conv", [steps.op("Reshape", [x, flat]), places], own)
    # [n, groups, channels · taps, all places] under [groups, outputs / groups, channels · taps].
    batch, after = _part(steps, sizes, 0, 1), _part(steps, _shape(steps, covered), 2, rank)
    rows = steps.integers([groups, channels * taps, -1])
    columns = steps.op("Concat", [batch, rows], {"axis": 0}, INT64)
    covered = steps.op("Reshape", [covered, columns])
    w = steps.op("Reshape", [w, steps.integers([groups, outputs // groups, channels * taps])])
    total = _multiplied(steps, ((w, -1), (covered, -2)), channels * taps)
    shape = steps.op("Concat", [batch, steps.integers([outputs]), after], {"axis": 0}, INT64)
    return steps.op("Reshape", [total, shape])


def _shape(steps: LowSteps, value: ir.Value) -> ir.Value:
    return steps.op("Shape", [value], dtype=INT64)


def _part(steps: LowSteps, shape: ir.Value, start: int, end: int) -> ir.Value:
    return steps.op("Slice", [shape, *(steps.integers([i]) for i in (start, end))], dtype=INT64)


def conv_transpose(call: Call, steps: LowSteps) -> ir.Value | None:
    """Return a ConvTranspose, summed over input channels; None with groups."""
    shape = call.shape(1) or call.shape(0)
    if shape is None or call.attributes.get_int("group", 1) != 1:
        return None

    def product(steps: LowSteps, blocks: list[ir.Value]) -> ir.Value:
        return steps.op("ConvTranspose", blocks, call.attributes)

    terms = call.terms((0, [1]), (1, [0]))
    total = products(steps, ((call.input(0), 1), (call.input(1), 0)), product, terms)
    if call.has(2):
        spatial = steps.integers(range(1, len(shape) - 1))
        total = steps.op("Add", [total, steps.op("Unsqueeze", [call.input(2), spatial])])
    return total


def einsum(call: Call, steps: LowSteps) -> ir.Value | None:
    """Return an Einsum of two operands, summed in low over their first common index."""
    equation = call.attributes.get_string("equation", "").replace(" ", "")
    read, arrow, given = equation.partition("->")
    left, _, right = read.partition(",")
    summed = [i for i in left if i in right and i not in given]
    twice = any(len(set(side)) < len(side) for side in (left, right))
    if not arrow or len(call.node.inputs) != 2 or not summed or twice or "." in equation:
        return None

    def product(steps: LowSteps, blocks: list[ir.Value]) -> ir.Value:
        return steps.op("Einsum", blocks, call.attributes)

    axes = [side.index(summed[0]) for side in (left, right)]
    terms = call.terms((0, axes[:1]), (1, axes[1:]))
    operands = ((call.input(0), axes[0]), (call.input(1), axes[1]))
    return products(steps, operands, product, terms)


MIN_OPSET = 13
"""ReduceSum and Unsqueeze take axes as input, and Softmax sums over one axis, from here on."""

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


def has_sum(node: ir.Node) -> bool:
    """Return whether a node may have a sum that `sums_in_low` computes in the low format."""
    return is_standard(node, *_EXPANSIONS, *_EACH)


def sums_in_low(
    node: ir.Node,
    inputs: Sequence[ir.Value | None],
    fmt: Format,
    prefix: str,
    opset: int,
    *,
    each: bool = False,
) -> Expansion | None:
    """Return `node` on `inputs` with running sums in `fmt`.

    This covers MatMul, Gemm, Conv, GlobalAveragePool, ReduceL1, ReduceL2, ReduceLogSum, ReduceMean,
    ReduceSum, ReduceSumSquare and Softmax (its denominator); with `each`, ConvTranspose, Einsum of
    two operands and Conv with groups too. Several reduced axes are one sum, last axis fastest. A
    block of a Conv is 16 input channels under the whole kernel, so its sum is rounded less often
    than on a tensor core, which takes 16 products.

    Args:
        node: Supplies the type, attributes, constant axes and input shapes, where known.
        inputs: Values to read instead of the node's own inputs: FP32, already rounded.
        fmt: Format of the accumulator.
        prefix: Start of all new names; unique in the model.
        opset: Version of the default operator set.
        each: Whether every product and every addition of a product's sum is rounded (up to `MOST`
            of them; of a ConvTranspose, each input channel's share), not every block.

    Returns:
        None if sums stay FP32. They do for at most `BLOCK` terms (input channels, for Conv) where
        shapes are known, unless `each`; for MatMul with a vector, axes that are not constant, and
        reductions and MatMul of unknown rank; and for all other operators, including AveragePool,
        LogSoftmax, ReduceLogSumExp, and recurrent, normalisation and attention operators.

    Raises:
        CaseError: the operator is covered, but `opset` is below 13.
    """
    expand = _EXPANSIONS.get(node.op_type) or (_EACH.get(node.op_type) if each else None)
    if expand is None or not is_standard(node):
        return None
    if opset < MIN_OPSET:
        raise CaseError(
            f"--accumulate fp16 needs opset {MIN_OPSET} or later; the model has {opset}.",
            "Raise the model's opset, for example with onnx.version_converter.convert_version.",
        )
    steps = LowSteps(prefix, fmt, opset, each=each)
    output = expand(Call(node, inputs, shortest=1 if each else BLOCK), steps)
    return None if output is None else Expansion(tuple(steps.nodes), output)


def _softmax(call: Call, steps: LowSteps) -> ir.Value | None:
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
    if steps.each:  # WebGPU sums in a tree, but stores the sum
        total = steps.round(steps.op("ReduceSum", [exps, steps.integers([axis])]))
    else:
        total = _sum_one_axis(steps, exps, axis, keepdims=1)
    return steps.op("Div", [exps, total])


def _reduction(call: Call, steps: LowSteps) -> ir.Value | None:
    shape = call.shape(0)
    axes = None if shape is None else _reduced_axes(call, len(shape))
    if shape is None or not axes or call.is_short((0, axes)):
        return None
    op_type, x = call.node.op_type, call.input(0)
    if op_type in ("ReduceL2", "ReduceSumSquare"):
        x = steps.op("Mul", [x, x])
    elif op_type == "ReduceL1":
        x = steps.op("Abs", [x])
    total = _sum_axes(steps, x, len(shape), axes, call.attributes.get_int("keepdims", 1))
    if op_type in ("ReduceMean", "GlobalAveragePool"):
        terms = steps.op("Cast", [steps.count(x, axes)], {"to": int(ir.DataType.FLOAT)})
        return steps.op("Div", [total, terms])
    last = {"ReduceL2": "Sqrt", "ReduceLogSum": "Log"}.get(op_type)
    return steps.op(last, [total]) if last else total


def _reduced_axes(call: Call, rank: int) -> tuple[int, ...] | None:
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
    steps: LowSteps, x: ir.Value, rank: int, axes: tuple[int, ...], keepdims: int
) -> ir.Value:
    """Return the sum over `axes` as one running sum."""
    if len(axes) == 1:
        return _sum_one_axis(steps, x, axes[0], keepdims)
    kept = [axis for axis in range(rank) if axis not in axes]
    turned = steps.op("Transpose", [x], {"perm": [*kept, *axes]})
    # A 0 in the new shape copies that dimension. The last size is counted, because -1 fails where
    # another size is 0.
    terms = steps.op("Unsqueeze", [steps.count(x, axes), steps.integers([0])], dtype=INT64)
    shape = steps.op("Concat", [steps.integers([0] * len(kept)), terms], {"axis": 0}, INT64)
    flat = steps.op("Reshape", [turned, shape])
    total = _sum_one_axis(steps, flat, len(kept), keepdims=0)
    return steps.op("Unsqueeze", [total, steps.integers(axes)]) if keepdims else total


def _sum_one_axis(steps: LowSteps, x: ir.Value, axis: int, keepdims: int) -> ir.Value:
    def block_sum(steps: LowSteps, blocks: list[ir.Value]) -> ir.Value:
        return steps.op("ReduceSum", [*blocks, steps.integers([axis])], {"keepdims": keepdims})

    return blocked(steps, [(x, axis)], block_sum)


_EXPANSIONS: Mapping[str, Callable[[Call, LowSteps], ir.Value | None]] = {
    "Conv": conv,
    "Gemm": gemm,
    "GlobalAveragePool": _reduction,
    "MatMul": matmul,
    "ReduceL1": _reduction,
    "ReduceL2": _reduction,
    "ReduceLogSum": _reduction,
    "ReduceMean": _reduction,
    "ReduceSum": _reduction,
    "ReduceSumSquare": _reduction,
    "Softmax": _softmax,
}
_EACH: Mapping[str, Callable[[Call, LowSteps], ir.Value | None]] = {
    "ConvTranspose": conv_transpose,
    "Einsum": einsum,
}
