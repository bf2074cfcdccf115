"""Quantisation that TensorRT refuses or misreads, or that loses a joined tensor."""

from collections.abc import Iterator, Mapping

import numpy as np
import onnx_ir as ir

from halfwise.graph.loading import numbers
from halfwise.graph.model import is_standard
from halfwise.graph.quantised import (
    LEVELS,
    keeps_nothing,
    pairs_of,
)
from halfwise.linting.rule import Found, Subject, name_of, rule
from halfwise.tensorrt.constrain import AGAIN, MEANT, reasons
from halfwise.tensorrt.versions import ASKED, text_of
from halfwise.wording import number

_FIXES: Mapping[str, str] = {
    "bias": "Leave biases as they are: QuantizeBias=False in onnxruntime.quantization.",
    "scale": "Calibrate again with data that reaches this tensor.",
}
"""What to do about some reasons; about others, quantise for TensorRT."""


@rule("quantisation-refused", "warning", "https://github.com/NVIDIA/TensorRT/issues/4698")
def refused(subject: Subject) -> Iterator[Found]:
    """TensorRT quantises to INT8, FP8 (E4M3), INT4 and FP4, with zero points of 0.

    Its scales are constants above 0, for a whole tensor or for the channels of a weight. Its
    parser fails at others, and reads UINT8, the default of a QuantizeLinear without zero point, as
    INT8: values above 127 saturate. An error with --trt-version; scales not above 0 always are.
    """
    version = subject.tensorrt or ASKED
    for node in _steps(subject):
        reason = next(reasons(node, version), None)
        if reason is not None:
            grave = subject.tensorrt is not None or reason == "scale"
            yield Found(
                f"TensorRT {text_of(version)} rejects it: {MEANT[reason]}",
                _FIXES.get(reason, AGAIN),
                node,
                severity="error" if grave else None,
            )


_UNIT = ("HardSigmoid", "Sigmoid", "Softmax")
"""Operators whose results are at most 1."""


@rule("quantisation-joined", "warning", "https://arxiv.org/abs/2004.09602")
def joined(subject: Subject) -> Iterator[Found]:
    """One scale for joined tensors of very different size, such as boxes and scores.

    Reported if the scale behind a Concat leaves less than 1.27 of 127 levels to a joined tensor
    that is a constant, was quantised itself, or is at most 1 by its operator.
    """
    pairs = pairs_of(subject.network)
    known = {pair.dequantise: LEVELS * float(pair.scale.max(initial=0)) for pair in pairs}
    for pair in pairs:
        join = None if pair.source is None else pair.source.producer()
        if join is None or not is_standard(join, "Concat") or pair.scale.size != 1:
            continue
        for value in join.inputs:
            most, step = _most(value, known), float(pair.scale.item())
            if most is not None and keeps_nothing(most, step):
                yield Found(
                    f"its scale is {number(step)}, but {name_of(value)}, one of the tensors that "
                    f"{join.name} joins, is at most {number(most)}: it keeps no levels",
                    "Quantise the tensors before they are joined, or leave the Concat and what "
                    "follows out of INT8.",
                    pair.quantise,
                    name_of(value),
                )


def _most(value: ir.Value | None, known: Mapping[ir.Node, float]) -> float | None:
    """Return the largest magnitude that a tensor can have, if it shows without running."""
    maker = None if value is None else value.producer()
    if maker is not None:
        return 1.0 if is_standard(maker, *_UNIT) else known.get(maker)
    constant = numbers(value)
    return None if constant is None or not constant.size else float(np.abs(constant).max())


def _steps(subject: Subject) -> Iterator[ir.Node]:
    """Yield each QuantizeLinear, and each DequantizeLinear without one: a pair has one finding."""
    for node in subject.nodes():
        if is_standard(node, "QuantizeLinear"):
            yield node
        elif is_standard(node, "DequantizeLinear") and node.inputs[0] is not None:
            before = node.inputs[0].producer()
            if before is None or before.op_type != "QuantizeLinear":
                yield node
