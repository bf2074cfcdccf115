import numpy as np
import pytest

from halfwise.case import Samples
from halfwise.emulation.ort import Session
from halfwise.emulation.runner import ModelRunner
from halfwise.graph.dataflow import giving_out
from halfwise.records import TensorName
from halfwise.tools.compare import Walk, compared
from halfwise.tools.compare.sides import reference
from halfwise.tools.diagnose.reproducer import part, save_reproducer
from tests.unit.graph.sketch import Sketch, f32
from tests.unit.tools.compare.copies import DATA, SAMPLES, network, side


def walked(made, **altered):
    right = reference(network(), SAMPLES, made.settings)
    walk = Walk(network(), SAMPLES, right, side(network(**altered).model))
    walk.all()
    return walk, compared(walk)


def test_nothing_to_cut_out(subject):
    made = subject(fake={})
    walk, found = walked(made)
    assert save_reproducer(made.engines, walk, found, made.folder, None) == ()
    assert list(made.folder.iterdir()) == []


def test_a_part_whose_engine_is_right_says_so(subject):
    made = subject(fake={})
    walk, found = walked(made, d=1.0, y=1.2)
    (told,) = save_reproducer(made.engines, walk, found, made.folder, "s1")
    assert told.startswith("reproducer/ holds ")
    assert "an engine of them alone is right" in told


def test_arrays_keep_any_name(subject):
    def times(factor):
        sketch = Sketch()
        file = sketch.input("file", [4, 16])
        return sketch.network(sketch.op("Mul", file, f32(factor), name="y"))

    whole = times(2)
    made = subject(model=whole, samples=Samples(("s",), lambda _: {"file": DATA[0]}), fake={})
    right = reference(whole, made.samples, made.settings)
    wrong = ModelRunner(times(3).model, made.samples, "side")
    walk = Walk(whole, made.samples, right, wrong)
    walk.all()
    save_reproducer(made.engines, walk, compared(walk), made.folder, "s")
    with np.load(made.folder / "reproducer" / "inputs.npz") as inputs:
        np.testing.assert_array_equal(inputs["file"], DATA[:1])


WHOLE = network()
A, B, D, JOIN, STILL = (TensorName(f"{node}_out") for node in ("a", "b", "d", "join", "still"))


@pytest.fixture(scope="module")
def values():
    names = (A, B, D, JOIN, STILL)
    return Session(giving_out(WHOLE.model, names)).run({"x": DATA[0]}, names)


def test_a_part_stands_alone(values):
    model, feed = part(WHOLE, [D], [JOIN, STILL], values, {})
    assert feed.keys() == {JOIN, STILL}
    assert [list(v.shape or ()) for v in model.graph.inputs] == [[4, 16], [4, 1]]
    np.testing.assert_array_equal(Session(model).run(feed)[D], values[D])


def test_what_it_computes_too_keeps_a_name_of_its_own(values):
    model, feed = part(WHOLE, [A, B], [A], values, {"x": DATA[0]})
    assert feed.keys() == {"x", "a_out::given"}
    found = Session(model).run(feed)
    for name in (A, B):
        np.testing.assert_array_equal(found[name], values[name])
