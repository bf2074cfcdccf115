"""Shapes that a file declares for computed values: claims, until inference confirms them."""

from collections.abc import Iterable, Mapping

import onnx
import onnx_ir as ir

Axes = tuple[int | str | None, ...]
"""A declared shape: for each axis its size, its name, or None for neither."""


def restore_sizes(outputs: Iterable[ir.Value], declared: Mapping[str, Axes]) -> None:
    """Give outputs their declared sizes where ONNX infers none, in place.

    Who calls the model may rely on them. Axes with an inferred size, and outputs with an inferred
    rank other than the declared one, stay as they are. So do outputs that nodes read too: what
    follows from a wrong size, such as a folded Shape, would be wrong.
    """
    for value in outputs:
        axes = declared.get(value.name or "", ())
        if value.shape is None or len(axes) != len(value.shape) or value.uses():
            continue
        sizes = [
            known if isinstance(known, int) or not isinstance(claim, int) else claim
            for known, claim in zip(value.shape, axes, strict=True)
        ]
        value.shape = ir.Shape(sizes)


def declared_shapes(graphs: Iterable[onnx.GraphProto]) -> dict[str, Axes]:
    """Return the declared shapes of computed values, by name; values without one are left out."""
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
    """Return the values whose declared rank or sizes differ from the inferred ones."""
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

    Wrong sizes remain in a file if only the sizes of its inputs were changed. ONNX Runtime ignores
    them, except for outputs of an If, whose sizes it trusts.
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
    """Return the declarations of computed values; those of inputs and constants are facts."""
    known = {value.name for value in (*graph.input, *graph.initializer)}
    return [info for info in (*graph.value_info, *graph.output) if info.name not in known]
