import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from halfwise.case import Samples
from halfwise.emulation import runner
from halfwise.emulation.ort import Session
from halfwise.emulation.probe import observable
from halfwise.emulation.runner import (
    ModelRunner,
    Nonfinite,
    inspect_samples,
    seen_shapes,
    tensor_bytes,
)
from halfwise.errors import RunFailed
from halfwise.records import TensorName
from tests import models
from tests.unit.casing import prepare
from tests.unit.graph.sketch import Sketch, f32


def chain(count):
    sketch = Sketch()
    x = sketch.input("x", [1, 8])
    for i in range(count):
        x = sketch.op("Mul", x, f32(1.5), name=f"n{i}")
    return sketch.network(x)


def named(*numbers):
    return [TensorName(f"n{i}_out") for i in numbers]


def two():
    return Samples(("s0", "s1"), lambda i: {"x": f32(np.full((1, 8), i + 1))})


def test_tensors_of_every_sample():
    given = ModelRunner(chain(3).model, two())
    first, second = given.get([*named(0, 2), TensorName("nowhere")])
    assert first.keys() == second.keys() == set(named(0, 2))
    np.testing.assert_allclose(second["n2_out"], np.full((1, 8), 2 * 1.5**3))


def test_nothing_is_run_for_nothing():
    assert list(ModelRunner(chain(1).model, two()).get([TensorName("nowhere")])) == [{}, {}]


def test_how_large_tensors_are():
    sketch = Sketch()
    x = sketch.input("x", ["n", 8])
    text = sketch.op("Cast", x, name="text", to=8)
    whole = sketch.op("Cast", sketch.op("Tile", x, [3, 1], name="n0"), name="whole", to=7)
    model = sketch.network(whole, text).model
    names = [TensorName(f"{n}_out") for n in ("n0", "whole", "text")]
    sizes = tensor_bytes(model, names, {"x": f32(np.ones((2, 8)))})
    assert [sizes[n] for n in names] == [3 * 2 * 8 * 4, 3 * 2 * 8 * 8, 2 * 8 * 8]
    assert [v.name for v in model.graph.outputs] == ["whole_out", "text_out"]


def test_what_a_model_has():
    given = ModelRunner(chain(2).model, two())
    assert given.names == set(named(0, 1))
    (constant, *_) = given.model.graph.initializers
    lacking = [given.lack(TensorName(name)) for name in ("n1_out", constant, "nowhere")]
    assert lacking == [None, "constant", "missing"]
    (first, _) = given.get()
    assert first.keys() == {"n1_out"}


def test_a_session_gives_out_no_more_than_is_asked_for(monkeypatch):
    made: list[ir.Model] = []

    def session(model, **options):
        made.append(model)
        return Session(model, **options)

    monkeypatch.setattr(runner, "Session", session)
    given = ModelRunner(chain(50).model, two())
    list(given.get(named(3, 4)))
    assert [v.name for v in made[0].graph.outputs] == named(3, 4)
    assert len(list(made[0].graph)) == 5


def failing():
    """The second node, and the fourth that reads it, can only be run on vectors of 4."""
    sketch = Sketch()
    x = sketch.input("x", ["n"])
    a = sketch.op("Relu", x, name="a")
    b = sketch.op("Reshape", a, [2, 2], name="b")
    c = sketch.op("Neg", a, name="c")
    d = sketch.op("Abs", b, name="d")
    samples = Samples(("even", "odd"), lambda i: {"x": f32(np.ones(4 - i))})
    return sketch.network(c, d).model, samples


def test_what_a_failing_node_leaves_is_given_on_request():
    model, samples = failing()
    given = ModelRunner(model, samples, partial=True)
    even, odd = given.get([TensorName(f"{n}_out") for n in "abcd"])
    assert set(even) == {"a_out", "b_out", "c_out", "d_out"}
    assert set(odd) == {"a_out", "c_out"}
    assert {name: f.node for name, f in given.failures.items()} == {"odd": "b"}


def test_a_node_that_fails_in_a_body_takes_what_holds_it():
    sketch = Sketch()
    x = sketch.input("x", ["n"])
    sketch.op("Relu", x, name="a")
    flag = sketch.input("flag", [], TensorProto.BOOL)
    reshape = helper.make_node("Reshape", ["a_out", sketch.constant([2, 2])], ["inner"], "b")
    output = helper.make_tensor_value_info("inner", TensorProto.FLOAT, None)
    body = helper.make_graph([reshape], "body", [], [output])
    branches = {"then_branch": body, "else_branch": body}
    sketch.nodes.append(helper.make_node("If", [flag], ["if_out"], "if", **branches))
    samples = Samples(("odd",), lambda _: {"x": f32(np.ones(3)), "flag": np.array(True)})
    given = ModelRunner(sketch.network("if_out").model, samples, partial=True)
    (odd,) = given.get([TensorName("a_out"), TensorName("if_out")])
    assert set(odd) == {"a_out"}


def test_a_failing_node_is_an_error_otherwise():
    with pytest.raises(RunFailed, match="node"):
        list(ModelRunner(*failing()).get([TensorName("d_out")]))


def test_shapes_are_those_of_the_sample():
    s = Sketch()
    x = s.input("x", ["n", 4])
    y = s.op("MatMul", x, f32(np.ones((4, 3))), name="product")
    z = s.op("ReduceMax", y, name="scalar", keepdims=0)
    network = s.network(y, z)
    shapes = seen_shapes(network, {"x": f32(np.ones((5, 4)))})
    assert shapes == {"x": (5, 4), "product_out": (5, 3), "scalar_out": ()}


def logarithm():
    s = Sketch()
    log = s.op("Log", s.op("Relu", s.input("x", [1, 4]), name="relu"), name="log")
    data = f32([[[1, 2, 3, 4]], [[0, 2, 0, 4]], [[1, 0, 3, 4]]])
    return prepare(models.Ill(s.proto(s.op("Exp", log, name="exp")), {"x": data}))


def test_elements_that_are_not_finite_are_counted_over_all_samples():
    prepared = logarithm()
    model = prepared.network.model
    outputs, nonfinite = inspect_samples(model, observable(model), prepared.samples)
    inside = nonfinite[TensorName("log_out")]
    assert nonfinite == {TensorName("log_out"): Nonfinite((2, 1), (1, 2))}
    assert inside.elements == 3
    for found, expected in zip(outputs, prepared.references, strict=True):
        assert not isinstance(found, RunFailed)
        np.testing.assert_array_equal(found["exp_out"], expected["exp_out"])


def test_only_the_chosen_tensors_count():
    prepared = logarithm()
    chosen = [t for t in observable(prepared.network.model) if t != "log_out"]
    assert inspect_samples(prepared.network.model, chosen, prepared.samples)[1] == {}


def test_without_samples_nothing_runs():
    prepared = logarithm()
    none = prepared.samples.select(())
    assert inspect_samples(prepared.network.model, (), none) == ([], {})
