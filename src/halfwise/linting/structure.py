"""Faults of the file: frozen sizes, names, exporters, damage."""

from collections import Counter
from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from halfwise.graph.loading import check_again, numbers
from halfwise.graph.sizes import (
    STATES,
    declared_axes,
    frozen_axes,
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
    frozen = [*frozen_axes(subject.network, batch=True), *frozen_states(subject.network)]
    for each in sorted(frozen, key=lambda f: subject.order[f.node]):
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
    for each in frozen_axes(subject.network, batch=False):
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


_NAMES = "https://github.com/onnx/onnx/blob/main/docs/IR.md#names-within-a-graph"


@rule("duplicate-name", "warning", _NAMES, reads_graph=False)
def duplicates(subject: Subject) -> Iterator[Found]:
    """TensorRT numbers nodes that share a name, so a constraint reaches only the first."""
    counts = Counter(node.name for _, node in subject.model.nodes if node.name)
    for place, node in subject.model.nodes:
        if (number := counts.pop(node.name, 0)) > 1:
            yield Found(
                f"{number} nodes are called {node.name}; a constraint with that name applies to "
                "the first only",
                "Give every node a unique name.",
                place,
            )


@rule("mixed-types", "error", "https://github.com/microsoft/onnxconverter-common/issues/266")
def types(subject: Subject) -> Iterator[Found]:
    """An operator whose inputs or outputs have types that contradict each other.

    ONNX Runtime and ONNX's full checker refuse the file. Converters to FP16 leave such constants,
    inputs, branches and declared outputs.
    """
    for clash in subject.model.clashes:
        place, value = clash.place, clash.value
        yield Found(
            f"its {place} {value} is {clash.found.name} where it needs {clash.wanted.name}",
            f"Insert a Cast of {value} to {clash.wanted.name}; halfwise fix reads it so."
            if clash.mends
            else f"Insert a Cast of {value} to {clash.wanted.name}.",
            clash.node,
            value,
        )


@rule("checker", "error", "https://onnx.ai/onnx/api/checker.html", reads_graph=False)
def checker(subject: Subject) -> Iterator[Found]:
    """No tool has to accept what ONNX's own checker refuses.

    With --trt-version, a warning: TensorRT's parser builds some of it.
    """
    refusal = subject.model.refusal
    if refusal:
        # Exports for TensorRT contain its plugins as if they were ONNX operators.
        plugin = ": No Op registered" in refusal
        fix = (
            "Give plugin operators a domain of their own; ONNX Runtime knows its own without one."
            if plugin
            else check_again(subject.model.path)
        )
        yield Found(
            f"ONNX's checker refuses the model: {refusal.rstrip('.')}",
            fix,
            severity="warning" if plugin or subject.tensorrt else None,
        )


@rule("constant-unreadable", "error", "https://onnx.ai/onnx/repo-docs/ExternalData.html")
def unreadable(subject: Subject) -> Iterator[Found]:
    """A constant whose data is truncated, missing or outside the model's folder."""
    for name, reason in subject.model.broken.items():
        yield Found(
            f"the data of the constant {name} cannot be read: {reason.rstrip('.')}",
            "Copy the external data files next to the model, or export it again.",
            tensor=name,
        )
