import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from halfwise.emulation.ort import Session
from halfwise.emulation.switched import SWITCH_INPUT, emulate_switched
from halfwise.emulation.typed import emulate_typed
from halfwise.formats import FP16
from halfwise.graph.casts import rewrite
from halfwise.graph.model import Network, network_from_proto
from halfwise.graph.roles import roles_of
from halfwise.graph.widen import widened
from halfwise.judging.reference import check
from tests import control
from tests.unit.graph.sketch import Sketch, f32


def positions(opset: int = 17, **attributes: int) -> Sketch:
    """Integers in the type of activations, as exporters of positional codes write it."""
    s = Sketch(opset)
    x, ids = s.input("x", [2, 4]), s.input("ids", [2, 4], TensorProto.INT64)
    like = s.op("CastLike", ids, s.op("Relu", x, name="relu"), name="like", **attributes)
    s.op("Mul", like, 1e-4, name="scale")
    return s


def node_called(network: Network, name: str) -> ir.Node:
    return next(n for n in network.model.graph.all_nodes() if n.name == name)


def cast_type(network: Network, name: str) -> ir.DataType:
    node = node_called(network, name)
    assert node.op_type == "Cast"
    assert len(node.inputs) == 1
    return ir.DataType(node.attributes["to"].as_int())


@pytest.mark.parametrize(("opset", "attributes"), [(15, {}), (19, {"saturate": 0}), (25, {})])
def test_a_cast_with_the_same_names_and_attributes(opset, attributes) -> None:
    network = positions(opset, **attributes).network("scale_out")
    assert cast_type(network, "like") == ir.DataType.FLOAT
    node = node_called(network, "like")
    assert {k: a.value for k, a in node.attributes.items()} == {"to": 1, **attributes}
    assert node.outputs[0].name == "like_out"


def test_a_constant_that_only_gave_the_type_goes() -> None:
    s = Sketch()
    ids = s.input("ids", [4], TensorProto.INT64)
    network = s.network(s.op("CastLike", ids, f32([0.0]), name="like"))
    assert cast_type(network, "like") == ir.DataType.FLOAT
    assert not network.graph.initializers


def test_integers_beyond_the_range_are_infinite_in_both_emulations() -> None:
    network = positions().network("scale_out")
    sample = {"x": f32(np.ones((2, 4))), "ids": np.full((2, 4), 70_000)}
    roles = roles_of(network)
    switched = emulate_switched(network, roles, FP16)
    feed = {**sample, SWITCH_INPUT: switched.switch(frozenset())}
    assert np.isinf(Session(switched.model).run(feed)["scale_out"]).all()
    mixed = rewrite(network, roles, frozenset(), FP16).model
    assert np.isinf(Session(emulate_typed(mixed)).run(sample)["scale_out"]).all()


def test_an_export_rounds_where_it_casts() -> None:
    s = Sketch()
    x, ids = s.input("x", [2, 4], TensorProto.FLOAT16), s.input("ids", [2, 4], TensorProto.INT64)
    network = s.network(s.op("CastLike", ids, x, name="like"))
    assert cast_type(network, "like") == ir.DataType.FLOAT16
    wide, _ = widened(network)
    assert cast_type(wide, "like") == ir.DataType.FLOAT
    sample = {"x": f32(np.ones((2, 4))), "ids": np.full((2, 4), 70_000)}
    assert np.isinf(Session(emulate_typed(network.model)).run(sample)["like_out"]).all()


def test_bodies_have_casts_too() -> None:
    s = Sketch()
    s.input("x", [2, 4])
    flag, ids = s.input("flag", [], TensorProto.BOOL), s.input("ids", [2, 4], TensorProto.INT64)
    nodes = [helper.make_node("CastLike", [ids, "x"], ["inside"], "like")]
    body = control.graph("body", nodes, (), [("inside", control.MATRIX)])
    branches = {"then_branch": body, "else_branch": body}
    s.nodes.append(helper.make_node("If", [flag], ["chosen"], "choose", **branches))
    network = s.network(s.op("Neg", "chosen", name="neg"))
    assert all(n.op_type != "CastLike" for n in network.model.graph.all_nodes())


def test_a_type_that_only_the_runtime_knows() -> None:
    info = helper.make_tensor_value_info
    nodes = [
        helper.make_node("QuickGelu", ["x"], ["g"], "gelu", domain="com.microsoft"),
        helper.make_node("CastLike", ["ids", "g"], ["f"], "like"),
        helper.make_node("Mul", ["f", "x"], ["y"], "scale"),
    ]
    inputs = [info("x", TensorProto.FLOAT, [4]), info("ids", TensorProto.INT64, [4])]
    graph = helper.make_graph(nodes, "g", inputs, [info("y", TensorProto.FLOAT, [4])])
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    proto = helper.make_model(graph, opset_imports=imports, ir_version=8)
    network = network_from_proto(proto)
    assert node_called(network, "like").op_type == "CastLike"
    check(network)
    assert cast_type(network, "like") == ir.DataType.FLOAT
