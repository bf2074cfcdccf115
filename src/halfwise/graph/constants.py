"""Constants of a graph: those whose data is broken, and those that nobody reads."""

from collections.abc import Iterable

import onnx_ir as ir


def drop_unused_constants(graphs: Iterable[ir.Graph]) -> None:
    """Remove initializers that no node reads and that are no output.

    ONNX Runtime removes them itself, and then refuses the arrays that it is handed for them.
    """
    for graph in graphs:
        for name, value in list(graph.initializers.items()):
            if not value.uses() and not value.is_graph_output():
                del graph.initializers[name]


def check_constants(graphs: Iterable[ir.Graph]) -> None:
    """Raise a ValueError for a constant whose data does not fill its shape."""
    for graph in graphs:
        for name, value in graph.initializers.items():
            tensor = value.const_value
            if tensor is None or tensor.dtype == ir.DataType.STRING:
                continue
            try:
                tensor.numpy()
            except (ValueError, OSError) as error:
                raise ValueError(f"the data of constant {name!r} is incomplete: {error}") from None
