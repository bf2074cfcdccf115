"""Further rules for `tests.graphs`: normalisations, pooling, recurrence, functions, old opsets."""

from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st
from onnx import FunctionProto, helper

from tests.graphs import ALL, SHAPE, Rule, Sheet

EVERY_OPSET = tuple(range(7, 26))
"""From the first with broadcasting as it is now to the newest."""
_IMAGE, _PIXELS = (1, 2, 4), (1, 2, 2, 2)
_MICROSOFT = "com.microsoft"


def _shaped(s: Sheet, shape: Sequence[int]) -> str:
    return s.op("Reshape", [s.pick(), s.array(shape)])


def _back(s: Sheet, value: str) -> str:
    return s.op("Reshape", [value, s.array(SHAPE)])


def _unary(op_type: str, since: int = 7) -> Rule:
    return lambda s: s.op(op_type if s.opset >= since else "Abs", [s.pick()])


def _variadic(op_type: str) -> Rule:
    return lambda s: s.op(op_type, [s.pick(), s.weight(SHAPE), s.pick()])


def _softmax(op_type: str) -> Rule:
    return lambda s: s.op(op_type, [s.pick()], axis=int(s.draw(st.integers(0, 1))))


def _matmul(s: Sheet) -> str:
    return s.op("MatMul", [s.pick(), s.weight((4, 4))])


def _gemm(s: Sheet) -> str:
    return s.op("Gemm", [s.pick(), s.weight((4, 4)), s.weight((4,))], alpha=0.5)


def _pool(op_type: str) -> Rule:
    def add(s: Sheet) -> str:
        return _back(s, s.op(op_type, [_shaped(s, _IMAGE)], kernel_shape=[3], pads=[1, 1]))

    return add


def _global_pool(s: Sheet) -> str:
    mean = s.op("GlobalAveragePool", [_shaped(s, _IMAGE)])
    return s.op("Add", [s.pick(), s.op("Reshape", [mean, s.array([2, 1])])])


def _conv_transpose(s: Sheet) -> str:
    inputs = [_shaped(s, _IMAGE), s.weight((2, 2, 3)), s.weight((2,))]
    return _back(s, s.op("ConvTranspose", inputs, pads=[1, 1]))


def _batch_norm(s: Sheet) -> str:
    variance = s.array([0.5, 2.0], np.float32)
    inputs = [_shaped(s, _IMAGE), *(s.weight((2,)) for _ in range(3)), variance]
    return _back(s, s.op("BatchNormalization", inputs))


def _instance_norm(s: Sheet) -> str:
    inputs = [_shaped(s, _IMAGE), s.weight((2,)), s.weight((2,))]
    return _back(s, s.op("InstanceNormalization", inputs))


def _group_norm(s: Sheet) -> str:
    if s.opset < 21:
        return _instance_norm(s)
    inputs = [_shaped(s, _IMAGE), s.weight((2,)), s.weight((2,))]
    return _back(s, s.op("GroupNormalization", inputs, num_groups=2))


def _response_norm(s: Sheet) -> str:
    return _back(s, s.op("LRN", [_shaped(s, _PIXELS)], size=3))


def _lp_norm(s: Sheet) -> str:
    return s.op("LpNormalization", [s.pick()], axis=1, p=2)


def _recurrent(op_type: str, gates: int) -> Rule:
    def add(s: Sheet) -> str:
        weights = [s.weight((1, 4 * gates, 4)) for _ in range(2)]
        found = s.op(op_type, [_shaped(s, (2, 1, 4)), *weights], hidden_size=4)
        return _back(s, found)

    return add


def _prelu(s: Sheet) -> str:
    return s.op("PRelu", [s.pick(), s.weight((4,))])


def _einsum(s: Sheet) -> str:
    if s.opset < 12:
        return _matmul(s)
    return s.op("Einsum", [s.pick(), s.weight((4, 4))], equation="ij,jk->ik")


def _top_k(s: Sheet) -> str:
    if s.opset < 10:
        return s.ops("TopK", [s.pick()], 2, k=4, axis=1)[0]
    return s.ops("TopK", [s.pick(), s.array([4])], 2, axis=1)[0]


def _reduced(op_type: str) -> Rule:
    def add(s: Sheet) -> str:
        inputs, attributes = [s.pick()], {"axes": [1]}
        if s.opset >= 18:
            inputs, attributes = [*inputs, s.array([1])], {}
        return s.op("Sub", [s.pick(), s.op(op_type, inputs, keepdims=1, **attributes)])

    return add


def _linear_resize(s: Sheet) -> str:
    if s.opset < 11:
        return s.op("Tanh", [s.pick()])
    scales = s.array([1, 1, 2, 1], np.float32)
    roi = "" if s.opset >= 13 else s.array([], np.float32)
    larger = s.op("Resize", [_shaped(s, (1, 1, 2, 4)), roi, scales], mode="linear")
    return _back(s, s.op("AveragePool", [larger], kernel_shape=[2, 1], strides=[2, 1]))


def _logic(s: Sheet) -> str:
    if s.opset < 9:
        return s.op("Neg", [s.pick()])
    more, less = (s.op(o, [s.pick(), s.pick()]) for o in ("Greater", "Less"))
    both = s.op("And", [more, s.op("Not", [less])])
    return s.op("Where", [both, s.pick(), s.op("Cast", [both], to=1)])


def _cast_pad_slice(s: Sheet) -> str:
    """Copies in the forms before opset 10, where what is now an input was an attribute."""
    if s.opset >= 10:
        return s.op("Tile", [s.pick(), s.array([1, 1])])
    padded = s.op("Pad", [s.pick()], pads=[0, 1, 0, 0], value=0.1)
    return s.op("Slice", [s.op("Clip", [padded], min=-2.0)], axes=[1], starts=[0], ends=[4])


def _cast_like(s: Sheet) -> str:
    """Integers, some beyond FP16 and some beyond its 11 bits, in the type of a value."""
    if s.opset < 15:
        return s.op("Identity", [s.pick()])
    whole = s.array([[4001, 3], [70_001, -2049]])
    cast = s.op("CastLike", [s.op("Tile", [whole, s.array([1, 2])]), s.pick()])
    return s.op("Mul", [cast, s.array(2.0**-12, np.float32)])


def _function(s: Sheet) -> str:
    nodes = [
        helper.make_node("Mul", ["a", "b"], ["p"]),
        helper.make_node("Sub", ["p", "a"], ["r"]),
    ]
    imports = [helper.make_opsetid("", s.opset)]
    made: FunctionProto = helper.make_function("local", "MulSub", "ab", "r", nodes, imports)
    s.functions["local"] = made
    return s.op("MulSub", [s.pick(), s.weight(SHAPE)], domain="local")


def _fused(s: Sheet) -> str:
    kind = s.draw(st.integers(0, 3))
    if kind == 0:
        inputs = [s.pick(), s.weight((4, 4))]
        return s.op("FusedMatMul", inputs, domain=_MICROSOFT, transB=1, alpha=0.5)
    if kind == 1:
        inputs = [_shaped(s, (1, 2, 4)), _shaped(s, (1, 2, 4)), s.weight((4,)), s.weight((4,))]
        return _back(s, s.op("SkipLayerNormalization", inputs, domain=_MICROSOFT))
    return s.op(("Gelu", "QuickGelu")[kind - 2], [s.pick()], domain=_MICROSOFT)


_SINCE = {"Gelu": 20, "HardSwish": 14, "Mish": 18, "Celu": 12, "Round": 11, "Erf": 9, "Sign": 9}
OF_EVERY_OPSET: tuple[Rule, ...] = (
    *(_unary(op_type, since) for op_type, since in _SINCE.items()),
    *map(_unary, ("Relu", "Neg", "Identity", "LeakyRelu", "Elu", "Selu", "HardSigmoid", "Floor")),
    *map(_unary, ("Softplus", "Softsign", "Sin", "Sigmoid", "Tanh", "Reciprocal")),
    *map(_variadic, ("Max", "Min", "Mean", "Sum")),
    *map(_softmax, ("Softmax", "LogSoftmax", "Hardmax")),
    *map(_pool, ("MaxPool", "AveragePool", "LpPool")),
    *map(_reduced, ("ReduceL1", "ReduceL2", "ReduceLogSumExp", "ReduceSumSquare", "ReduceProd")),
    *(_recurrent("RNN", 1), _recurrent("GRU", 3), _recurrent("LSTM", 4)),
    *(_matmul, _gemm, _global_pool, _conv_transpose, _batch_norm, _instance_norm, _group_norm),
    *(_response_norm, _lp_norm, _prelu, _einsum, _top_k, _linear_resize, _logic),
    *(_cast_pad_slice, _cast_like, _function, _fused),
)


def rules_at(opset: int) -> tuple[Rule, ...]:
    """Return the rules that make valid nodes at an operator set version."""
    return OF_EVERY_OPSET if opset < 11 else (*ALL, *OF_EVERY_OPSET)
