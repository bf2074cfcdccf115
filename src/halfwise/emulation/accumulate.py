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
provider does: `each` matches its MatMul, Einsum, CumSum and ScatterElements bit for bit. It adds
reductions in a tree, which rounds less often than a running sum; so `each` leaves these in blocks.
It computes norms, LpPool, GridSample and Resize in FP32, and recurrent operators on the CPU.
"""

from collections.abc import Callable, Mapping, Sequence
from math import ceil, prod

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from halfwise.emulation.blocks import (
    INT64,
    MOST,
    BlockSum,
    Call,
    LowSteps,
    Operand,
    blocked,
    part,
    shape_of,
    sum_one_axis,
)
from halfwise.errors import CaseError
from halfwise.formats import Format
from halfwise.graph.model import is_standard

MIN_OPSET = 13
"""ReduceSum and Unsqueeze take axes as input, and Softmax sums over one axis, from here on."""


class Expansion(Struct, frozen=True):
    """Nodes that compute what one node does, with sums in the low format.

    Attributes:
        nodes: In topological order, not yet in a graph.
        output: FP32, with the shape of the node's output. Only the sum is rounded: later steps
            (bias, scale, root, quotient) are FP32, and the caller rounds the result.
    """

    nodes: tuple[ir.Node, ...]
    output: ir.Value


def has_sum(node: ir.Node) -> bool:
    """Return whether a node may have a sum that `sums_in_low` computes in the low format."""
    if not is_standard(node, *_EXPANSIONS):
        return False
    scatters = node.op_type.startswith("Scatter")
    return not scatters or node.attributes.get_string("reduction", "none") == "add"


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

    This covers products, pools, reductions, CumSum, ScatterElements and ScatterND that add, and the
    denominators of Softmax and LogSoftmax: all of `_EXPANSIONS`. Several reduced axes are one sum,
    last axis fastest. A ReduceLogSumExp rounds each exponential, without shifting any. A block of a
    Conv is 16 input channels under the whole kernel, so its sum is rounded less often than on a
    tensor core, which takes 16 products.

    Args:
        node: Supplies the type, attributes, constant axes and input shapes, where known.
        inputs: Values to read instead of the node's own inputs: FP32, already rounded.
        fmt: Format of the accumulator.
        prefix: Start of all new names; unique in the model.
        opset: Version of the default operator set.
        each: Whether every product and every addition of a product's sum is rounded (up to `MOST`
            of them), not every block. Of an AveragePool, a CumSum and what is scattered, every
            addition is rounded in any case.

    Returns:
        None if sums stay FP32. They do for all other operators, including recurrent, normalisation
        and attention operators; and, unless `each`, for products and Softmax of at most `BLOCK`
        terms (input channels, for Conv) where shapes are known, Conv and ConvTranspose with groups,
        axes that are not constant, unknown ranks, and what the functions below say.

    Raises:
        CaseError: the operator is covered, but `opset` is below 13, or, with `each`, its sum would
            stay FP32.
    """
    if not has_sum(node):
        return None
    if opset < MIN_OPSET:
        raise CaseError(
            f"--accumulate fp16 needs opset {MIN_OPSET} or later; the model has {opset}, and ONNX "
            "cannot raise it.",
            "Export the model at a later opset.",
        )
    steps = LowSteps(prefix, fmt, opset, each=each)
    output = _EXPANSIONS[node.op_type](Call(node, inputs, steps.shortest), steps)
    if output is None and each:
        raise CaseError(f"The sum of {node.op_type} {node.name} cannot be emulated in FP16.")
    return None if output is None else Expansion(tuple(steps.nodes), output)


def _products(
    steps: LowSteps, operands: Sequence[Operand], product: BlockSum, terms: int | None
) -> ir.Value:
    """Return the low sum of products along the axes of two operands, of `terms` if known."""

    def rounded(steps: LowSteps, blocks: list[ir.Value]) -> ir.Value:
        return steps.round(product(steps, blocks))

    return blocked(steps, operands, rounded if steps.each else product, steps.width(terms))


def _matmul(call: Call, steps: LowSteps) -> ir.Value | None:
    """Return a MatMul; None for unknown ranks and short sums."""
    a, b = call.shape(0), call.shape(1)
    if a is None or b is None:
        return None
    row = -min(len(b), 2)
    if call.is_short((0, [-1]), (1, [row])):
        return None
    operands = ((call.input(0), -1), (call.input(1), row))
    return _multiplied(steps, operands, call.terms((0, [-1]), (1, [row])))


def _multiplied(steps: LowSteps, operands: Sequence[Operand], terms: int | None) -> ir.Value:
    return _products(steps, operands, lambda steps, blocks: steps.op("MatMul", blocks), terms)


def _gemm(call: Call, steps: LowSteps) -> ir.Value | None:
    """Return a Gemm, its bias added in FP32; None for short sums."""
    flags = {name: call.attributes.get_int(name, 0) for name in ("transA", "transB")}
    a_axis, b_axis = (0 if flags["transA"] else 1), (1 if flags["transB"] else 0)
    if call.is_short((0, [a_axis]), (1, [b_axis])):
        return None
    alpha, beta = (call.attributes.get_float(name, 1.0) for name in ("alpha", "beta"))
    operands = ((call.input(0), a_axis), (call.input(1), b_axis))
    terms = call.terms((0, [a_axis]), (1, [b_axis]))
    total = _products(steps, operands, lambda steps, blocks: steps.op("Gemm", blocks, flags), terms)
    if alpha != 1:
        total = steps.op("Mul", [total, steps.scalar(alpha)])
    if call.has(2) and beta != 0:
        c = call.input(2)
        scaled = c if beta == 1 else steps.op("Mul", [c, steps.scalar(beta)])
        total = steps.op("Add", [total, scaled])
    return total


def _convolution(call: Call, steps: LowSteps) -> ir.Value | None:
    """Return a Conv or ConvTranspose, its bias added in FP32.

    A ConvTranspose has low sums over input channels only. None for unknown ranks; unless `each`,
    for short sums and groups; if `each`, for a ConvTranspose, and for weights whose shape is
    unknown or too large.
    """
    op_type, x, w = call.node.op_type, call.input(0), call.input(1)
    shape, taps = call.shape(1) or call.shape(0), _taps(call)
    groups, summed = call.attributes.get_int("group", 1), 1 if op_type == "Conv" else 0
    if shape is None:
        return None
    if steps.each:
        if op_type != "Conv" or taps is None:
            return None
        total = _each_tap(steps, (x, w), groups, taps, _window(call))
    elif groups != 1 or call.is_short((0, [1]), (1, [summed])):
        return None
    else:
        total = blocked(
            steps,
            ((x, 1), (w, summed)),
            lambda steps, blocks: steps.op(op_type, blocks, call.attributes),
        )
    if call.has(2):
        spatial = steps.integers(range(1, len(shape) - 1))
        total = steps.op("Add", [total, steps.op("Unsqueeze", [call.input(2), spatial])])
    return total


LARGEST_KERNEL = 1024
"""Most taps of a kernel that are rounded one by one: they are taken apart by a Conv with a kernel
of that many squared."""


def _taps(call: Call) -> tuple[int, ...] | None:
    """Return the shape of a Conv's weights, if it is known and the kernel is not too large."""
    shape = call.shape(1)
    sizes = () if shape is None else tuple(d for d in shape if isinstance(d, int))
    fits = shape is not None and len(sizes) == len(shape) and prod(sizes[2:]) <= LARGEST_KERNEL
    return sizes if fits else None


def _each_tap(
    steps: LowSteps,
    operands: tuple[ir.Value, ir.Value],
    groups: int,
    weights: tuple[int, ...],
    window: Mapping[str, object],
) -> ir.Value:
    """Return a Conv without bias as a low matrix product with all that its kernel covers."""
    outputs, channels, *kernel = weights
    taps, rank = prod(kernel), len(weights)
    x, w = operands
    covered = _covered(steps, x, kernel, window)
    # [n, groups, channels · taps, all places] under [groups, outputs / groups, channels · taps].
    batch = part(steps, shape_of(steps, x), 0, 1)
    after = part(steps, shape_of(steps, covered), 2, rank)
    rows = steps.integers([groups, channels * taps, -1])
    columns = steps.op("Concat", [batch, rows], {"axis": 0}, INT64)
    covered = steps.op("Reshape", [covered, columns])
    w = steps.op("Reshape", [w, steps.integers([groups, outputs // groups, channels * taps])])
    total = _multiplied(steps, ((w, -1), (covered, -2)), channels * taps)
    shape = steps.op("Concat", [batch, steps.integers([outputs]), after], {"axis": 0}, INT64)
    return steps.op("Reshape", [total, shape])


def _window(call: Call) -> dict[str, object]:
    """Return the attributes that say where a kernel lies."""
    names = ("auto_pad", "dilations", "pads", "strides")
    return {name: a for name, a in call.attributes.items() if name in names}


def _covered(
    steps: LowSteps, x: ir.Value, kernel: Sequence[int], window: Mapping[str, object]
) -> ir.Value:
    """Return what each place of a kernel covers of each channel, [n · c, taps, *places].

    A Conv with one one at each place of the kernel, [taps, 1, *kernel], takes these apart.
    """
    taps = prod(kernel)
    ones = np.eye(taps, dtype=np.float32).reshape(taps, 1, *kernel)
    places = steps.op("Constant", [], {"value": ir.Tensor(ones)})
    return steps.op("Conv", [_alone(steps, x, len(kernel)), places], window)


def _alone(steps: LowSteps, x: ir.Value, spatial: int) -> ir.Value:
    """Return each channel as a sample of its own, [n · c, 1, …]."""
    after = part(steps, shape_of(steps, x), 2, 2 + spatial)
    shape = steps.op("Concat", [steps.integers([-1, 1]), after], {"axis": 0}, INT64)
    return steps.op("Reshape", [x, shape])


def _average_pool(call: Call, steps: LowSteps) -> ir.Value | None:
    """Return an AveragePool, each addition rounded; None for kernels too large and `ceil_mode`."""
    kernel = call.attributes.get_ints("kernel_shape", ())
    taps, rank, x = prod(kernel), 2 + len(kernel), call.input(0)
    if call.attributes.get_int("ceil_mode", 0) or taps > LARGEST_KERNEL:
        return None
    sizes, covered = shape_of(steps, x), _covered(steps, x, kernel, _window(call))
    total = sum_one_axis(steps, covered, 1, keepdims=1, width=1)
    if call.attributes.get_int("count_include_pad", 0):
        terms = steps.scalar(taps)
    else:
        spatial = part(steps, sizes, 2, rank)
        shape = steps.op("Concat", [steps.integers([1, 1]), spatial], {"axis": 0}, INT64)
        one = {"value": ir.Tensor(np.ones(1, np.float32))}
        inside = _covered(steps, steps.op("ConstantOfShape", [shape], one), kernel, _window(call))
        terms = steps.op("ReduceSum", [inside, steps.integers([1])])
    channels, after = part(steps, sizes, 0, 2), part(steps, shape_of(steps, covered), 2, rank)
    shape = steps.op("Concat", [channels, after], {"axis": 0}, INT64)
    return steps.op("Reshape", [steps.op("Div", [total, terms]), shape])


def _einsum(call: Call, steps: LowSteps) -> ir.Value | None:
    """Return an Einsum, summed in low over its first summed index, which is in each operand.

    None without such an index, where another one is summed, without an arrow, and with diagonals
    or "…".
    """
    equation = call.attributes.get_string("equation", "").replace(" ", "")
    read, arrow, result = equation.partition("->")
    sides = read.split(",")
    summed = [i for i in sides[0] if i not in result and all(i in side for side in sides)]
    twice = any(len(set(side)) < len(side) for side in sides)
    if not arrow or twice or "." in equation:
        return None
    if set(result) == set(read) - {","}:  # nothing is summed
        return steps.op("Einsum", [call.input(i) for i in range(len(sides))], call.attributes)
    if not summed:
        return None

    def product(steps: LowSteps, blocks: list[ir.Value]) -> ir.Value:
        return steps.op("Einsum", blocks, call.attributes)

    axes = [side.index(summed[0]) for side in sides]
    terms = call.terms(*((i, [axis]) for i, axis in enumerate(axes)))
    operands = [(call.input(i), axis) for i, axis in enumerate(axes)]
    return _products(steps, operands, product, terms)


def _softmax(call: Call, steps: LowSteps) -> ir.Value | None:
    axis = call.attributes.get_int("axis", -1)
    if call.is_short((0, [axis])):
        return None
    x = call.input(0)
    peak = steps.reduced("ReduceMax", x, [axis], steps.opset)
    shifted = steps.op("Sub", [x, peak])
    exps = steps.op("Exp", [shifted])
    if steps.each:  # WebGPU sums in a tree, but stores the sum
        total = steps.round(steps.op("ReduceSum", [exps, steps.integers([axis])]))
    else:
        total = sum_one_axis(steps, exps, axis, keepdims=1)
    if call.node.op_type == "LogSoftmax":
        return steps.op("Sub", [shifted, steps.op("Log", [total])])
    return steps.op("Div", [exps, total])


def _reduction(call: Call, steps: LowSteps) -> ir.Value | None:
    shape = call.shape(0)
    axes = None if shape is None else _reduced_axes(call, len(shape))
    if shape is None or not axes:
        return None
    op_type, x = call.node.op_type, call.input(0)
    if op_type in ("ReduceL2", "ReduceSumSquare"):
        x = steps.op("Mul", [x, x])
    elif op_type == "ReduceL1":
        x = steps.op("Abs", [x])
    elif op_type == "ReduceLogSumExp":
        x = steps.round(steps.op("Exp", [x]))
    total = _sum_axes(steps, x, len(shape), axes, call.attributes.get_int("keepdims", 1))
    if op_type in ("ReduceMean", "GlobalAveragePool"):
        terms = steps.op("Cast", [steps.count(x, axes)], {"to": int(ir.DataType.FLOAT)})
        return steps.op("Div", [total, terms])
    last = {"ReduceL2": "Sqrt", "ReduceLogSum": "Log", "ReduceLogSumExp": "Log"}.get(op_type)
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
        return sum_one_axis(steps, x, axes[0], keepdims)
    kept = [axis for axis in range(rank) if axis not in axes]
    turned = steps.op("Transpose", [x], {"perm": [*kept, *axes]})
    # A 0 in the new shape copies that dimension. The last size is counted, because -1 fails where
    # another size is 0.
    terms = steps.op("Unsqueeze", [steps.count(x, axes), steps.integers([0])], dtype=INT64)
    shape = steps.op("Concat", [steps.integers([0] * len(kept)), terms], {"axis": 0}, INT64)
    flat = steps.op("Reshape", [turned, shape])
    total = sum_one_axis(steps, flat, len(kept), keepdims=0)
    return steps.op("Unsqueeze", [total, steps.integers(axes)]) if keepdims else total


def _cumulative(call: Call, steps: LowSteps) -> ir.Value | None:
    """Return a CumSum, each addition rounded; None for an axis or rank that is not known."""
    shape, axes = call.shape(0), call.constant_ints(1)
    if shape is None or axes is None:
        return None
    axis, x = axes[0] % len(shape), call.input(0)
    total = steps.op("ReduceSum", [x, steps.integers([axis])], {"keepdims": 0})
    zeros = steps.op("ConstantOfShape", [shape_of(steps, total)])
    inner = LowSteps(f"{steps.prefix}::scan", steps.fmt, steps.opset, each=steps.each)
    names, one = ("sum", "term"), ir.Shape([None] * (len(shape) - 1))
    before, term = (ir.val(f"{inner.prefix}::{n}", ir.DataType.FLOAT, one) for n in names)
    after = inner.round(inner.op("Add", [before, term]))
    here = inner.op("Identity", [before if call.attributes.get_int("exclusive", 0) else after])
    body = ir.Graph([before, term], [after, here], nodes=inner.nodes, name=inner.prefix)
    along, reverse = [axis], [call.attributes.get_int("reverse", 0)]
    outputs = [ir.val(steps.next_name(name), ir.DataType.FLOAT) for name in ("last", "all")]
    attributes: dict[str, int | list[int] | ir.Graph] = {
        "body": body,
        "num_scan_inputs": 1,
        "scan_input_axes": along,
        "scan_output_axes": along,
        "scan_input_directions": reverse,
        "scan_output_directions": reverse,
    }
    steps.nodes.append(ir.node("Scan", [zeros, x], attributes, outputs=outputs, name=inner.prefix))
    return outputs[1]


def _scattered(call: Call, steps: LowSteps) -> ir.Value | None:
    """Return a ScatterElements or ScatterND that adds, its updates one after the other.

    None for unknown ranks.
    """
    data, indices, updates = (call.input(i) for i in range(3))
    shape, places = call.shape(0), call.shape(1)
    if shape is None or places is None:
        return None
    axis = call.attributes.get_int("axis", 0) % len(shape)
    sizes = shape_of(steps, data)
    terms = call.terms((1, [axis]))
    if call.node.op_type == "ScatterND":
        axis, depth = 0, places[-1]
        if not isinstance(depth, int):
            return None
        rest = part(steps, sizes, depth, len(shape))
        flat = steps.op("Concat", [steps.integers([-1]), rest], {"axis": 0}, INT64)
        updates = steps.op("Reshape", [updates, flat])
        indices = steps.op("Reshape", [indices, steps.integers([-1, depth])], dtype=INT64)
        terms = call.terms((1, range(len(places) - 1)))
    zeros = steps.op("ConstantOfShape", [sizes])

    def block_sum(steps: LowSteps, blocks: list[ir.Value]) -> ir.Value:
        updates, indices = blocks
        return steps.op(call.node.op_type, [zeros, indices, updates], call.attributes)

    operands = ((updates, axis), (indices, axis))
    return blocked(steps, operands, block_sum, ceil(max(terms or 1, 1) / MOST), data)


_EXPANSIONS: Mapping[str, Callable[[Call, LowSteps], ir.Value | None]] = {
    "AveragePool": _average_pool,
    "Conv": _convolution,
    "ConvTranspose": _convolution,
    "CumSum": _cumulative,
    "Einsum": _einsum,
    "Gemm": _gemm,
    "GlobalAveragePool": _reduction,
    "LogSoftmax": _softmax,
    "MatMul": _matmul,
    "ReduceL1": _reduction,
    "ReduceL2": _reduction,
    "ReduceLogSum": _reduction,
    "ReduceLogSumExp": _reduction,
    "ReduceMean": _reduction,
    "ReduceSum": _reduction,
    "ReduceSumSquare": _reduction,
    "ScatterElements": _scattered,
    "ScatterND": _scattered,
    "Softmax": _softmax,
}
