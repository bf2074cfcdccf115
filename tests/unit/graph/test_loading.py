import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given
from onnx import TensorProto, helper, numpy_helper

from halfwise.errors import CaseError
from halfwise.graph.loading import load_network, network_from_proto
from halfwise.graph.model import is_standard, node_name
from tests.graphs import Drawn, graphs

F32 = TensorProto.FLOAT


def info(name, shape=(4,), dtype=F32):
    return helper.make_tensor_value_info(name, dtype, shape)


def node(op_type, inputs, outputs, name="", **attributes):
    return helper.make_node(op_type, inputs.split(), outputs.split(), name=name, **attributes)


def model(nodes, constants=(), *, inputs=None, outputs=None, opset=17, ir_version=8, **rest):
    graph = helper.make_graph(
        nodes, "g", inputs or [info("x")], outputs or [info("y")], list(constants)
    )
    imports = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=imports, ir_version=ir_version, **rest)


def tensor(name, values):
    return numpy_helper.from_array(np.asarray(values, np.float32), name)


ADD = [node("Add", "x w", "y", "add")]


def test_inputs_of_bodies_get_their_types():
    step, go, state = (helper.make_empty_tensor_value_info(n) for n in ("step", "go", "state"))
    nodes = [node("Identity", "go", "on"), node("Neg", "state", "next")]
    given = [helper.make_tensor_value_info("on", TensorProto.BOOL, []), info("next")]
    body = helper.make_graph(nodes, "body", [step, go, state], given)
    trips = node("Constant", "", "trips", value_int=3)
    loop = helper.make_node("Loop", ["trips", "", "x"], ["y"], "loop", body=body)
    network = network_from_proto(model([trips, loop]))
    [inner] = network.model.graph.subgraphs()
    assert network.graphs() == (network.graph, inner)
    types = [v.dtype for v in inner.inputs]
    assert types == [ir.DataType.INT64, ir.DataType.BOOL, ir.DataType.FLOAT]


# --- files that are no models -----------------------------------------------------------------


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(CaseError, match="There is no file"):
        load_network(tmp_path / "none.onnx")


@pytest.mark.parametrize("name", ["m.onnx", "m.json", "m.textproto", "m.onnxtxt", "m"])
@pytest.mark.parametrize("content", [b"", b"\x00{not a model", b'{"a": 1}'])
def test_a_file_that_is_no_model_is_refused_whatever_its_suffix(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(CaseError, match="is not an ONNX model"):
        load_network(path)


def test_a_truncated_model_is_refused_wherever_it_ends(tmp_path):
    whole = model(ADD, [tensor("w", np.ones(4))]).SerializeToString()
    path = tmp_path / "m.onnx"
    path.write_bytes(whole)
    assert load_network(path).opset == 17
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(CaseError):
            load_network(path)


# --- graphs that are refused ------------------------------------------------------------------

REFUSED = {
    "cyclic": ([node("Add", "x b", "a"), node("Relu", "a", "b"), node("Abs", "b", "y")], "cycle"),
    "ill-typed": (
        [node("Cast", "x", "i", to=TensorProto.INT64), node("Add", "x i", "y")],
        "is FLOAT, not INT64",
    ),
    "undefined": ([node("Add", "x nothing", "y")], "nothing computes"),
    "attribute": ([node("Relu", "x", "y", alpha=2.0)], "alpha"),
    "arity": ([node("Add", "x", "y")], "input size 1"),
    "axis": ([node("Softmax", "x", "y", axis=1 << 62)], "which no tensor has"),
    "twice": ([node("Relu", "x", "y"), node("Abs", "x", "y")], "redeclared"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_bad_graph_is_refused_from_a_file_and_from_memory(case, tmp_path):
    nodes, reason = REFUSED[case]
    proto = model(nodes)
    path = tmp_path / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    with pytest.raises(CaseError, match=reason):
        load_network(path)
    with pytest.raises(CaseError, match=reason):
        network_from_proto(proto)


def test_only_halfwise_tells_of_a_bad_graph(capfd):
    with pytest.raises(CaseError):
        network_from_proto(model([node("Add", f"x {'v' * 5000}", "y")]))
    assert capfd.readouterr() == ("", "")


def test_a_model_without_operator_set_is_refused():
    proto = model([node("Relu", "x", "y")])
    del proto.opset_import[:]
    with pytest.raises(CaseError, match="opset"):
        network_from_proto(proto)


def test_a_constant_with_too_few_bytes_is_refused():
    short = tensor("w", np.ones(4))
    short.raw_data = short.raw_data[:8]
    with pytest.raises(CaseError, match="'w' is incomplete"):
        network_from_proto(model(ADD, [short]))


# --- normal form ------------------------------------------------------------------------------


def test_nodes_are_sorted_and_constants_become_initializers():
    nodes = [
        node("Add", "a c", "y", "second"),
        node("Relu", "x", "a", "first"),
        node("Constant", "", "c", value_floats=[1.0, 2.0, 3.0, 4.0]),
    ]
    network = network_from_proto(model(nodes))
    assert [node_name(n) for n in network.nodes()] == ["first", "second"]
    np.testing.assert_array_equal(network.graph.initializers["c"].const_value, [1, 2, 3, 4])


def test_functions_are_inlined():
    function = helper.make_function(
        "local", "Twice", ["a"], ["b"], [node("Add", "a a", "b")], [helper.make_opsetid("", 17)]
    )
    calls = [node("Twice", "x", "h", domain="local"), node("Twice", "h", "y", domain="local")]
    proto = model(calls, functions=[function])
    proto.opset_import.append(helper.make_opsetid("local", 1))
    network = network_from_proto(proto)
    assert [n.op_type for n in network.nodes()] == ["Add", "Add"]
    assert not network.model.functions


def test_initializers_are_no_inputs_though_ir_3_lists_them():
    proto = model(ADD, [tensor("w", np.ones(4))], inputs=[info("x"), info("w")], ir_version=3)
    network = network_from_proto(proto)
    assert [v.name for v in network.graph.inputs] == ["x"]
    onnx.checker.check_model(ir.serde.serialize_model(network.model), full_check=True)


def test_a_model_of_other_domains_gets_an_operator_set_for_casts():
    binarizer = node("Binarizer", "x", "y", domain="ai.onnx.ml", threshold=0.5)
    proto = model([binarizer])
    del proto.opset_import[:]
    proto.opset_import.append(helper.make_opsetid("ai.onnx.ml", 1))
    assert network_from_proto(proto).opset >= 13


def test_types_of_sequences_are_kept_apart_from_tensors():
    nodes = [node("SplitToSequence", "x", "s"), node("ConcatFromSequence", "s", "y", axis=0)]
    network = network_from_proto(model(nodes))
    split = next(network.nodes())
    assert isinstance(split.outputs[0].type, ir.SequenceType)


def test_sizes_that_are_declared_wrongly_are_corrected():
    # As after changing the batch size of the inputs only; ONNX Runtime runs it with a warning.
    nodes = [node("Relu", "x", "h"), node("Neg", "h", "y")]
    proto = model(nodes, inputs=[info("x", (8, 4))], outputs=[info("y", (1, 4))])
    proto.graph.value_info.append(info("h", (1, 4)))
    network = network_from_proto(proto)
    assert [n.outputs[0].shape for n in network.nodes()] == [ir.Shape([8, 4])] * 2
    onnx.checker.check_model(ir.serde.serialize_model(network.model), full_check=True)


def test_the_original_is_hashed_not_the_normal_form():
    one, two = (model([node("Relu", "x", "y", name)]) for name in ("a", "b"))
    assert network_from_proto(one).sha256 == network_from_proto(one).sha256
    assert network_from_proto(one).sha256 != network_from_proto(two).sha256


@given(graphs())
def test_normal_form_has_unique_names_and_types(drawn: Drawn):
    network = network_from_proto(drawn.proto)
    nodes = list(network.model.graph.all_nodes())
    names = [n.name for n in nodes]
    assert all(names)
    assert len(set(names)) == len(names)
    scopes = [network.graph, *network.graph.subgraphs()]
    values = [v for g in scopes for v in (*g.inputs, *g.initializers.values())]
    values += [v for n in nodes for v in n.outputs if v.name]
    assert len({v.name for v in values}) == len(values)
    assert all(v.type is not None for v in values)
    assert not any(n.op_type == "Constant" for n in network.nodes())
    assert [v.name for v in network.graph.inputs] == [v.name for v in drawn.proto.graph.input]
    assert [v.name for v in network.graph.outputs] == [v.name for v in drawn.proto.graph.output]
    users = {n.name for g in _graphs(drawn.proto.graph) for n in g.node}
    for name in names:
        assert name in network.original_names or name in users
    assert set(network.original_names.values()) <= users


def _graphs(graph):
    yield graph
    for n in graph.node:
        for attribute in n.attribute:
            if attribute.HasField("g"):
                yield from _graphs(attribute.g)


def test_a_copy_may_be_changed():
    network = network_from_proto(model([node("Relu", "x", "y", "relu")]))
    copy = network.copy()
    copy.graph[0].name = "other"
    assert [node_name(n) for n in network.nodes()] == ["relu"]


def test_operators_of_onnx_itself_bear_either_name_of_its_domain():
    for domain in ("", "ai.onnx"):
        cast = ir.node("Cast", [], domain=domain)
        assert is_standard(cast)
        assert is_standard(cast, "Where", "Cast")
        assert not is_standard(cast, "Where")
    assert not is_standard(ir.node("Cast", [], domain="com.example"))
    assert not is_standard(ir.node("Cast", [], domain="com.example"), "Cast")
