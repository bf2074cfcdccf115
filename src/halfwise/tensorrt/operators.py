"""Which version of TensorRT's ONNX parser supports which operator.

From onnx-tensorrt's docs/Changelog.md and docs/operators.md, in the lists of TensorRT 8.5 and
10.15, and the release notes of 11.2. Operators that 8.5 supports already are not listed.
"""

import onnx

SOURCE = "https://github.com/onnx/onnx-tensorrt/blob/main/docs/operators.md"

SINCE = {
    "GroupNormalization": "8.6",
    "LayerNormalization": "8.6",
    "IsInf": "8.6",
    "Hardmax": "9.2",
    "DeformConv": "10.1",
    "BlackmanWindow": "10.4",
    "HammingWindow": "10.4",
    "HannWindow": "10.4",
    "STFT": "10.5",
    "Attention": "10.14",
    "RMSNormalization": "10.15",
    "RotaryEmbedding": "10.15",
    "TensorScatter": "10.15",
    "DFT": "11.2",
}
"""The version that the changelog names."""

AT_THE_LATEST = {"CastLike": "10.15", "Gelu": "10.15", "Mish": "10.15"}
"""Not in the list of 8.5, and in that of this version; the changelog names none."""

NEVER_UP_TO = "10.15"
_REFUSED = """
    AffineGrid Bernoulli BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor CenterCropPad
    Col2Im Compress ConcatFromSequence ConvInteger Det DynamicQuantizeLinear ImageDecoder
    MatMulInteger MaxRoiPool MaxUnpool MelWeightMatrix Multinomial
    NegativeLogLikelihoodLoss Optional OptionalGetElement OptionalHasElement QLinearConv
    QLinearMatMul RegexFullMatch SequenceAt SequenceConstruct SequenceEmpty SequenceErase
    SequenceInsert SequenceLength SequenceMap SoftmaxCrossEntropyLoss SplitToSequence
    StringConcat StringNormalizer StringSplit TfIdfVectorizer Unique
"""
NEVER = frozenset(_REFUSED.split())
"""Operators that the list of `NEVER_UP_TO` refuses."""


def support(op: str) -> str:
    """Return a sentence on which TensorRT has the operator `op`; empty where it is not ONNX's."""
    if op in SINCE:
        return f"TensorRT {SINCE[op]} and later have {op}."
    if op in AT_THE_LATEST:
        return f"TensorRT {AT_THE_LATEST[op]} and later have {op}, perhaps earlier ones too."
    if op in NEVER:
        return f"No TensorRT up to {NEVER_UP_TO} has {op}: rewrite it, or write a plugin."
    if onnx.defs.has(op):
        return f"TensorRT takes {op}, though not in every form: its list names the restrictions."
    return ""
