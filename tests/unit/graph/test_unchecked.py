import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from halfwise.errors import CaseError
from halfwise.graph.model import network_from_proto, node_name, tensor_name
from halfwise.graph.unchecked import NodePlaces, numbers, read_unchecked
from tests.unit.graph.sketch import Sketch, f32


@pytest.fixture
def read(tmp_path):
    def read(proto):
        (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
        return read_unchecked(tmp_path / "m.onnx")

    return read


def sketch():
    s = Sketch()
    x = s.op("Add", s.input("x", [4]), s.constant(f32(np.ones(4)), "ones"), name="add")
    return s.proto(s.op("Relu", x, name="relu"))


def test_a_sound_model_is_read_whole(read):
    model = read(sketch())
    assert (model.refusal, model.unread, dict(model.broken), model.opset) == ("", (), {}, 17)
    assert [place.name for place, _ in model.nodes] == ["add", "relu"]
    assert [model.place(node).number for node in model.network.nodes()] == [1, 2]
    value = next(iter(model.network.graph.initializers.values()))
    array = numbers(value)
    assert array is not None
    assert np.array_equal(array, np.ones(4))
    assert numbers(model.network.graph.inputs[0]) is None


def test_places_are_those_of_the_file(read):
    proto = sketch()
    first = proto.graph.node[0]
    del proto.graph.node[0]
    proto.graph.node.append(first)
    model = read(proto)
    # The checker wants an order; the network has one.
    assert "topological" in model.refusal or model.refusal
    assert [(node_name(n), model.place(n).number) for n in model.network.nodes()] == [
        ("add", 2),
        ("relu", 1),
    ]


def test_cycles_leave_no_graph(read):
    proto = sketch()
    proto.graph.node[0].input[0] = "relu_out"
    model = read(proto)
    assert model.network is None
    assert model.unread[0].startswith("the graph cannot be read: ")
    assert len(model.nodes) == 2


def test_operators_that_onnx_does_not_know_do_not_hide_types(read):
    s = Sketch()
    y = s.op("Relu", s.input("x", [4]), name="relu")
    proto = s.proto(s.op("Tanh", y, name="plugin"))
    proto.graph.node[1].op_type = "Plugin_TRT"
    del proto.graph.value_info[:]
    model = read(proto)
    assert model.refusal.startswith("node 'plugin' (Plugin_TRT): No Op registered")
    assert model.unread == ()
    assert next(iter(model.network.nodes())).outputs[0].dtype == ir.DataType.FLOAT


def test_names_are_the_users(read):
    proto = sketch()
    for node in proto.graph.node:
        node.name = "twice"
    model = read(proto)
    assert [model.place(n).name for n in model.network.nodes()] == ["twice", "twice"]


def test_nodes_without_a_name_are_called_as_by_other_commands(read):
    proto = sketch()
    del proto.graph.initializer[:]
    constant = helper.make_node("Constant", [], ["ones"], value_floats=[1.0] * 4)
    proto.graph.node.insert(0, constant)
    proto.graph.node.append(helper.make_node("Neg", ["relu_out"], ["node"], name="node"))
    for node in list(proto.graph.node)[:3]:
        node.name = ""
    other = network_from_proto(proto)
    called = {tensor_name(n.outputs[0]): node_name(n) for n in other.nodes()}
    # A Constant is no node to the others; `node` is the name of another node.
    assert called == {"add_out": "node", "relu_out": "node_1", "node": "node_2"}
    assert [place.called for place, _ in read(proto).nodes] == ["", "node", "node_1", ""]


def test_a_node_of_a_function_stands_where_it_is_called(read):
    proto = sketch()
    body = helper.make_node("Neg", ["a"], ["b"], name="inside")
    opsets = [helper.make_opsetid("", 17)]
    proto.functions.append(helper.make_function("own", "F", ["a"], ["b"], [body], opsets))
    proto.opset_import.append(helper.make_opsetid("own", 1))
    proto.graph.node[1].domain, proto.graph.node[1].op_type = "own", "F"
    model = read(proto)
    places = [model.place(n) for n in model.network.nodes()]
    assert [(p.name, p.op, p.number) for p in places] == [
        ("add", "Add", 1),
        ("relu/inside", "Neg", 2),
    ]


def test_broken_constants_lose_their_data(read, capfd):
    proto = sketch()
    proto.graph.initializer[0].raw_data = b"\0" * 12
    model = read(proto)
    assert list(model.broken) == ["ones"]
    assert model.network.graph.initializers["ones"].const_value is None
    assert model.refusal
    assert capfd.readouterr() == ("", "")


def test_missing_external_data(read):
    proto = sketch()
    tensor = proto.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="gone.bin")
    model = read(proto)
    assert list(model.broken) == ["ones"]


def test_what_cannot_be_read_at_all(read, tmp_path):
    proto = sketch()
    proto.graph.node[0].attribute.append(helper.make_attribute("a", 1))
    proto.graph.node[0].attribute[0].type = onnx.AttributeProto.GRAPH
    proto.graph.node[0].attribute[0].g.node.add(op_type="")
    assert read(proto).refusal
    with pytest.raises(CaseError, match="is not an ONNX model"):
        read_unchecked(_written(tmp_path / "x.onnx"))
    with pytest.raises(CaseError, match="There is no file"):
        read_unchecked(tmp_path / "none.onnx")


def _written(path):
    path.write_bytes(b"no model at all")
    return path


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
