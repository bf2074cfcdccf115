import numpy as np
import pytest

from halfwise.formats import BF16, FP16
from tests.unit.fixing.attribute.observing import guards, only
from tests.unit.graph.sketch import Sketch, f32

X = {"x": f32(np.linspace(1.1, 1.9, 16)).reshape(1, 16)}


def stream(layers: int, size: float, *, first: int = 0) -> tuple[Sketch, str]:
    """Layers that each add about `size` to a stream between 1 and 2; the first ones add 0.1."""
    s = Sketch()
    value = s.input("x", [1, 16])
    for i in range(layers):
        gate = s.op("Sigmoid", value, name=f"gate_{i}")
        scale = 0.1 if i < first else 1.25 * size
        value = s.op("Add", value, s.op("Mul", gate, scale, name=f"scale_{i}"), name=f"add_{i}")
    return s, value


def kinds(found) -> set[str]:
    return {g.kind for g in found}


def test_a_chain_that_loses_its_branches_is_one_suspicion() -> None:
    guard = only(guards(*stream(12, 0.0025), X, fmt=BF16), "residual")
    assert guard.nodes == tuple(f"add_{i}" for i in range(12))
    assert guard.node == "add_0"
    assert 0 < guard.severity < 1
    assert "12 sums" in guard.message
    assert "BF16" in guard.message


@pytest.mark.parametrize(("layers", "named"), [(3, False), (12, True)])
def test_few_lost_branches_do_not_break_the_tolerance(layers, named) -> None:
    assert ("residual" in kinds(guards(*stream(layers, 0.0025), X, fmt=BF16))) is named


@pytest.mark.parametrize(
    ("size", "fmt", "named"),
    [
        (0.0025, FP16, False),
        (0.0003, FP16, True),
        (0.02, BF16, False),
        (0.0025, BF16, True),
    ],
)
def test_the_spacing_of_the_format_decides(size, fmt, named) -> None:
    assert ("residual" in kinds(guards(*stream(60, size), X, fmt=fmt))) is named


def test_the_nodes_begin_where_branches_begin_to_be_lost() -> None:
    guard = only(guards(*stream(14, 0.0025, first=2), X, fmt=BF16), "residual")
    assert guard.node == "add_2"
    assert "add_1" not in guard.nodes


def test_a_stream_goes_on_through_data_movement() -> None:
    s, value = stream(6, 0.0025)
    moved = s.op("Transpose", value, perm=[1, 0], name="moved")
    for i in range(6, 12):
        gate = s.op("Sigmoid", moved, name=f"gate_{i}")
        moved = s.op("Add", s.op("Mul", gate, 0.003, name=f"s_{i}"), moved, name=f"add_{i}")
    assert len(only(guards(s, moved, X, fmt=BF16), "residual").nodes) == 12


def test_what_is_not_computed_from_the_stream_is_no_branch() -> None:
    """A score that a mask outweighs is meant to be lost."""
    s = Sketch()
    value, mask = s.input("x", [1, 16]), s.input("mask", [1, 16])
    for i in range(12):
        value = s.op("Add", s.op("Mul", value, 1.0, name=f"score_{i}"), mask, name=f"add_{i}")
    found = guards(s, value, {**X, "mask": f32(np.full((1, 16), -1e4))}, fmt=BF16)
    assert "residual" not in kinds(found)


def test_nothing_is_told_without_statistics() -> None:
    assert "residual" not in kinds(guards(*stream(12, 0.0025), X, fmt=BF16, details=False))
