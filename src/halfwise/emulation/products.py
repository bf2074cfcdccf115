"""Matrix products and convolutions whose sums are in the low format."""

from collections.abc import Sequence
from math import prod

import numpy as np
import onnx_ir as ir

from halfwise.emulation.running import INT64, Call, LowSteps, Operand, blocked, products


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
