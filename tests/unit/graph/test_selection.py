"""Whose extremes are those of constants."""

import math

import pytest
from onnx import TensorProto

from halfwise.graph.roles import roles_of
from halfwise.graph.selection import selects_constants
from halfwise.records import Detail, Histogram, Observation, TensorName
from tests.unit.graph.sketch import Sketch
from tests.unit.reporting.runs import observation

LIMIT = 32_760.0


def holds(sketch: Sketch, tensor: str, *, smallest: float = 1.0, **absmax: float) -> bool:
    """Return the answer for a tensor; every tensor observed has that smallest non-zero element."""
    network = sketch.network(tensor)
    detail = Detail(
        smallest_nonzero=smallest,
        overflow=0,
        flush=0,
        subnormal=0,
        histogram=Histogram(first=0, counts=(1,), zeros=1),
        samples=1,
    )
    seen: dict[TensorName, Observation] = {
        TensorName(name): observation(name, None, reach).model_copy(update={"detail": detail})
        for name, reach in absmax.items()
    }
    (value,) = (v for n in network.nodes() for v in n.outputs if v.name == tensor)
    return selects_constants(value, roles_of(network), seen, LIMIT)


@pytest.mark.parametrize(("reach", "fixed"), [(100, True), (40_000, False)])
def test_where_and_movement_select(reach, fixed) -> None:
    s = Sketch()
    allowed, x = s.input("allowed", [4], TensorProto.BOOL), s.input("x", [4])
    y = s.op("Reshape", s.op("Where", allowed, x, -60_000.0, name="fill"), [2, 2], name="move")
    assert holds(s, y, x=reach, fill_out=60_000, move_out=60_000) is fixed


@pytest.mark.parametrize(
    ("mask", "smallest", "fixed"),
    [(1, 1, True), (1, 0.5, False), (2, 1, False), (0, math.inf, False)],
)
def test_a_product_selects_where_a_factor_is_zero_or_one(mask, smallest, fixed) -> None:
    s = Sketch()
    hidden = s.op("Sub", 1.0, s.input("mask", [4]), name="hidden")
    y = s.op("Mul", hidden, -65_504.0, name="fill")
    assert holds(s, y, smallest=smallest, hidden_out=mask, fill_out=65_504) is fixed


def test_sums_and_masked_data_grow() -> None:
    s = Sketch()
    x = s.input("x", [4])
    fill = s.op("Mul", s.input("mask", [4]), s.op("Mul", x, 3.0, name="a"), name="fill")
    y = s.op("Add", fill, -60_000.0, name="add")
    seen = {"mask": 1.0, "a_out": 50_000.0, "fill_out": 50_000.0, "add_out": 60_100.0}
    assert not holds(s, fill, **seen)
    assert not holds(s, y, **seen)


def test_without_observations_nothing_is_a_mask() -> None:
    s = Sketch()
    assert not holds(s, s.op("Mul", s.input("mask", [4]), -65_504.0, name="fill"))
