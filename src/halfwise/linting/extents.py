"""How large and how small the numbers of a constant are, against FP16."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from halfwise.formats import FP16
from halfwise.graph.model import Network, constant_array, graphs_of
from halfwise.graph.weights import pieces

_WIDE = frozenset((ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.BFLOAT16))
"""Types that hold numbers which FP16 does not."""


@dataclass(frozen=True)
class Extent:
    """The numbers of one constant.

    Attributes:
        elements: How many there are.
        least: The least one, -inf included; NaN left out. 0 without elements.
        largest: The largest finite magnitude.
        beyond: Finite ones beyond FP16's 65504.
        nonzero: Those that are not zero.
        subnormal: Non-zero ones below FP16's smallest normal number, 6.1e-5.
        zeroed: Non-zero ones that FP16 rounds to zero.
    """

    elements: int = 0
    least: float = 0.0
    largest: float = 0.0
    beyond: int = 0
    nonzero: int = 0
    subnormal: int = 0
    zeroed: int = 0


def extents(network: Network) -> Mapping[ir.Value, Extent]:
    """Return the extent of every constant in FP32, FP64 or BF16, those of bodies included."""
    return {
        value: _extent(value)
        for graph in graphs_of(network.model)
        for value in graph.initializers.values()
        if value.const_value is not None and value.const_value.dtype in _WIDE
    }


def _extent(value: ir.Value) -> Extent:
    elements = beyond = nonzero = subnormal = zeroed = 0
    least = largest = 0.0
    for piece in pieces(constant_array(value)):
        # FP64 stays: as FP32, 1e300 would be infinite.
        wide = piece if piece.dtype == np.float64 else piece.astype(np.float32)
        size = np.abs(wide)
        finite = size[np.isfinite(size)]
        elements += int(size.size)
        least = min(least, float(np.fmin.reduce(wide, initial=0.0)))
        largest = max(largest, float(finite.max(initial=0.0)))
        beyond += int(np.count_nonzero(finite > FP16.max))
        some = finite[finite > 0]
        nonzero += int(some.size)
        subnormal += int(np.count_nonzero(some < FP16.smallest_normal))
        zeroed += int(np.count_nonzero(some <= FP16.flush_threshold))
    return Extent(elements, least, largest, beyond, nonzero, subnormal, zeroed)
