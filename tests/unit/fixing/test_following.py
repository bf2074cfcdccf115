"""Where the error comes from that guards do not explain."""

from itertools import pairwise
from math import inf

import numpy as np
import pytest
from onnx import helper

from halfwise.emulation.runner import seen_shapes
from halfwise.emulation.typed import emulate_typed
from halfwise.fixing import following
from halfwise.fixing.following import computed, growth
from halfwise.formats import FP16
from halfwise.graph.casts import rewrite
from halfwise.records import Growth, NodeName, replace
from tests import models
from tests.control import BOOL, MATRIX, graph
from tests.unit.casing import names, prepare
from tests.unit.fixing.running import Clock, found
from tests.unit.graph.sketch import Sketch, f32

pytestmark = pytest.mark.usefixtures("unrepaired")


def test_the_error_is_followed_where_guards_do_not_explain():
    fixed = found(models.deep(), rel_max=5e-4)
    assert [step.node for step in fixed.growth] == [f"rotate_{i}" for i in range(10)]
    assert fixed.followed is not None
    assert fixed.followed.kept == ()
    assert fixed.followed.accumulates


def test_without_time_the_error_is_not_followed(monkeypatch):
    fixed = found(models.deep(), Clock(monkeypatch, "growth"), rel_max=5e-4)
    assert not fixed.search.exhausted
    assert (fixed.growth, fixed.followed) == ((), None)
    assert fixed.space.budget.cut == ["growth", "curve"]


def followed(ill, kept=frozenset()):
    prepared = prepare(ill)
    low = emulate_typed(rewrite(prepared.network, prepared.roles, kept, FP16).model)
    network, sample = prepared.network, ill.sample(0)
    shapes = seen_shapes(network, sample)
    return growth(network, low, computed(network, prepared.roles), sample, shapes)


def test_errors_are_those_of_numpy():
    ill = models.deep(layers=3)
    path = followed(ill)
    assert [step.node for step in path] == ["rotate_0", "rotate_1", "rotate_2"]
    weights = [np.asarray(t.raw_data) for t in ill.proto.graph.initializer]
    assert len(weights) == 3
    exact = low = ill.sample(0)["x"]
    low = FP16.round(low)
    for step, tensor in zip(path, ill.proto.graph.initializer, strict=True):
        weight = np.frombuffer(tensor.raw_data, np.float32).reshape(16, 16)
        exact, low = exact @ weight, FP16.round(low @ FP16.round(weight))
        difference = (low - exact).astype(np.float64)
        expected = np.sqrt(np.square(difference).mean() / np.square(exact).mean())
        assert step.error == pytest.approx(expected, rel=0.05)


def test_what_a_node_inherits_is_the_error_of_its_inputs():
    path = followed(models.deep(layers=4))
    assert path[0].inherited == 0
    for before, after in pairwise(path):
        assert after.inherited == before.error


def test_moving_nodes_hand_errors_on_and_have_no_step():
    sketch = Sketch()
    x = sketch.input("x", [1, 16])
    scaled = sketch.op("Mul", x, f32(1 / 3), name="scale")
    moved = sketch.op("Transpose", scaled, name="turn", perm=[1, 0])
    y = sketch.op("Abs", moved, name="abs")
    path = followed(models.Ill(sketch.proto(y), {"x": models.signals(1, 16, seed=1)}))
    assert [step.node for step in path] == ["scale", "abs"]
    assert path[1].inherited == path[0].error > 0


def test_an_overflow_is_an_infinite_error_that_others_inherit():
    path = {step.node: step for step in followed(models.layer_norm())}
    assert path["square"].error == np.inf
    assert path["variance"].inherited == np.inf
    assert path["centre"].error < 1e-2


def test_kept_nodes_add_no_error():
    ill = models.layer_norm()
    path = {step.node: step for step in followed(ill, names(*ill.kept))}
    assert path["square"].error < 1e-2


def test_nothing_low_no_error():
    ill = models.deep(layers=3)
    path = followed(ill, names("rotate_0", "rotate_1", "rotate_2"))
    assert [step.error for step in path] == [0, 0, 0]


def test_shapes_that_depend_on_values_may_differ():
    """1.0001 is above 1 in FP32 and not in FP16, so one element fewer is picked."""
    sketch = Sketch()
    x = sketch.input("x", [4])
    above = sketch.op("Greater", x, f32(1.0), name="above")
    picked = sketch.op("Compress", x, above, name="pick")
    y = sketch.op("Mul", picked, f32(2.0), name="double")
    ill = models.Ill(sketch.proto(y), {"x": f32([[1.0001, 2.0, 3.0, 0.5]] * 2)})
    (step,) = [s for s in followed(ill) if s.node == "double"]
    assert step.error == np.inf


def test_infinities_of_the_reference_are_no_error():
    sketch = Sketch()
    x = sketch.input("x", [4])
    log = sketch.op("Log", sketch.op("Relu", x, name="relu"), name="log")
    y = sketch.op("Exp", log, name="exp")
    ill = models.Ill(sketch.proto(y), {"x": f32([[1.5, 2.0, -3.0, 0.5]] * 2)})
    path = {step.node: step for step in followed(ill)}
    assert path["log"].error < 1e-3
    assert path["exp"].error < 1e-2


def test_a_signal_of_zero_that_stays_zero_has_no_error():
    sketch = Sketch()
    x = sketch.input("x", [4])
    y = sketch.op(
        "Add", sketch.op("Mul", x, f32(0.0), name="nothing"), f32([1e-9] * 4), name="tiny"
    )
    ill = models.Ill(sketch.proto(y), {"x": f32([[1.0, 2.0, 3.0, 4.0]] * 2)})
    path = {step.node: step for step in followed(ill)}
    assert path["nothing"].error == 0
    assert path["tiny"].error == 1


def test_any_number_of_tensors_at_a_time(monkeypatch):
    ill = models.deep(layers=5)
    whole = followed(ill)
    monkeypatch.setattr(following, "ELEMENTS", 100)
    assert followed(ill) == whole


def test_behind_a_node_that_fails_the_error_is_infinite():
    errors = {step.node: step.error for step in followed(models.detector())}
    assert errors["scores"] == 1
    assert errors["head"] == inf
    kept = names("square", "energy", "norm")
    assert max(step.error for step in followed(models.detector(), kept)) < 0.01


def test_what_a_body_reads_from_outside_is_inherited():
    s = Sketch()
    scaled = s.op("Mul", s.input("x", [2, 4]), f32(1 / 3), name="scale")
    branches = {}
    for name in ("then_branch", "else_branch"):
        inner = helper.make_node("Abs", [scaled], [f"{name}_y"])
        branches[name] = graph(name, [inner], (), [(f"{name}_y", MATRIX)])
    flag = s.input("flag", [], BOOL)
    s.nodes.append(helper.make_node("If", [flag], ["chosen"], "choose", **branches))
    data = {"x": models.signals(2, 4, seed=1), "flag": np.full(models.COUNT, True)}
    path = followed(models.Ill(s.proto("chosen"), data))
    assert [step.node for step in path] == ["scale", "choose"]
    assert path[1].inherited == path[0].error > 0


@pytest.mark.parametrize(("at", "error", "expected"), [(3, 4, True), (3, 5, False), (0, 9, True)])
def test_one_step_that_multiplies_an_error_is_no_accumulation(at, error, expected):
    """Roundings at most triple what is read; the last step here has far more anyway."""
    unit, errors = 1e-3, [1, 1, 1.2, 1.4, 1.5, 90]
    path = [
        Growth(node=NodeName(str(i)), error=unit * e, inherited=unit * e / 1.5 if i else 0)
        for i, e in enumerate(errors)
    ]
    inherited = unit if at else 0
    path[at] = replace(path[at], error=unit * error, inherited=inherited)
    assert following.accumulates(path) is expected
