"""Numbers that low types cannot hold: squares in norms, constants."""

from collections.abc import Iterator

import onnx_ir as ir

from halfwise.formats import FP16
from halfwise.graph.casts import adjusted_elements
from halfwise.graph.model import constant_array, graphs_of
from halfwise.graph.norms import normalisations
from halfwise.graph.reading import readers
from halfwise.graph.weights import span
from halfwise.linting.rule import Found, Subject, name_of, rule
from halfwise.wording import number, verb

_OPSETS = {"LayerNormalization": 17, "InstanceNormalization": 1, "RMSNormalization": 23}
"""The first opset with each norm."""


@rule("norm-written-out", "warning", "https://github.com/NVIDIA/TensorRT/issues/2781")
def norms(subject: Subject) -> Iterator[Found]:
    """The squares in a norm of several nodes leave FP16's range for inputs of 256 and more.

    TensorRT sums in FP32 where it is one node: LayerNormalization (opset 17, TensorRT 8.6),
    RMSNormalization (opset 23, TensorRT 10.15), or InstanceNormalization, which is in every opset
    and between two Reshapes computes a GroupNorm too.
    """
    for kind, nodes in dict.fromkeys(normalisations(subject.network)):
        if kind not in _OPSETS:
            continue
        ordered, since = sorted(nodes, key=subject.order.__getitem__), _OPSETS[kind]
        has = f"opset {subject.opset} {'has' if subject.opset >= since else 'has no'} {kind}"
        ends = f"{ordered[0].op_type} to {ordered[-1].op_type}"
        fix = f"Export with opset {since} or later, or run" if since > subject.opset else "Run"
        yield Found(
            f"{len(ordered)} nodes, {ends}, write out {kind}; {has}",
            f"{fix} halfwise fix, which makes it one node or keeps it in FP32.",
            ordered[0],
        )


_BOUNDS = {"Clip": (1, 2), "Max": (0, 1), "Min": (0, 1)}
"""Operands that only bound another: if they saturate at 65504, the effect is the same."""
_WIDE = frozenset((ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.BFLOAT16))
"""Types with numbers that FP16 cannot represent."""


@rule("constant-beyond-fp16", "warning", "https://github.com/NVIDIA/TensorRT/issues/2186")
def beyond(subject: Subject) -> Iterator[Found]:
    """Numbers beyond 65504 are infinite in FP16; TensorRT stores them as 65504. Both are wrong.

    A row of a mask of them is NaN behind Softmax; -1e4 masks as well. Bounds of Clip, Max and Min
    are harmless.
    """
    for graph in graphs_of(subject.network.model):
        for value in graph.initializers.values():
            read = [n for n, slot, _ in readers(value) if slot not in _BOUNDS.get(n.op_type, ())]
            largest = _largest(value) if read else 0.0
            if largest > FP16.max:
                often = adjusted_elements(constant_array(value), FP16)
                yield Found(
                    f"{often} of the {constant_array(value).size} values of {name_of(value)} "
                    f"{verb(often, 'is', 'are')} beyond FP16's 65504, up to {number(largest)}",
                    "If Conv, Gemm or MatMul reads it as a factor, scale it by a power of two, and "
                    "the result by the inverse before any bias; mask with -1e4. Otherwise keep "
                    "the nodes that read it in FP32.",
                    read[0],
                    name_of(value),
                )


def _largest(value: ir.Value) -> float:
    """Return the largest finite magnitude of a constant of a type wider than FP16; else 0."""
    if value.const_value is None or value.const_value.dtype not in _WIDE:
        return 0.0
    low, high = span(constant_array(value))
    return max(-low, high, 0.0)
