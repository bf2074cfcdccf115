"""Declared sizes of axes: which of them are to be believed."""

from collections.abc import Iterable

import onnx
import onnx_ir as ir

LONGEST_SHAPE = 64
"""Elements of the longest vector that may be somebody's shape."""


def open_negative_sizes(graphs: Iterable[ir.Graph]) -> None:
    """Make axes of negative size dynamic: exporters write -1 for them, which ONNX Runtime takes so.

    A size of 0 stays: ONNX Runtime refuses any other array for it.
    """
    for graph in graphs:
        computed = (value for node in graph for value in node.outputs)
        for value in (*graph.inputs, *computed):
            sizes = tuple(value.shape or ())
            if any(isinstance(size, int) and size < 0 for size in sizes):
                value.shape = ir.Shape(
                    None if isinstance(size, int) and size < 0 else size for size in sizes
                )


def declared_axes(value: ir.Value) -> tuple[int | str | None, ...]:
    """Return the axes of a value of known rank: each a size, a symbol, or None for neither."""
    assert value.shape is not None
    return tuple(axis if isinstance(axis, int) else axis.value for axis in value.shape)


def forget_sizes(graphs: Iterable[onnx.GraphProto]) -> None:
    """Drop declared sizes of computed values; wrong ones would make the rewritten model invalid.

    ONNX Runtime passes over them: they stay behind where somebody changed the inputs' alone.
    """
    for graph in graphs:
        for info in (*graph.value_info, *graph.output):
            for dimension in info.type.tensor_type.shape.dim:
                dimension.Clear()


def is_long_vector(info: onnx.ValueInfoProto) -> bool:
    """Return whether a value is a vector known to be longer than any shape."""
    dims = info.type.tensor_type.shape.dim
    return len(dims) == 1 and dims[0].dim_value > LONGEST_SHAPE
