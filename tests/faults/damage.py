"""Damage models at random, in ways that the protobuf format allows."""

from collections.abc import Callable
from random import Random

import onnx

_OPERATORS = (
    *("Relu", "Nope", "Cast", "Softmax", "Reshape", "If", "Loop", "LSTM", "Concat", "Pow", "Clip"),
    *("BatchNormalization", "Split", "Dropout", "Expand", ""),
)
_VERSIONS = (0, 1, 5, 9, 13, 26, 99, -3)


def damaged(proto: onnx.ModelProto, chance: Random) -> onnx.ModelProto:
    """Return a copy with one to four damages, which may leave it as it was."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    if copy.graph.node:
        for _ in range(chance.randint(1, 4)):
            chance.choice(_DAMAGES)(copy, chance.choice(copy.graph.node), chance)
    return copy


def _operands(_: onnx.ModelProto, node: onnx.NodeProto, chance: Random) -> None:
    if node.input and chance.random() < 0.5:
        del node.input[chance.randrange(len(node.input))]
    elif node.input:
        node.input[chance.randrange(len(node.input))] = ""


def _operator(_: onnx.ModelProto, node: onnx.NodeProto, chance: Random) -> None:
    node.op_type = chance.choice(_OPERATORS)


def _attributes(_: onnx.ModelProto, node: onnx.NodeProto, chance: Random) -> None:
    if node.attribute and chance.random() < 0.5:
        node.attribute[0].type = chance.randrange(15)
    else:
        del node.attribute[:]


def _outputs(_: onnx.ModelProto, node: onnx.NodeProto, chance: Random) -> None:
    if node.output and node.input and chance.random() < 0.5:
        node.input[0] = node.output[0]
    else:
        del node.output[:]


def _copies(proto: onnx.ModelProto, node: onnx.NodeProto, _: Random) -> None:
    proto.graph.node.add().CopyFrom(node)


def _opset(proto: onnx.ModelProto, _: onnx.NodeProto, chance: Random) -> None:
    if proto.opset_import and chance.random() < 0.5:
        proto.opset_import[0].version = chance.choice(_VERSIONS)
    else:
        del proto.opset_import[:]


def _constant(proto: onnx.ModelProto, _: onnx.NodeProto, chance: Random) -> None:
    for tensor in proto.graph.initializer[:1]:
        kind = chance.randrange(3)
        if kind == 0:
            tensor.raw_data = b"xyz"
        elif kind == 1:
            tensor.dims[:] = [chance.choice([0, -1, 7, 2**40])]
        else:
            tensor.data_type = chance.randrange(40)


def _inputs(proto: onnx.ModelProto, _: onnx.NodeProto, chance: Random) -> None:
    kind = chance.randrange(3)
    if kind == 0:
        del proto.graph.input[:]
    for info in proto.graph.input[:1]:
        if kind == 1:
            info.ClearField("type")
        else:
            info.type.tensor_type.elem_type = chance.randrange(30)


_DAMAGES: tuple[Callable[[onnx.ModelProto, onnx.NodeProto, Random], None], ...] = (
    *(_operands, _operator, _attributes, _outputs, _copies, _opset, _constant, _inputs),
)
