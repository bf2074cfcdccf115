"""Constants of a graph: new ones, those whose data is broken, and those that nobody reads."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

SMALL_BYTES = 1 << 16
"""What is computed from a larger constant is not stored; a model of 1 GiB has at most 16,384."""


def add_constant(graph: ir.Graph, name: str, array: NDArray[Any]) -> ir.Value:
    """Return a new initializer of `graph` that holds `array`, of any shape and type."""
    tensor = ir.tensor(array, name=name)
    value = ir.Value(
        name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(array.shape), const_value=tensor
    )
    graph.register_initializer(value)
    return value


def small_constant(value: ir.Value | None) -> NDArray[np.float32] | None:
    """Return f32[*shape] of a float constant from which another may be made, else None.

    A node that reads constants alone could run at once, and ONNX Runtime walks through the list of
    all that could whenever it adds one: with one such node per weight, it loads in n² steps. So
    what follows from a small constant is better made a constant, too. Large ones are few, and
    copies of all would not fit into memory.
    """
    tensor = value.const_value if value is not None else None
    if tensor is None or tensor.nbytes > SMALL_BYTES:
        return None
    return np.asarray(tensor.numpy(), np.float32)


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
