import numpy as np
import pytest

from halfwise.records import TensorName
from halfwise.tools.compare import walk as stage
from halfwise.tools.compare.walk import Walk, comparable
from tests.unit.graph.sketch import Sketch, f32
from tests.unit.tools.compare.copies import SAMPLES, network, side, walked


def test_every_tensor_is_measured_and_equal_to_itself():
    walk = walked(side(network().model))
    assert walk.line == list(comparable(walk.network))
    assert all(found.error is not None and found.error.value == 0 for found in walk.found.values())
    assert all(found.born["b"].value == 0 for found in walk.found.values())


def test_an_error_is_born_where_the_node_is_another():
    walk = walked(side(network(b=1.01).model))
    assert [name for name, found in walk.found.items() if found.side == "b"] == ["b_out"]
    assert walk.found[TensorName("b_out")].born["b"].value == pytest.approx(0.01, rel=1e-3)
    assert walk.found[TensorName("centre_out")].error.value == pytest.approx(0.01, rel=1e-3)
    assert walk.found[TensorName("centre_out")].born["b"].value == 0


@pytest.mark.parametrize("at_once", [1, 2, 8])
def test_the_number_of_tensors_at_once_changes_nothing(monkeypatch, at_once):
    monkeypatch.setattr(stage, "TENSORS_AT_ONCE", at_once)
    monkeypatch.setattr(stage, "LIVE_BYTES", (1, 1))
    walk = walked(side(network(c=1.5).model))
    assert walk.found[TensorName("c_out")].born["b"].value == pytest.approx(0.5, rel=1e-3)
    assert walk.found[TensorName("y_out")].born["b"].value == 0


def test_few_tensors_are_alive_at_a_time(monkeypatch):
    monkeypatch.setattr(stage, "TENSORS_AT_ONCE", 1)
    monkeypatch.setattr(stage, "LIVE_BYTES", (2 * 4 * 16 * 4, 0))
    asked = []

    class Watched:
        def __init__(self, inner):
            self._inner = inner

        def __getattr__(self, name):
            return getattr(self._inner, name)

        def get(self, names):
            asked.append(len(names))
            return self._inner.get(names)

    walked(Watched(side(network().model)))
    # Two of 4×16 and what they read; two of 4×1 are small enough to come along.
    assert 1 < max(asked) <= 2 * 3
    assert len(asked) > 2


def test_small_tensors_take_one_run():
    parts = []
    walk = walked(side(network().model))
    walk.progress = lambda done, total: parts.append((done, total))
    walk.all()
    assert parts == [(len(walk.line), len(walk.line))]


def test_what_no_input_reaches_and_what_one_side_lacks():
    sketch = Sketch()
    x = sketch.input("x", [4, 16])
    sketch.op("MatMul", x, np.ones((16, 16), np.float32), name="a")
    walk = walked(side(sketch.network("a_out").model))
    assert walk.found[TensorName("b_out")].lack == "missing"
    assert walk.line == ["a_out"]


@pytest.mark.parametrize(("wrong", "born"), [(0.018, False), (0.028, True)])
def test_an_error_is_born_beyond_eight_times_what_rounding_explains(wrong, born):
    # Neighbours differ by a tenth of their size, which makes ten times of their rounding.
    differences = np.eye(16) - np.roll(np.eye(16), 1, axis=1)

    def model(factor):
        sketch = Sketch()
        a = sketch.op("Add", sketch.input("x", [4, 16]), 10.0, name="a")
        return sketch.network(sketch.op("MatMul", a, f32(factor * differences), name="d"))

    exact = side(model(1).model, exact=True)
    walk = Walk(model(1), SAMPLES, exact, side(model(1 + wrong).model, arithmetic="fp16"))
    walk.all()
    assert bool(walk.found[TensorName("d_out")].side) is born
