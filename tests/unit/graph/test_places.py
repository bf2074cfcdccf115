import onnx
import pytest
from onnx import TensorProto, helper

from halfwise.errors import CaseError
from halfwise.graph.places import NodePlaces


def node(op, inputs, output, name="", **attributes):
    return helper.make_node(op, inputs, [output], name=name, **attributes)


@pytest.fixture
def places(tmp_path):
    branches = [
        helper.make_graph([node("Relu", ["b"], tensor, f"/{side}/Relu")], side, [], [value(tensor)])
        for side, tensor in (("then", "t"), ("else", "e"))
    ]
    nodes = [
        node("MatMul", ["x", "fc.weight"], "a", "/fc/MatMul"),
        node("MyOp", ["a"], "b", "/custom/MyOp"),
        node("If", ["c"], "d", "/If", then_branch=branches[0], else_branch=branches[1]),
        node("Add", ["d", "onnx::Add_7"], "y"),
    ]
    # Not a model that a checker takes: unknown operators, constants without data.
    graph = helper.make_graph(nodes, "g", [value("x")], [value("y")])
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph), path)
    return NodePlaces(path)


def value(name):
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 2])


@pytest.mark.parametrize(
    ("name", "node", "op", "place", "via"),
    [
        ("/fc/MatMul", "/fc/MatMul", "MatMul", 1, "node"),
        ("/fc/MatMul_3", "/fc/MatMul", "MatMul", 1, "node"),
        ("fc.weight", "/fc/MatMul", "MatMul", 1, "reader"),
        ("fc_weight_constant", "/fc/MatMul", "MatMul", 1, "reader"),
        ("b", "/custom/MyOp", "MyOp", 2, "output"),
        ("a_output", "/fc/MatMul", "MatMul", 1, "output"),
        ("/else/Relu", "/else/Relu", "Relu", 4, "node"),
        ("node_of_y", "node_of_y", "Add", 6, "output"),
        ("node 3", "node_of_y", "Add", 6, "node"),
        ("onnx::Add_7", "node_of_y", "Add", 6, "reader"),
    ],
)
def test_names_of_a_log(places, name, node, op, place, via):
    found = places.find(name)
    assert (found.node, found.op, found.place, found.via) == (node, op, place, via)
    assert found.name == name


@pytest.mark.parametrize("name", ["/other/Add", "node 99", ""])
def test_what_the_model_lacks(places, name):
    found = places.find(name)
    assert (found.node, found.op, found.place, found.via) == (None, "", None, "")


def test_nodes_of_bodies_count(places):
    assert places.count == 6


def test_no_model(tmp_path):
    (tmp_path / "a.log").write_text("[W] hello")
    with pytest.raises(CaseError, match="not an ONNX model"):
        NodePlaces(tmp_path / "a.log")
