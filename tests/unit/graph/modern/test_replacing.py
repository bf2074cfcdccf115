import numpy as np
import onnx_ir as ir
import pytest

from halfwise.emulation.ort import Session
from halfwise.graph.model import normalise, tensor_name
from halfwise.graph.modern.replacing import Replacement, alone, exactly, replace_all
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
