"""Sums in parts, whose sums are added: for running sums in the low format."""

from collections.abc import Iterator
from functools import partial
from math import isqrt

import numpy as np
import onnx_ir as ir

from halfwise.fixing.repair.rule import Change, Rewriting, put_in_place
from halfwise.graph.model import Network, Writer, is_standard, node_name
from halfwise.graph.reading import axes_of
from halfwise.records import RepairRule

_SUMS = ("MatMul", "ReduceMean", "ReduceSum", "Softmax")
_FIRST_OPSET = 13
"""From here on a Softmax is along one axis, and the axes of a ReduceSum are an input."""


class Split(Rewriting):
    """Add up p·n terms as p sums of n, p near n: an error grows with p + n, not with p·n.

    Rounding m additions loses up to m·u (Higham 2002, "Accuracy and Stability of Numerical
    Algorithms", 4.2). A Softmax is written out, with its maximum subtracted and means as parts, so
    that no sum leaves the range.

    Limits: one axis, of known size, as are the axes after it; a matrix as second operand of a
    MatMul; from opset 13 on; and only where no node may stay in FP32, which costs less.
    """

    name: RepairRule = "split"
    identity = "Σ x over p·n terms = Σ over p of Σ x over n; softmax(x) = exp(x - max x) / Σ …"
    alone = True
    kind = "sum"

    def changes(self, network: Network) -> Iterator[Change]:
        """Yield every sum whose terms divide."""
        for node in network.all_nodes() if network.opset >= _FIRST_OPSET else ():
            axis = _axis(node) if is_standard(node, *_SUMS) else None
            if axis is not None and _parts(axis[1][0]) > 1:
                yield Change((node_name(node),), (node,), partial(_make, node, *axis))


def _make(node: ir.Node, axis: int, sizes: list[int], writer: Writer) -> None:
    put_in_place(writer, node.outputs[0], _split(writer, node, axis, sizes))


def _axis(node: ir.Node) -> tuple[int, list[int]] | None:
    """Return the axis of a node's sum, from 0 on, and the sizes from there on; None if unknown."""
    value = node.inputs[0]
    if value is None or value.shape is None:
        return None
    along = {"MatMul": (-1,), "Softmax": (node.attributes.get_int("axis", -1),)}
    axes, rank = along.get(node.op_type) or axes_of(node), value.shape.rank()
    if axes is None or len(axes) != 1:
        return None
    axis = axes[0] % rank
    sizes = [size for size in list(value.shape)[axis:] if isinstance(size, int)]
    if node.op_type == "MatMul":
        matrix = node.inputs[1]
        if rank < 2 or matrix is None or matrix.shape is None or matrix.shape.rank() != 2:
            return None
    return (axis, sizes) if len(sizes) == rank - axis else None


def _parts(terms: int) -> int:
    """Return the largest number of equal parts that is not above the size of one."""
    return max((p for p in range(1, isqrt(terms) + 1) if terms % p == 0), default=1)


def _split(writer: Writer, node: ir.Node, axis: int, sizes: list[int]) -> ir.Value:
    """Return the result of new nodes that add up what a node does, in parts."""
    x, other = node.inputs[0], node.inputs[-1]
    assert x is not None
    assert other is not None
    parts = _parts(sizes[0])
    size = sizes[0] // parts

    def shaped(value: ir.Value, *shape: int) -> ir.Value:
        return writer.op("Reshape", value, writer.constant("shape", np.array(shape, np.int64)))

    def apart(value: ir.Value) -> ir.Value:
        return shaped(value, *[0] * axis, parts, size, *sizes[1:])

    if node.op_type == "MatMul":
        order = [*range(axis - 1), axis, axis - 1, axis + 1]
        rows = writer.op("Transpose", apart(x), perm=order)
        products = writer.op("MatMul", rows, shaped(other, parts, size, -1))
        return writer.reduced("ReduceSum", products, -3, keep=False)
    if node.op_type == "Softmax":
        less = writer.op("Sub", x, writer.reduced("ReduceMax", x, axis))
        exp = writer.op("Exp", less)
        means = writer.reduced("ReduceMean", apart(exp), axis + 1, keep=False)
        share = writer.op("Div", exp, writer.reduced("ReduceSum", means, axis))
        return writer.op("Mul", share, writer.constant("size", np.array(1 / size, np.float32)))
    sums = writer.reduced(node.op_type, apart(x), axis + 1, keep=False)
    return writer.reduced(
        node.op_type, sums, axis, keep=bool(node.attributes.get_int("keepdims", 1))
    )
