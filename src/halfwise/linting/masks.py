"""Attention masks whose constants are so large that a score pushes them over the edge."""

from collections.abc import Iterator

import onnx_ir as ir

from halfwise.formats import FP16
from halfwise.graph.patterns.reading import readers
from halfwise.linting.extents import Extent
from halfwise.linting.rule import Found, Subject, name_of, rule

_EDGE = -FP16.max / 4
"""Below it a few masks and scores that add up leave the range; -1e4, the usual choice for FP16
(huggingface/transformers PR 17306), stays above."""
_PATH = frozenset(("Add", "Sub", "Mul", "Div", "Max", "Min", "Clip", "Neg", "Sum", "Where"))
"""Operators between a mask constant and its Softmax."""
_LONGEST_PATH = 8
"""Nodes between a mask constant and its Softmax; exporters write at most Sub, Mul, Add, Clip."""
_FIX = "Mask with -1e4 instead: its exponential is zero as well."


@rule("mask-constant", "warning", "https://github.com/huggingface/transformers/pull/17306")
def masks(subject: Subject) -> Iterator[Found]:
    """A mask of -65504 or beyond plus a score is -inf in FP16; a row of them is NaN after Softmax.

    A mask of -inf gives NaN in such a row whatever the precision.
    """
    for value, extent in subject.extents.items():
        path = mask_readers(value, extent)
        if not path:
            continue
        end = path[-1]
        if extent.least == -float("inf"):
            yield Found(
                f"the mask {name_of(value)} holds -inf before {end.op_type}: a row masked as a "
                "whole is NaN in any precision",
                _FIX,
                path[0],
                name_of(value),
                "info",
            )
        else:
            stored = "-inf or -65504" if extent.least < -FP16.max else f"{extent.least:.6g}"
            yield Found(
                f"the mask {name_of(value)} = {extent.least:.3g} is {stored} in FP16, and "
                f"-inf with a score added before {end.op_type}",
                _FIX,
                path[0],
                name_of(value),
            )


def mask_readers(value: ir.Value, extent: Extent) -> tuple[ir.Node, ...]:
    """Return the nodes from a constant that masks to the Softmax behind it; none for others."""
    if extent.least > _EDGE:
        return ()
    paths: list[tuple[ir.Value, tuple[ir.Node, ...]]] = [(value, ())]
    seen = {value}
    for current, path in paths:
        for node, _, _ in readers(current):
            if node.op_type in ("Softmax", "LogSoftmax"):
                return (*path, node)
            output = node.outputs[0] if node.outputs else None
            if output is None or output in seen or len(path) >= _LONGEST_PATH:
                continue
            if node.op_type in _PATH:
                seen.add(output)
                paths.append((output, (*path, node)))
    return ()
