import numpy as np
import pytest

from halfwise.emulation.ort import Session
from halfwise.graph.bodies import bodies_in
from halfwise.graph.body_runs import count_runs, seen_in_body, tell_shapes
from tests.unit.graph.sketch import f32
from tests.unit.graph.test_bodies import ELSE, INNER, LOOP, SCAN, THEN, nested


def given(outside, trips, inside):
    return {
        "x": np.abs(f32(np.arange(6).reshape(2, 3))),
        "trips": np.array(trips),
        "outside": np.array(outside),
        "inside": np.array(inside),
    }


@pytest.mark.parametrize("opset", [11, 17, 21])
@pytest.mark.parametrize(
    ("outside", "trips", "inside", "ran"),
    [
        (True, 3, True, {THEN: 1, LOOP: 3, INNER[0]: 3}),
        (True, 2, False, {THEN: 1, LOOP: 2, INNER[1]: 2}),
        (True, 0, True, {THEN: 1}),
        (False, 3, True, {ELSE: 1, SCAN: 2}),
    ],
)
def test_every_body_counts_its_runs_and_changes_nothing(opset, outside, trips, inside, ran):
    network = nested(opset)
    bodies = bodies_in(network.graph)
    assert all(body.computes(low=False) and not body.computes(low=True) for body in bodies.values())
    assert set(bodies) == {THEN, ELSE, LOOP, SCAN, *INNER}
    assert bodies[INNER[0]].around == (THEN, LOOP)
    sample = given(outside, trips, inside)
    counting = network.copy()
    names = count_runs(counting, list(bodies))
    session = Session(counting)
    found = session.run(sample)
    assert {key: found[n] for key, n in zip(bodies, names, strict=True) if found[n]} == ran
    plain = Session(network.model).run(sample)
    for name, array in plain.items():
        assert np.array_equal(found[name], array, equal_nan=True)


@pytest.mark.parametrize("opset", [11, 17, 21])
@pytest.mark.parametrize(
    ("outside", "trips", "ran"),
    [
        (True, 3, {THEN: 1, LOOP: 3, INNER[0]: 3}),
        (True, 0, {THEN: 1}),
        (False, 3, {ELSE: 1, SCAN: 2}),
    ],
)
def test_bodies_tell_the_shapes_of_what_is_in_them(opset, outside, trips, ran):
    model = nested(opset).copy()
    asked = tell_shapes(model)
    assert set(asked) == {THEN, ELSE, LOOP, SCAN, *INNER}
    found = Session(model).run(given(outside, trips, True))
    seen = {key: seen_in_body(found[name], tensors) for key, (name, tensors) in asked.items()}
    assert {key: runs for key, (runs, _) in seen.items() if runs} == ran
    assert all(not shapes for runs, shapes in seen.values() if not runs)
    if LOOP in ran:
        assert seen[LOOP][1] == {"state": (2, 3), "inner_out": (2, 3)}
        assert seen[INNER[0]][1] == {"inner_then_y": (2, 3)}
    if SCAN in ran:
        assert seen[SCAN][1] == {"row": (3,), "root": (3,), "seen": (3,)}
