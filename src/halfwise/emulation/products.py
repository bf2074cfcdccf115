"""Products and windows whose sums are rounded to the low format."""

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np
import onnx_ir as ir

from halfwise.emulation.blocks import (
    INT64,
    BlockSum,
    Call,
    LowSteps,
    Operand,
    blocked,
    part,
    shape_of,
    sum_one_axis,
)


def products(
    steps: LowSteps, operands: Sequence[Operand], product: BlockSum, terms: int | None
) -> ir.Value:
    """Return the low sum of products along the axes of two operands, of `terms` if known."""

    def rounded(steps: LowSteps, blocks: list[ir.Value]) -> ir.Value:
        return steps.round(product(steps, blocks))

    return blocked(steps, operands, rounded if steps.each else product, steps.width(terms))


def matmul(call: Call, steps: LowSteps) -> ir.Value | None:
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


def convolution(call: Call, steps: LowSteps) -> ir.Value | None:
    """Return a Conv or ConvTranspose, its bias added in FP32.

    A ConvTranspose has low sums over input channels only, unless `each`. None for unknown ranks;
    unless `each`, for short sums and groups; if `each`, for weights whose shape is unknown or too
    large, and for a ConvTranspose where the padding is not said.
    """
    op_type, x, w = call.node.op_type, call.input(0), call.input(1)
    shape, taps = call.shape(1) or call.shape(0), _taps(call)
    groups, summed = call.attributes.get_int("group", 1), 1 if op_type == "Conv" else 0
    if shape is None or (taps is None if steps.each else groups != 1):
        return None
    if taps is not None and steps.each:
        if op_type == "Conv":
            total: ir.Value | None = _each_tap(steps, (x, w), groups, taps, _window(call))
        else:
            total = _spread(call, steps, groups, taps)
    elif call.is_short((0, [1]), (1, [summed])):
        return None
    else:
        total = blocked(
            steps,
            ((x, 1), (w, summed)),
            lambda steps, blocks: steps.op(op_type, blocks, call.attributes),
        )
    if total is not None and call.has(2):
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


def average_pool(call: Call, steps: LowSteps) -> ir.Value | None:
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


def _spread(call: Call, steps: LowSteps, groups: int, weights: tuple[int, ...]) -> ir.Value | None:
    """Return a ConvTranspose as a Conv over its input, spread by the strides."""
    channels, outputs, *kernel = weights
    taps, rank, attributes = prod(kernel), len(kernel), call.attributes
    strides, dilations = (attributes.get_ints(n, [1] * rank) for n in ("strides", "dilations"))
    more, pads = (
        attributes.get_ints("output_padding", [0] * rank),
        attributes.get_ints("pads", [0] * 2 * rank),
    )
    reach = [d * (k - 1) for d, k in zip(dilations, kernel, strict=True)]
    around = [r - p for r, p in zip([*reach, *reach], pads, strict=True)]
    around[rank:] = [a + m for a, m in zip(around[rank:], more, strict=True)]
    if (
        min(around) < 0
        or "output_shape" in attributes
        or attributes.get_string("auto_pad", "NOTSET") != "NOTSET"
    ):
        return None
    x, w = call.input(0), call.input(1)
    one = steps.op("Constant", [], {"value": ir.Tensor(np.ones((1,) * (2 + rank), np.float32))})
    apart = steps.op("ConvTranspose", [_alone(steps, x, rank), one], {"strides": strides})
    ends = part(steps, shape_of(steps, x), 0, 2), part(steps, shape_of(steps, apart), 2, 2 + rank)
    x = steps.op("Reshape", [apart, steps.op("Concat", ends, {"axis": 0}, INT64)])
    grouped = steps.integers([groups, channels // groups, outputs, taps])
    backwards = [steps.integers([n]) for n in (-1, -(2**63), 3, -1)]
    w = steps.op("Slice", [steps.op("Reshape", [w, grouped]), *backwards])
    w = steps.op("Transpose", [w], {"perm": [0, 2, 1, 3]})
    turned = (groups * outputs, channels // groups, *kernel)
    window = {"dilations": dilations, "pads": around}
    return _each_tap(steps, (x, w), groups, turned, window)


def einsum(call: Call, steps: LowSteps) -> ir.Value | None:
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
    return products(steps, operands, product, terms)
