import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper

from halfwise.emulation.ort import Session
from halfwise.graph.loading import normalise
from halfwise.graph.model import tensor_name
from halfwise.graph.modern import replacing
from halfwise.graph.modern.replacing import (
    Replacement,
    alone,
    between,
    exactly,
    replace_all,
)
from halfwise.records import TensorName
from tests.unit.graph.sketch import Sketch


@pytest.fixture
def sketch():
    s = Sketch(20)
    x = s.input("x", [2, 3])
    doubled = s.op("Add", x, x, name="/a/Add")
    shared = s.op("Mul", doubled, 2.0, name="/b/Mul")
    s.op("Neg", shared, name="/b/Neg")
    s.op("Abs", shared, name="/c/Abs")
    return s


def replacement(output="/b/Neg_out"):
    return Replacement("Gelu", TensorName("x"), TensorName(output), {"approximate": "tanh"})


def test_names_stay_and_what_others_read_too(sketch):
    network = sketch.network("/b/Neg_out", "/c/Abs_out")
    model = network.copy()
    (done,) = replace_all(model, [replacement()])
    assert (done.removed, done.added) == (("/b/Neg",), ("/b/Gelu",))
    assert {n.name for n in model.graph} == {"/a/Add", "/b/Mul", "/c/Abs", "/b/Gelu"}
    assert [v.name for v in model.graph.outputs] == ["/b/Neg_out", "/c/Abs_out"]
    normalise(model, path=None, sha256="")
    assert {n.op_type for n in network.nodes()} == {"Add", "Mul", "Neg", "Abs"}


def test_what_nobody_reads_any_more_goes(sketch):
    sketch.nodes.pop()
    model = sketch.network("/b/Neg_out").copy()
    (done,) = replace_all(model, [replacement()])
    assert done.removed == ("/a/Add", "/b/Mul", "/b/Neg")


def test_one_may_read_what_another_gives(sketch):
    model = sketch.network("/b/Neg_out").copy()
    first = replacement("/b/Mul_out")
    second = Replacement("Gelu", TensorName("/b/Mul_out"), TensorName("/b/Neg_out"), {})
    assert len(replace_all(model, [first, second])) == 2
    assert [n.op_type for n in normalise(model, path=None, sha256="").nodes()][:2] == ["Gelu"] * 2


def test_alone_with_transposes_and_constants():
    s = Sketch(20)
    x = s.input("x", ["n", 4, 2])
    network = s.network(s.op("Relu", x))
    made = Replacement(
        "LayerNormalization",
        tensor_name(network.graph.inputs[0]),
        TensorName("y"),
        {"axis": -1, "epsilon": 0.0},
        {"weight": np.full(4, 2, np.float32)},
        (0, 2, 1),
    )
    model = alone(made, network.graph.inputs[0], network.model)
    assert isinstance(model, ir.Model)
    data = np.random.default_rng(0).standard_normal((3, 4, 2)).astype(np.float32)
    (y,) = Session(model).run({"x": data}).values()
    expected = 2 * (data - data.mean(1, keepdims=True)) / data.std(1, keepdims=True)
    assert np.allclose(y, expected, atol=1e-5)
    exact = exactly(made, data)
    assert exact is not None
    assert np.allclose(exact, expected, atol=1e-6)
    assert exactly(replacement(), data) is None


def part(network, x, output):
    values = {v.name: v for n in network.nodes() for v in (*n.inputs, *n.outputs)}
    places = {node: place for place, node in enumerate(network.nodes())}
    found = between(network.graph, values[x], values[output], places)
    return None if found is None else [n.name for n in found]


def test_the_part_between_two_values_has_its_constants(sketch):
    network = sketch.network("/b/Neg_out", "/c/Abs_out")
    assert part(network, "/a/Add_out", "/b/Neg_out") == ["/b/Mul", "/b/Neg"]
    assert part(network, "x", "/b/Neg_out") == ["/a/Add", "/b/Mul", "/b/Neg"]
    values = {v.name: v for n in network.nodes() for v in (*n.inputs, *n.outputs)}
    places = {node: place for place, node in enumerate(network.nodes())}
    found = between(network.graph, values["/a/Add_out"], values["/b/Mul_out"], places)
    assert found is not None
    given = np.arange(6, dtype=np.float32).reshape(2, 3)
    (result,) = Session(ir.Model(found, ir_version=10)).run({"/a/Add_out": given}).values()
    np.testing.assert_array_equal(result, 2 * given)


def test_there_is_no_part_where_something_else_is_read_or_it_is_large(sketch, monkeypatch):
    network = sketch.network("/b/Neg_out", "/c/Abs_out")
    assert part(network, "/b/Mul_out", "/a/Add_out") is None
    assert part(network, "/c/Abs_out", "/b/Neg_out") is None
    monkeypatch.setattr(replacing, "_LARGEST_PART", 2)
    assert part(network, "x", "/b/Neg_out") is None
    assert part(network, "x", "/b/Mul_out") == ["/a/Add", "/b/Mul"]


def test_there_is_no_part_with_bodies():
    s = Sketch(20)
    x, flag = s.input("x", [2]), s.input("flag", [], onnx.TensorProto.BOOL)
    ends = helper.make_empty_tensor_value_info("end")
    body = helper.make_graph([helper.make_node("Neg", ["x"], ["end"])], "body", [], [ends])
    y = s.op("Neg", s.op("If", flag, then_branch=body, else_branch=body), name="neg")
    network = s.network(y, s.op("Abs", x))
    assert part(network, "x", y) is None
