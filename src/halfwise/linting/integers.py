"""Integers that 32 bits, or an FP16 number, cannot hold."""

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from halfwise.graph.model import graphs_of
from halfwise.graph.patterns.reading import behind, is_constant, readers
from halfwise.graph.unchecked import numbers
from halfwise.linting.rule import Found, Subject, name_of, rule
from halfwise.tensorrt.versions import has, since

_HALF = "https://en.wikipedia.org/wiki/Half-precision_floating-point_format#Precision_limitations"
_INT32 = np.iinfo(np.int32)
_OPEN_ENDED = {"Slice": (1, 2)}
"""Operands in which a huge number means "to the end": the parser clamps it, and so it stays."""
_INDICES = {
    **dict.fromkeys(["Gather", "GatherElements", "GatherND", "Scatter", "ScatterElements"], (1,)),
    **dict.fromkeys(["ScatterND", "Reshape", "Expand", "Tile", "TopK", "Pad", "Unsqueeze"], (1,)),
    **dict.fromkeys(["ConstantOfShape", "OneHot"], (0,)),
    "Range": (0, 1, 2),
    "Resize": (3,),
    "Slice": (1, 2, 3, 4),
}
"""Operands that are indices or sizes, by ONNX's operator reference."""
_ARITHMETIC = ("Add", "Sub", "Mul", "Div", "Mod", "Clip", "Min", "Max", "Concat", "Gather", "Where")
_LONGEST_PATH = 6
"""Nodes between a Cast and what takes indices; exporters write at most Clip, Mul, Add, Concat."""


@rule("int64-beyond-int32", "warning", "https://github.com/microsoft/onnxruntime/issues/3821")
def wide_integers(subject: Subject) -> Iterator[Found]:
    """TensorRT before version 10 casts INT64 to INT32 and clamps what does not fit.

    Left out are ends of Slices, where a huge number means "to the end".
    """
    severity = "info" if has("int64", subject.tensorrt) else "warning"
    for graph in graphs_of(subject.network.model):
        for value in graph.initializers.values():
            constant = numbers(value) if value.dtype == ir.DataType.INT64 else None
            if constant is None or not constant.size:
                continue
            array = constant.astype(np.int64)
            beyond = int(np.count_nonzero((array < _INT32.min) | (array > _INT32.max)))
            uses = [u for u in readers(value) if u[1] not in _OPEN_ENDED.get(u[0].op_type, ())]
            if beyond and uses:
                extreme = max(int(array.max()), int(array.min()), key=abs)
                yield Found(
                    f"{beyond} of the {array.size} values of {name_of(value)} "
                    f"{'is' if beyond == 1 else 'are'} beyond 32 bits, such as {extreme}",
                    "Export it as INT32 with values that fit, or build with TensorRT "
                    f"{since('int64')} or later.",
                    uses[0][0],
                    name_of(value),
                    "info" if severity == "info" else "warning",
                )


@rule("float-index", "warning", _HALF)
def float_indices(subject: Subject) -> Iterator[Found]:
    """Indices and sizes computed in floating point: FP16 holds every integer up to 2048 only."""
    for node in subject.nodes():
        source = node.inputs[0] if node.op_type == "Cast" and node.inputs else None
        if source is None or not _is_floating(source) or is_constant(source):
            continue
        root = behind(source).value
        output = node.outputs[0]
        if output.dtype is None or not output.dtype.is_integer() or not _is_floating(root):
            continue
        if reader := _index_reader(output):
            yield Found(
                f"{name_of(root)}, a {root.dtype}, becomes an index or size of {reader.op_type} "
                f"{reader.name}: in FP16 it is wrong beyond 2048",
                "Compute it in integers, or keep what computes it in FP32.",
                node,
                name_of(root),
            )


def _index_reader(value: ir.Value) -> ir.Node | None:
    paths = [(value, 0)]
    seen = {value}
    for current, steps in paths:
        for node, slot, _ in readers(current):
            if slot in _INDICES.get(node.op_type, ()):
                return node
            output = node.outputs[0] if node.outputs else None
            if output is None or output in seen or steps >= _LONGEST_PATH:
                continue
            if node.op_type in _ARITHMETIC and not _is_floating(output):
                seen.add(output)
                paths.append((output, steps + 1))
    return None


def _is_floating(value: ir.Value) -> bool:
    return value.dtype is not None and value.dtype.is_floating_point()
