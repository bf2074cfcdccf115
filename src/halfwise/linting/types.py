"""Types that TensorRT lacks, and Casts that lose information."""

from collections.abc import Iterator

import onnx_ir as ir

from halfwise.linting.rule import Found, Subject, name_of, rule

_BITS = {
    ir.DataType.DOUBLE: 53,
    ir.DataType.FLOAT: 24,
    ir.DataType.FLOAT16: 11,
    ir.DataType.BFLOAT16: 8,
    ir.DataType.INT64: 63,
    ir.DataType.UINT64: 64,
    ir.DataType.INT32: 31,
    ir.DataType.UINT32: 32,
    ir.DataType.INT16: 15,
    ir.DataType.UINT16: 16,
    ir.DataType.INT8: 7,
    ir.DataType.UINT8: 8,
}
"""Bits of precision of a type, without the sign."""


@rule("cast-loses", "warning", "https://onnx.ai/onnx/operators/onnx__Cast.html")
def casts(subject: Subject) -> Iterator[Found]:
    """A Cast to fewer bits and back loses the difference, whatever precision is chosen.

    Casts of floats to integers and back do not count: they truncate on purpose.
    """
    for node in subject.nodes():
        before = _source(node)
        first = None if before is None else before.producer()
        start = None if first is None else _source(first)
        if before is None or start is None or not node.outputs:
            continue
        types = (start.dtype, before.dtype, node.outputs[0].dtype)
        if _loses(*types):
            integers = start.dtype is not None and start.dtype.is_integer()
            bits = _BITS[before.dtype] if before.dtype else 0
            yield Found(
                f"{name_of(start)} goes from {types[0]} to {types[1]} and then to {types[2]}: "
                f"{bits} bits are left",
                "Cast it directly to the last type.",
                node,
                name_of(start),
                # FP32 holds all integers up to 16.7 million.
                "info" if integers and before.dtype == ir.DataType.FLOAT else None,
            )


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


def _source(node: ir.Node) -> ir.Value | None:
    return node.inputs[0] if node.op_type == "Cast" and node.inputs else None


def _loses(start: ir.DataType | None, middle: ir.DataType | None, end: ir.DataType | None) -> bool:
    if start not in _BITS or middle not in _BITS or end not in _BITS:
        return False
    assert start is not None
    assert middle is not None
    assert end is not None
    if not middle.is_floating_point():
        return False
    return _BITS[middle] < min(_BITS[start], _BITS[end])
