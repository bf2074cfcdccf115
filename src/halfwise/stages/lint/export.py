"""Faults that an export is known for, and files that are damaged."""

from collections.abc import Iterator

import onnx

from halfwise.stages.lint.rule import Found, Subject, rule, standard_nodes

_RESIZE_OPSET = 11
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
    "exporter-resize",
    "warning",
    "https://github.com/microsoft/onnxruntime/issues/3297",
    reads_graph=False,
)
def resize(subject: Subject) -> Iterator[Found]:
    """PyTorch's interpolate cannot be said before opset 11: the exporter warns that results differ.

    Resize got coordinate_transformation_mode and nearest_mode in opset 11.
    """
    if subject.model.proto.producer_name != "pytorch" or subject.opset >= _RESIZE_OPSET:
        return
    for place, _ in standard_nodes(subject, "Resize", "Upsample"):
        yield Found(
            f"PyTorch {subject.model.proto.producer_version} wrote it at opset {subject.opset}, "
            "which cannot say how interpolate finds its coordinates",
            "Export again with opset 11 or later.",
            place,
        )


@rule("exporter-unmaintained", "info", "https://github.com/onnx/keras-onnx", reads_graph=False)
def unmaintained(subject: Subject) -> Iterator[Found]:
    """keras2onnx is frozen at TensorFlow 2.3 and its faults stay; tf2onnx took its place."""
    proto = subject.model.proto
    if proto.producer_name == "keras2onnx":
        yield Found(
            f"keras2onnx {proto.producer_version} wrote the model; it is no longer maintained",
            "Export it again with tf2onnx, and compare the outputs with the framework's.",
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
