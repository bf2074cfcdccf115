"""Operators written out as several nodes although ONNX has a single one."""

from collections.abc import Iterator

import onnx_ir as ir

from halfwise.graph.norms import normalisations
from halfwise.graph.one_node import FIRST_OPSET
from halfwise.graph.reading import Nodes, activations, axes_of
from halfwise.graph.written_out import attentions
from halfwise.linting.rule import Found, Subject, rule
from halfwise.tensorrt.versions import SINCE, first_reading, text_of

_ONNX = "https://onnx.ai/onnx/operators/onnx__"
_REDUCTIONS = ("ReduceMean", "ReduceSum", "ReduceSumSquare", "ReduceL2")


@rule("layernorm-written-out", "warning", "https://github.com/NVIDIA/TensorRT/issues/2781")
def layer_norm(subject: Subject) -> Iterator[Found]:
    """The squares in a LayerNorm leave FP16's range for inputs of 256 and more.

    TensorRT 8.6 and later run LayerNormalization (opset 17) as one layer with sums in FP32.
    """
    for nodes in _normalisations(subject, "LayerNormalization"):
        axes = _inner_axes(nodes)
        if axes:
            what = f"over axis {', '.join(map(str, axes))}, which is not the last"
            fix = (
                "LayerNormalization takes only the last axes: put a Transpose before and after it, "
                "or keep these nodes in FP32 (halfwise fix)."
            )
            yield _found(subject, nodes, "LayerNormalization", 17, fix, what)
        else:
            fix = "Export with opset 17 or later, or run halfwise modernize."
            yield _found(subject, nodes, "LayerNormalization", 17, fix)


@rule("groupnorm-written-out", "warning", _ONNX + "GroupNormalization.html")
def group_norm(subject: Subject) -> Iterator[Found]:
    """A GroupNorm between two Reshapes becomes many layers in TensorRT, with squares in FP16.

    TensorRT 8.6 and later read GroupNormalization of opset 18, 10.9 and later that of opset 21.
    """
    version = first_reading(FIRST_OPSET["GroupNormalization"])
    known = "" if version is None else f" --trt-version {text_of(version)}"
    fix = f"Export with opset 18 or later, or run halfwise modernize{known}."
    for nodes in _normalisations(subject, "GroupNormalization"):
        yield _found(subject, nodes, "GroupNormalization", 18, fix)


@rule("rmsnorm-written-out", "warning", _ONNX + "RMSNormalization.html")
def rms_norm(subject: Subject) -> Iterator[Found]:
    """The squares in an RMSNorm leave FP16's range for inputs of 256 and more.

    RMSNormalization is in opset 23, and in TensorRT since 10.15.
    """
    fix = (
        f"For TensorRT {text_of(SINCE['RMSNormalization'])} and later, raise the opset to 23 "
        "(halfwise modernize); otherwise keep its nodes in FP32 (halfwise fix)."
    )
    for nodes in _normalisations(subject, "RMSNormalization"):
        yield _found(subject, nodes, "RMSNormalization", 23, fix)


@rule("gelu-written-out", "info", _ONNX + "Gelu.html")
def gelu(subject: Subject) -> Iterator[Found]:
    """The cube in the tanh form of GELU leaves FP16's range for inputs of 41 and more.

    Gelu is in opset 20; TensorRT is known to have it since 10.15.
    """
    fix = "Raise the opset to 20 if the target has Gelu, or run halfwise modernize."
    for nodes in dict.fromkeys(f.nodes for f in activations(subject.network, "Gelu")):
        yield _found(subject, nodes, "Gelu", 20, fix)


@rule("attention-written-out", "info", "https://github.com/Stability-AI/stable-audio-3/pull/79")
def attention(subject: Subject) -> Iterator[Found]:
    """TensorRT fuses attention written as several nodes, but not if some of them are kept in FP32.

    Attention is in opset 23, and in TensorRT since 10.14.
    """
    fix = (
        f"For TensorRT {text_of(SINCE['Attention'])} and later, export with opset 23; otherwise "
        "constrain all of it or none."
    )
    for nodes in dict.fromkeys(attentions(subject.network)):
        yield _found(subject, nodes, "Attention", 23, fix)


def _normalisations(subject: Subject, wanted: str) -> list[Nodes]:
    found = (nodes for kind, nodes in normalisations(subject.network) if kind == wanted)
    return list(dict.fromkeys(found))


def _found(subject: Subject, nodes: Nodes, op: str, since: int, fix: str, what: str = "") -> Found:
    ordered = sorted(nodes, key=subject.order.__getitem__)
    has = f"opset {subject.opset} {'has' if subject.opset >= since else 'has no'} {op}"
    where = f" {what}" if what else ""
    message = (
        f"{len(ordered)} nodes, {ordered[0].op_type} to {ordered[-1].op_type}, write out {op}"
        f"{where}; {has}"
    )
    return Found(message, fix, ordered[0])


def _inner_axes(nodes: Nodes) -> tuple[int, ...]:
    """Return the reduced axes if they are not the last ones; else empty."""
    for node in nodes:
        value: ir.Value | None = node.inputs[0] if node.inputs else None
        if node.op_type not in _REDUCTIONS or value is None or value.shape is None:
            continue
        rank = value.shape.rank()
        axes = axes_of(node)
        if axes and rank and sorted(a % rank for a in axes) != list(range(rank))[-len(axes) :]:
            return axes
    return ()
