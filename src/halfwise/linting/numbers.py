"""Numbers that low types cannot hold: eps, masks, weights, sums."""

from collections.abc import Callable, Iterator, Sequence

import onnx_ir as ir

from halfwise.formats import FP16
from halfwise.graph.dataflow import LONGEST_WAY
from halfwise.graph.norms import normalisations
from halfwise.graph.reading import (
    Nodes,
    activations,
    axes_of,
    is_constant,
    readers,
    scalar,
)
from halfwise.graph.sensitivity import MASK_SHARE, MOSTLY_TINY
from halfwise.linting.rule import Extent, Found, Subject, name_of, rule
from halfwise.tensorrt.versions import SINCE, text_of
from halfwise.wording import number, verb

_ONNX = "https://onnx.ai/onnx/operators/onnx__"
_REDUCTIONS = ("ReduceMean", "ReduceSum", "ReduceSumSquare", "ReduceL2")


@rule("layernorm-written-out", "warning", "https://github.com/NVIDIA/TensorRT/issues/2781")
def layer_norm(subject: Subject) -> Iterator[Found]:
    """The squares in a LayerNorm leave FP16's range for inputs of 256 and more.

    TensorRT 8.6 and later run LayerNormalization (opset 17) as one layer with sums in FP32.
    """
    for nodes in _normalisations(subject, "LayerNormalization"):
        what, fix = "", "Export with opset 17 or later, or run halfwise fix, which repairs it."
        if axes := _inner_axes(nodes):
            what = f" over axis {', '.join(map(str, axes))}, which is not the last"
            fix = (
                "LayerNormalization takes only the last axes: put a Transpose before and after it, "
                "or keep these nodes in FP32 (halfwise fix)."
            )
        yield _written_out(subject, nodes, "LayerNormalization", 17, fix, what)


@rule("instancenorm-written-out", "warning", _ONNX + "InstanceNormalization.html")
def instance_norm(subject: Subject) -> Iterator[Found]:
    """The squares in an InstanceNorm or GroupNorm leave FP16's range for inputs of 256 and more.

    Between two Reshapes, as in a GroupNorm, InstanceNormalization computes the same. It is in every
    opset, and one layer in TensorRT.
    """
    fix = "Run halfwise fix: it makes them one node, or keeps them in FP32."
    for nodes in _normalisations(subject, "InstanceNormalization"):
        yield _written_out(subject, nodes, "InstanceNormalization", 1, fix)


@rule("rmsnorm-written-out", "warning", _ONNX + "RMSNormalization.html")
def rms_norm(subject: Subject) -> Iterator[Found]:
    """The squares in an RMSNorm leave FP16's range for inputs of 256 and more.

    RMSNormalization is in opset 23, and in TensorRT since 10.15.
    """
    fix = (
        f"For TensorRT {text_of(SINCE['RMSNormalization'])} and later, export with opset 23; "
        "otherwise keep its nodes in FP32 (halfwise fix)."
    )
    for nodes in _normalisations(subject, "RMSNormalization"):
        yield _written_out(subject, nodes, "RMSNormalization", 23, fix)


@rule("gelu-written-out", "info", _ONNX + "Gelu.html")
def gelu(subject: Subject) -> Iterator[Found]:
    """The cube in the tanh form of GELU leaves FP16's range for inputs of 41 and more.

    Gelu is in opset 20; TensorRT is known to have it since 10.15.
    """
    fix = "Export with opset 20 if the target has Gelu."
    for nodes in dict.fromkeys(f.nodes for f in activations(subject.network, "Gelu")):
        yield _written_out(subject, nodes, "Gelu", 20, fix)


def _normalisations(subject: Subject, wanted: str) -> list[Nodes]:
    members = (nodes for kind, nodes in normalisations(subject.network) if kind == wanted)
    return list(dict.fromkeys(members))


def _written_out(
    subject: Subject, nodes: Nodes, op: str, since: int, fix: str, what: str = ""
) -> Found:
    ordered = sorted(nodes, key=subject.order.__getitem__)
    has = f"opset {subject.opset} {'has' if subject.opset >= since else 'has no'} {op}"
    message = (
        f"{len(ordered)} nodes, {ordered[0].op_type} to {ordered[-1].op_type}, write out {op}"
        f"{what}; {has}"
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


_ADDERS = ("Add", "Sum", "Max", "Clip")
"""Operators that add an eps to a value."""
_DEMANDING = {"Sqrt": (0,), "Log": (0,), "Reciprocal": (0,), "Div": (1,), "Pow": (0,)}
"""Operands that must not become zero: a Sqrt or Pow often leads to a division."""
_MASK_PATH = frozenset(("Add", "Sub", "Mul", "Div", "Max", "Min", "Clip", "Neg", "Sum", "Where"))
"""Operators between a mask constant and its Softmax."""
_SCORING = ("Add", "Sub", "Sum")
"""Operators that add scores to a mask; a Where puts it in their place."""
_MASK_FIX = "Mask with -1e4 instead: its exponential is zero too."
_WEIGHTS = "https://github.com/NVIDIA/TensorRT/issues/3101"
_SCALE = (
    "If Conv, Gemm or MatMul reads it as a factor, scale it by a power of two, and the result "
    "by the inverse before any bias. Otherwise keep the nodes that read it in FP32."
)
_BOUNDS = {"Clip": (1, 2), "Max": (0, 1), "Min": (0, 1)}
"""Operands that only bound another: if they saturate at 65504, the effect is the same."""
_FACTORS = {
    **dict.fromkeys(["Conv", "ConvTranspose", "LayerNormalization", "InstanceNormalization"], (1,)),
    **dict.fromkeys(["GroupNormalization", "RMSNormalization", "BatchNormalization"], (1,)),
    **dict.fromkeys(["PRelu", "DeformConv"], (1,)),
    **dict.fromkeys(["MatMul", "Gemm", "Mul", "Einsum"], (0, 1)),
    **dict.fromkeys(["LSTM", "GRU", "RNN"], (1, 2)),
}
"""Operands that are factors; tiny addends are lost in a sum anyway."""


@rule("eps-vanishes", "warning", "https://github.com/pytorch/pytorch/issues/32137")
def eps_vanishing(subject: Subject) -> Iterator[Found]:
    """An eps below FP16's smallest number, 6e-8, no longer protects divisors or logarithms."""
    for node, eps, reader, name in _eps(subject):
        if eps < FP16.smallest_subnormal:
            tiny = number(FP16.smallest_subnormal)
            zero = f"zero in FP16 after plain conversion (halfwise fix stores {tiny})"
            stored = zero if eps <= FP16.flush_threshold else f"{tiny} in FP16"
            yield Found(
                f"the eps {number(eps)} before {reader} becomes {stored}",
                f"Use an eps of at least {number(FP16.smallest_normal)}, or keep this node and the "
                f"{reader} in FP32.",
                node,
                name,
            )


@rule("eps-subnormal", "info", "https://github.com/pytorch/pytorch/issues/32137")
def eps_subnormal(subject: Subject) -> Iterator[Found]:
    """An eps between 6e-8 and 6.1e-5 is subnormal in FP16.

    It has few bits, and becomes zero if a kernel flushes subnormal numbers.
    """
    for node, eps, reader, name in _eps(subject):
        if FP16.smallest_subnormal <= eps < FP16.smallest_normal:
            bits = int(eps / FP16.smallest_subnormal).bit_length()
            yield Found(
                f"the eps {number(eps)} before {reader} is subnormal in FP16: {bits} of 11 bits",
                f"If values come near it, use an eps of at least {number(FP16.smallest_normal)}, "
                f"or keep this node and the {reader} in FP32.",
                node,
                name,
            )


def _eps(subject: Subject) -> Iterator[tuple[ir.Node, float, str, str]]:
    """Yield node, eps, the operator that needs it, and the constant's name."""
    for node in subject.nodes():
        if node.op_type not in _ADDERS:
            continue
        # Only the lower bound of a Clip may be an eps.
        bounds = node.inputs[1:2] if node.op_type == "Clip" else node.inputs
        constants = [v for v in bounds if v is not None and is_constant(v)]
        tiny = [(v, n) for v in constants if (n := scalar(v)) and 0 < n < FP16.smallest_normal]
        reader = _demanding(node.outputs[0]) if tiny else ""
        if reader and len(constants) < len(node.inputs):
            yield node, tiny[0][1], reader, name_of(tiny[0][0])


def _demanding(value: ir.Value) -> str:
    """Return the operator for which `value` must not be zero; "" if nothing reads it."""
    for node, slot, _ in readers(value):
        if slot in _DEMANDING.get(node.op_type, ()):
            power = scalar(node.inputs[1]) if node.op_type == "Pow" else None
            if node.op_type != "Pow" or (power is not None and power < 1.0):
                return node.op_type
    return ""


@rule("mask-constant", "warning", "https://github.com/huggingface/transformers/pull/17306")
def masks(subject: Subject) -> Iterator[Found]:
    """A mask of -65504 plus a score of -16 is -inf in FP16; a row of -inf is NaN after Softmax.

    Lower masks are stored as -65504, or as -inf by plain conversion. With a mask of -inf, such a
    row is NaN in any precision.
    """
    for value, extent in subject.extents.items():
        path = mask_readers(value, extent)
        if not path:
            continue
        end = path[-1]
        if extent.least == -float("inf"):
            yield Found(
                f"the mask {name_of(value)} holds -inf before {end.op_type}: a fully masked row "
                "is NaN in any precision",
                _MASK_FIX,
                path[0],
                name_of(value),
                "info",
            )
        elif hazard := _hazard(extent.least, path):
            yield Found(
                f"the mask {name_of(value)} = {number(extent.least)} is {hazard}",
                _MASK_FIX,
                path[0],
                name_of(value),
            )


def _hazard(least: float, path: Sequence[ir.Node]) -> str:
    """Return what a finite mask becomes; "" if it stays as it is and no score is added to it."""
    fits, end = least >= -FP16.max, path[-1].op_type
    stored = f"{number(least, 6) if fits else '-inf or -65504'} in FP16"
    if any(node.op_type in _SCORING for node in path):
        score = number(min(0.0, -FP16.overflow_threshold - max(least, -FP16.max)), 6)
        return f"{stored}, and -inf once a score of {score} or below is added before {end}"
    return "" if fits else f"{stored}; with -inf, a fully masked row is NaN after {end}"


def mask_readers(value: ir.Value, extent: Extent) -> tuple[ir.Node, ...]:
    """Return the nodes from a mask constant to its Softmax; empty for other constants."""
    if extent.least > -MASK_SHARE * FP16.max:
        return ()
    return _path(
        value,
        lambda node, _: node.op_type in ("Softmax", "LogSoftmax"),
        lambda node: node.op_type in _MASK_PATH,
    )


def _path(
    value: ir.Value,
    ends: Callable[[ir.Node, int], bool],
    passes: Callable[[ir.Node], bool],
) -> tuple[ir.Node, ...]:
    """Return the nodes from a value to the nearest one that `ends` accepts; empty if none does.

    `ends` takes node and slot. At most `LONGEST_WAY` nodes lie between, all accepted by `passes`.
    """
    paths: list[tuple[ir.Value, tuple[ir.Node, ...]]] = [(value, ())]
    seen = {value}
    for current, path in paths:
        for node, slot, _ in readers(current):
            if ends(node, slot):
                return (*path, node)
            output = node.outputs[0] if node.outputs else None
            if output is None or output in seen or len(path) >= LONGEST_WAY:
                continue
            if passes(node):
                seen.add(output)
                paths.append((output, (*path, node)))
    return ()


@rule("constant-beyond-fp16", "warning", "https://github.com/NVIDIA/TensorRT/issues/2186")
def beyond(subject: Subject) -> Iterator[Found]:
    """Numbers beyond 65504 are infinite in FP16; TensorRT stores them as 65504. Both are wrong.

    Masks have a rule of their own; bounds of Clip, Max and Min are harmless.
    """
    for value, extent in subject.extents.items():
        if not extent.beyond or mask_readers(value, extent):
            continue
        for node, slot, _ in readers(value):
            if slot in _BOUNDS.get(node.op_type, ()):
                continue
            yield Found(
                f"{extent.beyond} of the {extent.elements} values of {name_of(value)} "
                f"{verb(extent.beyond, 'is', 'are')} beyond FP16's 65504, up to "
                f"{number(extent.largest)}",
                _SCALE,
                node,
                name_of(value),
            )
            break


@rule("constant-subnormal", "warning", _WEIGHTS)
def subnormal(subject: Subject) -> Iterator[Found]:
    """Weights below 6.1e-5 are subnormal in FP16 and keep few bits; below 3e-8 they are zero.

    Reported if they are more than half of a factor's non-zero numbers.
    """
    for value, extent in subject.extents.items():
        if extent.subnormal <= MOSTLY_TINY * extent.nonzero:
            continue
        for node, slot, _ in readers(value):
            if slot in _FACTORS.get(node.op_type, ()):
                yield Found(
                    f"{extent.subnormal} of the {extent.nonzero} non-zero values of "
                    f"{name_of(value)} are below FP16's smallest normal number, 6.1e-05; "
                    f"{extent.zeroed} become zero, and the largest is {number(extent.largest)}",
                    _SCALE,
                    node,
                    name_of(value),
                )
                break


@rule("fp64", "warning", "https://github.com/onnx/onnx-tensorrt/blob/main/docs/operators.md")
def doubles(subject: Subject) -> Iterator[Found]:
    """TensorRT has no FP64: its parser converts it to FP32."""
    for node in subject.nodes():
        if any(v.dtype == ir.DataType.DOUBLE for v in node.outputs):
            yield Found(
                f"it writes {name_of(node.outputs[0])} in FP64, which becomes FP32",
                "Export in FP32 (model.float()), or find out which node needs FP64.",
                node,
                name_of(node.outputs[0]),
            )
