"""Forms of operators, written by hand, that no answer in `taken.json` was learnt from.

They have other shapes, ranks, types, opsets, optional inputs and outputs than ONNX's node tests and
their neighbours (`tools/builder_facts.py`).
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from bench.one_node import Form, Operand, Source, Use

F16, F32, I8, I32, I64 = np.float16, np.float32, np.int8, np.int32, np.int64
BF16 = ml_dtypes.bfloat16


def x(*shape: int, dtype: Any = F32, place: Source = "input") -> Operand:
    """Return an operand of numbers between 0.5 and 2."""
    count = int(np.prod(shape))
    value = np.linspace(0.5, 2, count).reshape(shape).astype(dtype)
    return Operand(value, place)


def c(value: Any, dtype: Any = I64, place: Source = "constant") -> Operand:
    """Return an operand with these values, a constant by default."""
    return Operand(np.asarray(value, dtype), place)


def form(
    op: str,
    opset: int,
    *operands: Operand | None,
    outputs: tuple[Use, ...] = ("used",),
    ranks: tuple[int, ...] = (),
    **attributes: Any,
) -> Form:
    """Return a form."""
    return Form(op, opset, operands, attributes, outputs, ranks)


def _attention(opset: int, query: Operand, *more: Operand | None, **attributes: Any) -> Form:
    """Return self-attention, the rank of whose operands is that of `query`."""
    return form("Attention", opset, query, query, query, *more, **attributes)


def _weights(*shape: int, dtype: Any = F32) -> Operand:
    return x(*shape, dtype=dtype, place="constant")


FORMS: tuple[Form, ...] = (
    form("Attention", 23, x(1, 8, 20, 64, dtype=F16), *[x(1, 8, 50, 64, dtype=F16)] * 2),
    form(
        "Attention",
        23,
        x(1, 8, 24, 64, dtype=BF16),
        *[x(1, 2, 24, 64, dtype=BF16)] * 2,
        is_causal=1,
    ),
    _attention(24, x(3, 10, 96), c(np.tri(10), bool), q_num_heads=6, kv_num_heads=6),
    _attention(
        23,
        x(2, 4, 1, 32, dtype=F16),
        None,
        *[x(2, 4, 15, 32, dtype=F16)] * 2,
        outputs=("used", "used", "used"),
    ),
    _attention(24, x(1, 2, 12, 16, dtype=F16), c(np.tri(12), bool, "input"), softcap=8.0),
    _attention(24, x(2, 3, 7, 40), scale=0.1, outputs=("used", "", "", "used")),
    form("Dropout", 13, x(3, 5, 7), c(0.3, F32), c(False, bool)),
    form("Dropout", 22, x(4, 6, dtype=F16), c(0.5, F32), c(False, bool)),
    form("Dropout", 13, x(3, 5, 7), c(0.0, F32), c(True, bool)),
    form("Dropout", 13, x(2, 9), outputs=("used", "unread")),
    form("Clip", 13, x(2, 3, 8, 8, dtype=I8), c(-3, I8), c(4, I8)),
    form("Clip", 13, x(4, 4, dtype=I8), None, c(4, I8)),
    form("Clip", 13, x(5, 6, 7, dtype=I32), c(-3, I32), c(4, I32)),
    form("Clip", 13, x(2, 3, 8, 8, dtype=F16), c(0, F16), c(6, F16)),
    form("MaxPool", 12, x(2, 3, 20, 20), kernel_shape=[3, 3], outputs=("used", "unread")),
    form("MaxPool", 11, x(1, 2, 30), kernel_shape=[4], outputs=("used", "used")),
    form("MaxPool", 12, x(1, 4, 17, 19, dtype=F16), kernel_shape=[3, 2], strides=[2, 1]),
    form("MaxPool", 12, x(1, 4, 17, 19), kernel_shape=[2, 2], dilations=[3, 1]),
    form("AveragePool", 19, x(1, 4, 17, 19), kernel_shape=[2, 2], dilations=[1, 3]),
    form("LpPool", 18, x(1, 4, 15, 15), kernel_shape=[3, 3], p=4),
    form(
        "LayerNormalization",
        17,
        x(4, 10, 64),
        _weights(64),
        _weights(64),
        outputs=("used", "unread"),
    ),
    form("LayerNormalization", 17, x(4, 10, 64, dtype=F16), _weights(64, dtype=F16)),
    form(
        "LayerNormalization",
        17,
        x(6, 32),
        _weights(32),
        _weights(32),
        outputs=("used", "", "unread"),
    ),
    form("BatchNormalization", 15, x(2, 5, 9), *[_weights(5)] * 4),
    form(
        "BatchNormalization",
        15,
        x(2, 5, 9),
        *[_weights(5)] * 4,
        training_mode=1,
        outputs=("used", "unread", "unread"),
    ),
    form("ReduceMean", 18, x(3, 4, 5, 6), c([1, 3])),
    form("ReduceMax", 20, x(7, 8, dtype=I32), c([0], place="input"), keepdims=0),
    form("ReduceL2", 18, x(3, 4, 5, 6, dtype=F16), c([2], place="computed")),
    form("Squeeze", 13, x(1, 5, 1, 2), c([0, 2])),
    form("Unsqueeze", 13, x(5, 2, dtype=I32), c([1], place="input"), ranks=(3,)),
    form("TopK", 11, x(2, 5000), c([4000]), outputs=("used", "used")),
    form("TopK", 11, x(3, 900, dtype=F16), c([12]), outputs=("used", "unread"), largest=0),
    form(
        "Resize", 19, x(1, 3, 9, 11), None, c([1, 1, 2, 2], F32, "input"), mode="linear", ranks=(4,)
    ),
    form("Resize", 13, x(1, 3, 9, 11), None, None, c([1, 3, 18, 5]), mode="nearest"),
    form("Resize", 18, x(1, 2, 12, 10), None, None, c([1, 2, 6, 5]), mode="linear", antialias=1),
    form("ScatterND", 18, x(6, 4), c([[1], [3]]), x(2, 4), reduction="max"),
    form("ScatterND", 16, x(6, 4, dtype=F16), c([[1], [3]]), x(2, 4, dtype=F16)),
    form("ScatterElements", 18, x(3, 6), c([[0, 2, 4]]), x(1, 3), axis=1, reduction="add"),
    form("LSTM", 14, x(7, 2, 10), _weights(1, 24, 10), _weights(1, 24, 6), hidden_size=6),
    form(
        "LSTM",
        14,
        x(7, 2, 10, dtype=F16),
        _weights(1, 24, 10, dtype=F16),
        _weights(1, 24, 6, dtype=F16),
        None,
        c([7, 4], I32),
        hidden_size=6,
        outputs=("used", "used", "unread"),
    ),
    form(
        "GRU",
        22,
        x(4, 3, 6, dtype=BF16),
        _weights(1, 15, 6, dtype=BF16),
        _weights(1, 15, 5, dtype=BF16),
        hidden_size=5,
    ),
    form("Mod", 13, x(4, 6), _weights(6), fmod=1),
    form("Mod", 13, x(2, 3, 4, dtype=I32), c(3, I32)),
    form("Mish", 22, x(5, 8, dtype=BF16)),
    form("Celu", 12, x(2, 2, 6), alpha=1.5),
    form("Range", 11, c(0, place="input"), c(9, place="input"), c(2, place="input")),
    form("OneHot", 11, c([[0, 3]], place="input"), c(5), c([0, 1], F32)),
    form("OneHot", 11, c([1, 2], place="input"), c(5, F32, "input"), c([0, 1], F32), ranks=(2,)),
    form("Split", 18, x(6, 10), c([3, 7]), axis=1, outputs=("used", "unread")),
    form("CumSum", 14, x(4, 5), c(1, I32), reverse=1),
    form("Gelu", 20, x(3, 9, dtype=F16), approximate="tanh"),
    form("Einsum", 12, x(2, 3, 4), x(2, 4, 5), equation="bij,bjk->bik"),
    form("GridSample", 20, x(1, 2, 6, 6), x(1, 4, 4, 2), mode="cubic"),
    form("Unique", 11, x(9), outputs=("used", "", "", "used")),
    form("BitwiseAnd", 18, x(4, dtype=I32), x(4, dtype=I32)),
    form("STFT", 17, x(1, 64, 1), c(8), None, c(16)),
    form("TensorScatter", 24, x(2, 3, 8, 4, dtype=F16), x(2, 3, 2, 4, dtype=F16), c([0, 1])),
    form("MatMul", 13, x(6), x(6, 3)),
    form("Conv", 11, x(1, 4, 9), _weights(6, 2, 3), _weights(6), group=2, dilations=[2]),
)
