"""Exports in training mode, and files that are damaged."""

from collections.abc import Iterator

import onnx

from halfwise.linting.rule import Found, Subject, rule, standard_nodes

_MODE_SINCE = 7
"""Before it, BatchNormalization and Dropout had `is_test`, which exporters set as they liked."""


@rule("checker", "error", "https://onnx.ai/onnx/api/checker.html", reads_graph=False)
def checker(subject: Subject) -> Iterator[Found]:
    """What ONNX's own checker refuses, no tool has to take."""
    refusal = subject.model.refusal
    if refusal:
        # Exports for TensorRT hold its plugins as if they were ONNX's operators.
        plugin = refusal.startswith("No Op registered")
        fix = (
            "Give operators of plugins a domain of their own."
            if plugin
            else "Run python -m onnx.checker on it, and export it again."
        )
        yield Found(
            f"ONNX's checker refuses the model: {refusal.rstrip('.')}",
            fix,
            severity="warning" if plugin else None,
        )


@rule("constant-unreadable", "error", "https://onnx.ai/onnx/repo-docs/ExternalData.html")
def unreadable(subject: Subject) -> Iterator[Found]:
    """A constant whose data is cut short, missing or outside the model's folder."""
    for name, reason in subject.model.broken.items():
        yield Found(
            f"the data of the constant {name} cannot be read: {reason.rstrip('.')}",
            "Copy the files of external data beside the model, or export it again.",
            tensor=name,
        )


@rule(
    "training-mode",
    "warning",
    "https://onnx.ai/onnx/operators/onnx__BatchNormalization.html",
    reads_graph=False,
)
def training(subject: Subject) -> Iterator[Found]:
    """An export in training mode: statistics of the batch, and dropout at inference.

    BatchNormalization with training_mode (opset 14), or with the outputs that only training has
    (before), and Dropout whose training_mode is a constant true.
    """
    true = _true_constants(subject.model.proto)
    for place, node in standard_nodes(subject, "BatchNormalization", "Dropout"):
        flags = {a.name: a.i for a in node.attribute}
        if node.op_type == "Dropout":
            trains = len(node.input) > 2 and node.input[2] in true
        elif subject.opset >= 14:
            trains = bool(flags.get("training_mode"))
        else:
            trains = subject.opset >= _MODE_SINCE and sum(map(bool, node.output)) > 1
        if trains:
            yield Found(
                f"{node.op_type} runs in training mode",
                "Call model.eval() before the export.",
                place,
            )


def _true_constants(proto: onnx.ModelProto) -> set[str]:
    """Return the constants of one Boolean that is true."""
    tensors = [(t.name, t) for t in proto.graph.initializer]
    for node in proto.graph.node:
        if node.op_type == "Constant":
            tensors += [(node.output[0], a.t) for a in node.attribute if a.name == "value"]
    return {
        name
        for name, t in tensors
        if t.data_type == onnx.TensorProto.BOOL and any((*t.int32_data, *t.raw_data))
    }
