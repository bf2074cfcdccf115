"""Sizes of the export that are baked into constants, although an axis is declared dynamic."""

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from halfwise.graph.frozen import frozen_nodes
from halfwise.graph.model import node_name
from halfwise.graph.sizes import declared_axes
from halfwise.graph.unchecked import numbers
from halfwise.stages.lint.rule import Found, Subject, name_of, rule

_STATES = {"LSTM": (5, 6), "GRU": (5,), "RNN": (5,)}
"""Operands of shape [directions, batch, hidden] (ONNX's operator reference)."""
_FIX = (
    "Export with this axis dynamic and read the size from the tensor (x.shape[0]), not from a "
    "Python int; where an export folds it, switch constant folding off."
)


@rule("frozen-batch", "warning", "https://github.com/roboflow/rf-detr/issues/949")
def batch(subject: Subject) -> Iterator[Found]:
    """A batch size of the export in a constant ends every other batch size, or mixes samples.

    Reshape, Expand and Concat with a fixed first axis behind a dynamic one, and fixed initial
    states of recurrent operators.
    """
    frozen = set(frozen_nodes(subject.network))
    for node in subject.network.nodes():
        if node_name(node) in frozen:
            value = [v for v in node.inputs if v is not None and v.is_initializer()][-1]
            yield Found(
                f"its first axis is dynamic, and the constant {name_of(value)}{_content(value)} "
                "fixes it",
                _FIX,
                node,
                name_of(value),
            )
        for slot in _STATES.get(node.op_type, ()):
            state = node.inputs[slot] if slot < len(node.inputs) else None
            if _is_fixed_state(node, state):
                yield Found(
                    f"its batch axis is dynamic, and its initial state {name_of(state)} is a "
                    "constant for a fixed batch size",
                    _FIX,
                    node,
                    name_of(state),
                )


@rule("frozen-axis", "warning", "https://github.com/pytorch/pytorch/issues/43795")
def axis(subject: Subject) -> Iterator[Found]:
    """A length of the export in a constant ends every other length.

    Reshapes to sizes that are all fixed, and Expands of a dynamic axis to a fixed size. What only
    concerns the first axis is named by frozen-batch.
    """
    for node in subject.network.nodes():
        if node.op_type not in ("Reshape", "Expand") or len(node.inputs) < 2:
            continue
        value, constant = node.inputs[0], node.inputs[1]
        target = numbers(constant)
        if value is None or value.shape is None or target is None or constant is None:
            continue
        axes = [i for i, a in enumerate(declared_axes(value)) if not isinstance(a, int)]
        sizes = [int(n) for n in np.ravel(target)]
        later = [i for i in axes if i > 0]
        frozen = (
            _frozen_by_reshape(later, sizes)
            if node.op_type == "Reshape"
            else _frozen_by_expand(later, sizes, len(value.shape))
        )
        if later and frozen:
            yield Found(
                f"axis {later[0]} of {name_of(value)} is dynamic, and the constant "
                f"{name_of(constant)}{_content(constant)} fixes it",
                _FIX,
                node,
                name_of(constant),
            )


@rule("frozen-output", "warning", "https://github.com/roboflow/rf-detr/issues/949")
def output(subject: Subject) -> Iterator[Found]:
    """An output is declared to have a dynamic axis of an input, and its size is fixed all the same.

    Somewhere on the way the size of the export was baked in.
    """
    proto = subject.model.proto.graph
    symbols = {d.dim_param for info in proto.input for d in info.type.tensor_type.shape.dim}
    declared = {info.name: info.type.tensor_type.shape.dim for info in proto.output}
    for value in subject.network.graph.outputs:
        axes = declared.get(name_of(value), ())
        computed = declared_axes(value) if value.shape is not None else ()
        node = value.producer()
        if node is None or len(axes) != len(computed):
            continue
        for place, (before, size) in enumerate(zip(axes, computed, strict=True)):
            if before.dim_param and before.dim_param in symbols and isinstance(size, int):
                yield Found(
                    f"axis {place} of the output {name_of(value)} is declared {before.dim_param}, "
                    f"as an input's, and is always {size}",
                    _FIX,
                    node,
                    name_of(value),
                )


def _frozen_by_reshape(axes: list[int], sizes: list[int]) -> bool:
    """Return whether no size is left open, and no 0 takes a dynamic axis over."""
    kept = [i for i in axes if i < len(sizes) and sizes[i] == 0]
    return bool(sizes) and -1 not in sizes and len(kept) < len(axes)


def _frozen_by_expand(axes: list[int], sizes: list[int], rank: int) -> bool:
    """Return whether a dynamic axis meets a size above 1, aligned at the last axis."""
    offset = len(sizes) - rank
    return any(i + offset >= 0 and sizes[i + offset] > 1 for i in axes)


def _is_fixed_state(node: ir.Node, state: ir.Value | None) -> bool:
    x = node.inputs[0]
    if state is None or state.const_value is None or x is None or x.shape is None:
        return False
    layout = node.attributes.get("layout")
    place = 0 if layout is not None and layout.as_int() else 1
    axes = declared_axes(x)
    return len(axes) > place and not isinstance(axes[place], int)


def _content(value: ir.Value) -> str:
    array = numbers(value)
    if array is None or array.size > 8 or array.dtype.kind != "i":
        return ""
    return f" = {np.ravel(array).tolist()}"
