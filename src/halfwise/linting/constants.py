"""Weights and other constants that FP16 cannot hold."""

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from halfwise.formats import FP16
from halfwise.graph.patterns.reading import maker, readers
from halfwise.graph.unchecked import numbers
from halfwise.linting.masks import mask_readers
from halfwise.linting.rule import Found, Subject, name_of, rule

_WEIGHTS = "https://github.com/NVIDIA/TensorRT/issues/3101"
_SCALE = (
    "Where Conv, Gemm or MatMul read it as a factor: scale it by a power of two, and the result "
    "before a bias by the inverse. Else keep what reads it in FP32."
)
_BOUNDS = {"Clip": (1, 2), "Max": (0, 1), "Min": (0, 1)}
"""Operands that only bound another: saturated at 65504 they do what they did."""
_FACTORS = {
    **dict.fromkeys(["Conv", "ConvTranspose", "LayerNormalization", "InstanceNormalization"], (1,)),
    **dict.fromkeys(["GroupNormalization", "RMSNormalization", "BatchNormalization"], (1,)),
    **dict.fromkeys(["PRelu", "DeformConv"], (1,)),
    **dict.fromkeys(["MatMul", "Gemm", "Mul", "Einsum"], (0, 1)),
    **dict.fromkeys(["LSTM", "GRU", "RNN"], (1, 2)),
}
"""Operands that something is multiplied by; a tiny addend is lost in a sum anyway."""
_VARIANCE = 4
_MOSTLY = 0.5
"""A minority of tiny weights is usual and harmless next to large ones; a majority is not."""
_SIGNIFICANT = 1e-2
"""Relative change of a channel's scale that counts: the default tolerance of `halfwise fix`."""


@rule("constant-beyond-fp16", "warning", "https://github.com/NVIDIA/TensorRT/issues/2186")
def beyond(subject: Subject) -> Iterator[Found]:
    """Numbers beyond 65504 are infinite in FP16; TensorRT stores them as 65504. Wrong either way.

    Left out are masks, bounds of Clip, Max and Min, and variances, which have rules of their own.
    """
    for value, extent in subject.extents.items():
        if not extent.beyond or mask_readers(value, extent):
            continue
        for node, slot, _ in readers(value):
            if slot in _BOUNDS.get(node.op_type, ()) or _is_variance(node, slot):
                continue
            yield Found(
                f"{extent.beyond} of the {extent.elements} values of {name_of(value)} "
                f"{'is' if extent.beyond == 1 else 'are'} beyond FP16's 65504, up to "
                f"{extent.largest:.3g}",
                _SCALE,
                node,
                name_of(value),
            )
            break


@rule("constant-subnormal", "warning", _WEIGHTS)
def subnormal(subject: Subject) -> Iterator[Found]:
    """Weights below 6.1e-5 are subnormal in FP16 and keep few bits; below 3e-8 they are zero.

    Named where they are more than half of a factor's non-zero numbers.
    """
    for value, extent in subject.extents.items():
        if extent.subnormal <= _MOSTLY * extent.nonzero:
            continue
        for node, slot, _ in readers(value):
            if slot in _FACTORS.get(node.op_type, ()):
                yield Found(
                    f"{extent.subnormal} of the {extent.nonzero} non-zero values of "
                    f"{name_of(value)} are below FP16's smallest normal number, 6.1e-05, and "
                    f"{extent.zeroed} become zero; the largest is {extent.largest:.3g}",
                    _SCALE,
                    node,
                    name_of(value),
                )
                break


@rule("batchnorm-variance", "warning", _WEIGHTS)
def variance(subject: Subject) -> Iterator[Found]:
    """A variance that FP16 cannot hold changes the scale of its channel where it is stored in FP16.

    To first order 1/√(v + eps) changes by δv / 2(v + eps); beyond 65504 it is lost.
    """
    for node in subject.nodes():
        if node.op_type != "BatchNormalization" or len(node.inputs) <= _VARIANCE:
            continue
        array = numbers(node.inputs[_VARIANCE])
        if array is None or not array.size:
            continue
        v = np.abs(array.astype(np.float32))
        epsilon = node.attributes.get("epsilon")
        eps = 1e-5 if epsilon is None else epsilon.as_float()
        with np.errstate(divide="ignore", invalid="ignore"):
            change = np.abs(FP16.round(v) - v) / (2 * (v + eps))
        lost = (v > FP16.max) | (change > _SIGNIFICANT)
        if not lost.any():
            continue
        behind = maker(node.inputs[0], "Conv", "ConvTranspose", "Gemm", "MatMul")
        into = f"the {behind.op_type} before it" if behind else "a Mul and an Add"
        yield Found(
            f"{int(lost.sum())} of {v.size} variances, from {v.min():.3g} to {v.max():.3g}, lose "
            "their scale in FP16",
            f"Fold the BatchNormalization into {into}, in FP32, before the model is converted.",
            node,
            name_of(node.inputs[_VARIANCE]) if node.inputs[_VARIANCE] else None,
        )


def _is_variance(node: ir.Node, slot: int) -> bool:
    return node.op_type == "BatchNormalization" and slot == _VARIANCE
