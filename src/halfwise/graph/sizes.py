"""Declared sizes of axes: which of them are to be believed."""

from collections.abc import Iterable, Mapping

import onnx
import onnx_ir as ir

from halfwise.errors import CaseError

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
    """Return the axes of a value: each a size, a symbol, or None for neither.

    Raises:
        CaseError: its rank is not known.
    """
    if value.shape is None:
        raise CaseError(
            f"The model tells no rank of {value.name!r}, and there are no data that do.",
            "Give inputs where the command takes them, or a model whose inputs have a shape.",
        )
    return tuple(axis if isinstance(axis, int) else axis.value for axis in value.shape)


Axes = tuple[int | str | None, ...]
"""A declared shape: of each axis its size, its name, or None for neither."""


def declared_shapes(graphs: Iterable[onnx.GraphProto]) -> dict[str, Axes]:
    """Return the declared shapes of computed values, by name; none of what has no shape."""
    return {
        info.name: tuple(
            getattr(d, kind) if (kind := d.WhichOneof("value")) else None for d in shape.dim
        )
        for graph in graphs
        for info in (*graph.value_info, *graph.output)
        if info.type.tensor_type.HasField("shape")
        for shape in (info.type.tensor_type.shape,)
    }


def contradicted(declared: Mapping[str, Axes], inferred: Mapping[str, Axes]) -> tuple[str, ...]:
    """Return the values whose declared rank, or one of whose sizes, is not the inferred one."""
    return tuple(
        name
        for name, axes in declared.items()
        if name in inferred
        and (
            len(axes) != len(inferred[name])
            or any(
                isinstance(a, int) and isinstance(b, int) and a != b
                for a, b in zip(axes, inferred[name], strict=True)
            )
        )
    )


def forget_sizes(graphs: Iterable[onnx.GraphProto]) -> None:
    """Drop declared sizes of computed values, in place; names of axes stay.

    ONNX Runtime passes over wrong ones: they stay behind where somebody changed the inputs' alone.
    Its If does not: it takes the size of an output for certain.
    """
    for graph in graphs:
        for info in _declared(graph):
            for dimension in info.type.tensor_type.shape.dim:
                dimension.ClearField("dim_value")


def forget_shapes(graphs: Iterable[onnx.GraphProto]) -> None:
    """Drop declared shapes of computed values, in place."""
    for graph in graphs:
        for info in _declared(graph):
            if info.type.HasField("tensor_type"):
                info.type.tensor_type.ClearField("shape")


def _declared(graph: onnx.GraphProto) -> list[onnx.ValueInfoProto]:
    """Return what is declared of computed values: sizes of inputs and constants are known."""
    known = {value.name for value in (*graph.input, *graph.initializer)}
    return [info for info in (*graph.value_info, *graph.output) if info.name not in known]


def is_long_vector(info: onnx.ValueInfoProto) -> bool:
    """Return whether a value is a vector known to be longer than any shape."""
    dims = info.type.tensor_type.shape.dim
    return len(dims) == 1 and dims[0].dim_value > LONGEST_SHAPE
