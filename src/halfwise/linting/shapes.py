"""Sizes that the export fixed in constants although the axis is declared dynamic."""

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from halfwise.graph.loading import numbers
from halfwise.graph.sizes import (
    STATES,
    declared_axes,
    frozen_batches,
    frozen_lengths,
    frozen_states,
)
from halfwise.linting.rule import Found, Subject, name_of, rule

_FIX = (
    "Export with this axis dynamic, and read the size from the tensor (x.shape[0]), not from a "
    "Python int. If the exporter folds it, switch off constant folding."
)


@rule("frozen-batch", "warning", "https://github.com/roboflow/rf-detr/issues/949")
def batch(subject: Subject) -> Iterator[Found]:
    """A batch size fixed in a constant breaks every other batch size, or mixes samples.

    Checked: Reshape, Expand and Concat with a fixed first axis after a dynamic one, and fixed
    initial states of recurrent operators.
    """
    found = [*frozen_batches(subject.network), *frozen_states(subject.network)]
    for each in sorted(found, key=lambda f: subject.order[f.node]):
        name = name_of(each.constant)
        yield Found(
            f"its batch axis is dynamic, but its initial state {name} is a constant for a fixed "
            "batch size"
            if each.node.op_type in STATES
            else f"its first axis is dynamic, but the constant {name}{_content(each.constant)} "
            "fixes it",
            _FIX,
            each.node,
            name,
        )


@rule("frozen-axis", "warning", "https://github.com/pytorch/pytorch/issues/43795")
def axis(subject: Subject) -> Iterator[Found]:
    """A length fixed in a constant breaks every other length.

    Checked: Reshapes to fixed sizes only, and Expands of a dynamic axis to a fixed size. For the
    first axis, see frozen-batch.
    """
    for each in frozen_lengths(subject.network):
        constant = each.constant
        yield Found(
            f"axis {each.axis} of {name_of(each.node.inputs[0])} is dynamic, but the constant "
            f"{name_of(constant)}{_content(constant)} fixes it",
            _FIX,
            each.node,
            name_of(constant),
        )


@rule("frozen-output", "warning", "https://github.com/roboflow/rf-detr/issues/949")
def output(subject: Subject) -> Iterator[Found]:
    """An output declares an input's dynamic axis, but its size is fixed.

    The export fixed the size somewhere on the way.
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
                    f"as in an input, but is always {size}",
                    _FIX,
                    node,
                    name_of(value),
                )


def _content(value: ir.Value) -> str:
    array = numbers(value)
    if array is None or array.size > 8 or array.dtype.kind != "i":
        return ""
    return f" = {np.ravel(array).tolist()}"
