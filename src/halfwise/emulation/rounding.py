"""The rounding that emulation inserts: a Cast pair, optionally with a smaller range."""

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from halfwise.formats import Format
from halfwise.graph.casts import low_type


@dataclass(frozen=True)
class Rounded:
    """Nodes that round one value, and their result.

    Attributes:
        nodes: In topological order.
        half: The value in the low type.
        wide: The rounded value in FP32.
    """

    nodes: tuple[ir.Node, ...]
    half: ir.Value
    wide: ir.Value


def typed_value(name: str, dtype: ir.DataType, shape: ir.Shape | None = None) -> ir.Value:
    """Return a new value of a tensor type."""
    return ir.val(name, dtype, shape)


def cast(value: ir.Value, dtype: ir.DataType, name: str) -> ir.Node:
    """Return a Cast of `value` whose output is called `name`."""
    return ir.node(
        "Cast", [value], {"to": int(dtype)}, name=name, outputs=[typed_value(name, dtype)]
    )


def round_value(value: ir.Value, fmt: Format, prefix: str) -> Rounded:
    """Return the Cast pair FP32 → low → FP32 on `value`; new names start with `prefix`.

    ONNX Runtime's optimiser leaves such a pair alone; a test keeps checking that.
    """
    down = cast(value, low_type(fmt), f"{prefix}::half")
    up = cast(down.outputs[0], ir.DataType.FLOAT, f"{prefix}::wide")
    return Rounded((down, up), down.outputs[0], up.outputs[0])


def limit_value(value: ir.Value, limit: float, prefix: str) -> tuple[tuple[ir.Node, ...], ir.Value]:
    """Return nodes that send |x| > `limit` to ±inf and leave other elements as they are.

    Used for headroom: a tensor that would overflow at h times its observed range is treated as
    having a range of max / h. Written as x + Relu(|x| - limit) · inf would give NaN at 0 · inf, so
    it is x / Cast(|x| ≤ limit): exact for kept elements, ±inf for others, NaN stays NaN.
    """
    bound = ir.node(
        "Constant",
        [],
        {"value": ir.tensor(np.array(limit, np.float32))},
        outputs=[typed_value(f"{prefix}::limit", ir.DataType.FLOAT)],
    )
    magnitude = ir.node("Abs", [value], outputs=[typed_value(f"{prefix}::abs", ir.DataType.FLOAT)])
    beyond = ir.node(
        "Greater",
        [magnitude.outputs[0], bound.outputs[0]],
        outputs=[typed_value(f"{prefix}::beyond", ir.DataType.BOOL)],
    )
    within = ir.node(
        "Not", [beyond.outputs[0]], outputs=[typed_value(f"{prefix}::within", ir.DataType.BOOL)]
    )
    factor = cast(within.outputs[0], ir.DataType.FLOAT, f"{prefix}::factor")
    limited = ir.node(
        "Div",
        [value, factor.outputs[0]],
        outputs=[typed_value(f"{prefix}::limited", ir.DataType.FLOAT)],
    )
    return (bound, magnitude, beyond, within, factor, limited), limited.outputs[0]
