"""Faults of the file: frozen sizes, names, types, damage."""

from collections import Counter
from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from halfwise.errors import CaseError
from halfwise.graph.loading import check_again, numbers
from halfwise.graph.protobufs import said_by_checker
from halfwise.graph.sizes import (
    STATES,
    declared_axes,
    frozen_axes,
    frozen_states,
)
from halfwise.linting.rule import Found, Subject, name_of, rule
from halfwise.records import Finding

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
    if subject.proto is None:
        return
    proto = subject.proto.graph
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


@rule("duplicate-name", "warning", _NAMES)
def duplicates(subject: Subject) -> Iterator[Found]:
    """TensorRT numbers nodes that share a name, so a constraint reaches only the first."""
    counts = Counter(node.name for node in subject.in_file if node.name)
    for node in subject.nodes():
        name = subject.own_name(node)
        if (number := counts.pop(name, 0)) > 1:
            yield Found(
                f"{number} nodes are called {name}; a constraint with that name applies to "
                "the first only",
                "Give every node a unique name.",
                node,
            )


@rule("mixed-types", "error", "https://github.com/microsoft/onnxconverter-common/issues/266")
def types(subject: Subject) -> Iterator[Found]:
    """An operator whose inputs or outputs have types that contradict each other.

    ONNX Runtime and ONNX's full checker refuse the file. Converters to FP16 leave such constants,
    inputs, branches and declared outputs.
    """
    for clash in subject.network.mistyped:
        yield Found(clash, "Insert a Cast to the type that it needs; halfwise fix reads it so.")


@rule("checker", "error", "https://onnx.ai/onnx/api/checker.html")
def checker(subject: Subject) -> Iterator[Found]:
    """No tool has to accept what ONNX's own checker refuses.

    What no command of halfwise reads is reported here, and nothing else of that file. With
    --trt-version, a warning if halfwise reads it: TensorRT's parser builds some of it.
    """
    refusal = "" if subject.proto is None else said_by_checker(subject.proto)
    if refusal:
        # Exports for TensorRT contain its plugins as if they were ONNX operators.
        plugin = ": No Op registered" in refusal
        fix = (
            "Give plugin operators a domain of their own; ONNX Runtime knows its own without one."
            if plugin
            else check_again(subject.network.path)
        )
        yield Found(
            f"ONNX's checker refuses the model: {refusal.rstrip('.')}",
            fix,
            severity="warning" if plugin or subject.tensorrt else None,
        )


def unread(error: CaseError) -> Finding:
    """Return the finding on a file that no command reads."""
    return Finding(
        rule=checker.id,
        severity=checker.severity,
        message=error.message.rstrip("."),
        fix=error.hint,
        source=checker.source,
    )
