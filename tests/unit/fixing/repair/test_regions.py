import time
from collections import Counter

import numpy as np
import pytest

from halfwise.fixing.repair import scale as exponent_regions
from halfwise.fixing.repair.exponents import ALONE, BIT, MUL, ROOM, Loss, multiplied
from halfwise.fixing.repair.scale import SIZES, assigned, pieces
from halfwise.graph.scaling import completed, relations
from halfwise.records import TensorName
from tests.unit.fixing.repair.test_exponents import chain
from tests.unit.graph.sketch import Sketch, f32

LIMITS = {TensorName(f"mm{i}_out"): Loss(-3) for i in (0, 30)}


def test_problems_far_from_each_other_are_solved_apart_and_add_up():
    constraints = chain(*[1.0] * 60)
    exponents = assigned(constraints, LIMITS, LIMITS)
    tensors = {str(n): e for n, e in exponents.items() if n in constraints.tensors}
    assert tensors == dict.fromkeys(("mm0_out", "relu0_out", "mm30_out", "relu30_out"), -3 - ROOM)
    one, other = pieces(constraints, exponents.keys())
    assert one | other == exponents.keys()
    absorbed = {relation.absorber for relation in constraints.equations}
    chosen = {n: e for n, e in exponents.items() if n not in absorbed}
    full = completed(constraints, chosen | {n: exponents.get(n, 0) for n in constraints.edges})
    assert {n: e for n, e in full.items() if e} == exponents


def test_a_larger_part_is_taken_where_a_small_one_needs_a_mul():
    s = Sketch()
    start = s.op("MatMul", s.input("x", [1, 2]), f32(np.eye(2)), name="first")
    value = start
    for i in range(SIZES[0][0] // 4):
        value = s.op("Max", value, start, name=f"max{i}")
    constraints = relations(s.network(s.op("MatMul", value, f32(np.eye(2)), name="last")).model)
    middle = TensorName("max9_out")
    exponents = assigned(constraints, [middle], {middle: Loss(-2)})
    assert exponents["first_out"] == exponents["max24_out"] == -2 - ROOM  # type: ignore[index]
    assert all(
        exponents[n] == exponents[e.tensor] for n, e in constraints.edges.items() if n in exponents
    )


def test_muls_stand_where_no_weights_are():
    s = Sketch()
    x = s.input("x", [1, 2])
    constraints = relations(
        s.network(s.op("Add", s.op("Neg", x, name="less"), x, name="sum")).model
    )
    total = TensorName("sum_out")
    exponents = assigned(constraints, [total], {total: Loss(-1)})
    assert exponents["sum_out"] == exponents["x@sum:1"] == -1 - ROOM  # type: ignore[index]


@pytest.mark.parametrize(("mul", "muls"), [(MUL, 1), (ALONE, 0)])
def test_where_nothing_may_stay_in_fp32_lost_bits_buy_no_muls(mul, muls):
    s = Sketch()
    x = s.input("x", [1, 2])
    large, small = (s.op("MatMul", x, f32(np.eye(2)), name=name) for name in ("large", "small"))
    total = s.op("Add", large, small, name="sum")
    constraints = relations(s.network(s.op("MatMul", total, f32(np.eye(2)), name="last")).model)
    losses = {TensorName(large): Loss(-8), TensorName(small): Loss(lines=((0.0, 0.2),))}
    exponents = assigned(constraints, list(losses), losses, mul=mul)
    assert exponents[TensorName(large)] <= -8
    assert len(multiplied(constraints, exponents)) == muls


@pytest.mark.parametrize(
    ("loss", "least", "most"),
    [
        # One in a hundred elements, which no exponent brings into range, does not use up the room;
        # half of them take all of it.
        (Loss(6, ((0.01 * BIT * 40, 0.01 * BIT),)), 0, 5),
        (Loss(6, ((0.5 * BIT * 40, 0.5 * BIT),)), 6, 6),
        # Nothing is lost anywhere from -20 to 6: room on both sides.
        (Loss(-4, ((-BIT * 20, BIT),)), -14, -10),
    ],
)
def test_what_is_scaled_keeps_room_on_both_sides(loss, least, most):
    name = TensorName("mm0_out")
    exponents = assigned(chain(1.0, 1.0), [name], {name: loss})
    assert least <= exponents[name] <= most


def test_without_work_nothing_is_assigned():
    constraints = chain(*[1.0] * 60)
    assert assigned(constraints, LIMITS, LIMITS, 0) == {}


def test_problems_share_one_search_of_what_lies_around_them():
    constraints = chain(*[1.0] * 60)
    near = exponent_regions._near(constraints)
    visits = Counter[TensorName]()

    class Seen(dict[TensorName, list[TensorName]]):
        def get(self, name, default=()):
            visits[name] += 1
            return super().get(name, default)

    names = exponent_regions.around(constraints, Seen(near), list(constraints.tensors), 100)
    assert names > {*constraints.tensors} - constraints.fixed
    assert max(visits.values()) == 1


def test_the_time_changes_nothing(monkeypatch):
    constraints = chain(*[1.0] * 60)
    expected = assigned(constraints, LIMITS, LIMITS)
    clock = iter(range(0, 10**9, 10**5))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    assert assigned(constraints, LIMITS, LIMITS) == expected
