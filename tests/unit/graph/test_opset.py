import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given
from onnx import TensorProto, helper, numpy_helper

from halfwise.emulation.ort import Session
from halfwise.errors import CaseError
from halfwise.fixing.rewrite import same
from halfwise.graph import opset
from halfwise.graph.model import network_from_proto
from halfwise.graph.opset import gaining, raise_opset
from tests import models
from tests.graphs import Drawn, graphs
from tests.unit.graph.sketch import Sketch, f32

BF, F16, F32 = ir.DataType.BFLOAT16, ir.DataType.FLOAT16, TensorProto.FLOAT


def image(opset: int) -> Sketch:
    """A convolution with a large weight, and what changed between opsets 11 and 22."""
    s = Sketch(opset)
    x = s.input("x", ["n", 2, 8, 8])
    weight = models.weights(8, 2, 5, 5, seed=1, scale=0.1)
    c = s.op("Conv", x, s.constant(weight, "weight"), name="conv", pads=[2] * 4)
    m = s.op("ReduceMean", c, name="mean", axes=[2, 3], keepdims=0)
    s.op("Softmax", m, name="softmax", axis=1)
    return s


@pytest.mark.parametrize("opset", [11, 13, 17])
def test_names_constants_and_the_function_stay(opset) -> None:
    network = image(opset).network("softmax_out", "conv_out")
    raised = raise_opset(network)
    assert raised.opset == 22
    assert {n.name for n in raised.nodes()} >= {"conv", "mean", "softmax"}
    assert [v.name for v in raised.graph.inputs] == ["x"]
    assert [v.name for v in raised.graph.outputs] == ["softmax_out", "conv_out"]
    assert list(raised.graph.inputs[0].shape or ()) == list(network.graph.inputs[0].shape or ())
    weight = raised.graph.initializers["weight"]
    assert weight.const_value is network.graph.initializers["weight"].const_value
    assert raised.original_names == network.original_names
    assert raised.sha256 == network.sha256
    sample = {"x": models.signals(3, 2, 8, 8, seed=2, count=1)[0]}
    assert same(Session(network.model).run(sample), Session(raised.model).run(sample))
    onnx.checker.check_model(ir.serde.serialize_model(raised.model), full_check=True)


def test_renamed_operators_keep_their_names_and_those_of_their_outputs() -> None:
    s = Sketch(9)
    x, scales = s.input("x", [1, 2, 2, 2]), f32([1, 1, 2, 2])
    twice = s.op("Upsample", s.op("Upsample", x, scales, name="first"), scales, name="second")
    beside = s.op("Upsample", x, f32([1, 1, 8, 8]), name="beside")
    indices, updates = np.zeros((1, 2, 1, 1), np.int64), np.ones((1, 2, 1, 1), np.float32)
    scattered = s.op("Scatter", twice, indices, updates, name="scatter", axis=2)
    network = s.network(s.op("Relu", scattered, name="relu"), s.op("Neg", beside, name="neg"))
    raised = raise_opset(network)
    found = {n.name: (n.op_type, n.outputs[0].name) for n in raised.nodes()}
    assert found["first"] == ("Resize", "first_out")
    assert found["second"] == ("Resize", "second_out")
    assert found["beside"] == ("Resize", "beside_out")
    assert found["scatter"] == ("ScatterElements", "scatter_out")
    sample = {"x": models.signals(1, 2, 2, 2, seed=4, count=1)[0]}
    assert same(Session(network.model).run(sample), Session(raised.model).run(sample))


def test_a_node_that_is_replaced_by_something_else_is_told(monkeypatch) -> None:
    monkeypatch.setattr(opset, "_SUCCESSORS", {})
    s = Sketch(9)
    x = s.input("x", [1, 1, 2, 2])
    network = s.network(s.op("Upsample", x, f32([1, 1, 2, 2]), name="up"))
    with pytest.raises(CaseError, match="replaces node up"):
        raise_opset(network)


def test_the_network_itself_is_not_changed() -> None:
    network = image(13).network("softmax_out")
    before = ir.serde.serialize_model(network.model).SerializeToString(deterministic=True)
    raise_opset(network)
    after = ir.serde.serialize_model(network.model).SerializeToString(deterministic=True)
    assert before == after


@given(graphs())
def test_any_graph_computes_the_same(drawn: Drawn) -> None:
    network = network_from_proto(drawn.proto)
    raised = raise_opset(network)
    assert {n.name for n in raised.nodes()} >= {n.name for n in network.nodes()}
    before = Session(network.model).run(drawn.sample)
    assert same(before, Session(raised.model).run(drawn.sample))


def test_bodies_are_raised_and_their_large_constants_stay() -> None:
    weight = numpy_helper.from_array(models.weights(32, 32, seed=3, scale=0.2), "inside")
    info = helper.make_tensor_value_info
    then = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "inside"], ["t"], name="product"),
            helper.make_node("ReduceMean", ["t"], ["a"], name="mean", axes=[1]),
        ],
        *("then", [], [info("a", F32, [1, 1])], [weight]),
    )
    other = helper.make_graph(
        [helper.make_node("ReduceMax", ["x"], ["b"], name="largest", axes=[1])],
        *("else", [], [info("b", F32, [1, 1])]),
    )
    nodes = [
        helper.make_node("If", ["flag"], ["c"], name="if", then_branch=then, else_branch=other),
        helper.make_node("Sin", ["c"], ["y"], name="sine"),
    ]
    inputs = [info("x", F32, [1, 32]), info("flag", TensorProto.BOOL, [])]
    graph = helper.make_graph(nodes, "g", inputs, [info("y", F32, [1, 1])])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    network = network_from_proto(proto)
    raised = raise_opset(network)
    for flag in (True, False):
        sample = {"x": models.signals(1, 32, seed=4, count=1)[0], "flag": np.array(flag)}
        assert same(Session(network.model).run(sample), Session(raised.model).run(sample))


def test_operators_of_other_domains_keep_their_types() -> None:
    proto = image(17).proto("softmax_out")
    custom = helper.make_node("Foo", ["softmax_out"], ["z"], name="foo", domain="com.example")
    proto.graph.node.append(custom)
    proto.graph.output.append(helper.make_tensor_value_info("z", F32, ["n", 8]))
    proto.opset_import.append(helper.make_opsetid("com.example", 3))
    raised = raise_opset(network_from_proto(proto))
    assert raised.model.opset_imports == {"": 22, "com.example": 3}
    assert raised.graph.outputs[1].dtype is ir.DataType.FLOAT


def test_a_model_gains_where_its_operators_take_bf16_only_later() -> None:
    network = image(17).network("softmax_out")
    assert gaining(network, BF) == ("Conv",)
    assert gaining(network, F16) == ()
    assert gaining(raise_opset(network), BF) == ()
    assert gaining(network_from_proto(models.layer_norm().proto), BF) == ()


def test_below_opset_13_nothing_can_be_cast_to_bf16() -> None:
    assert gaining(image(11).network("softmax_out"), BF) == ("Conv", "ReduceMean", "Softmax")


def test_an_operator_that_is_gone_at_the_later_opset() -> None:
    s = Sketch(9)
    y = s.op("Upsample", s.input("x", [1, 1, 2, 2]), f32([1, 1, 2, 2]), name="up")
    network = s.network(y)
    assert "Upsample" not in gaining(network, BF)
    raised = raise_opset(network)
    sample = {"x": f32(np.arange(4)).reshape(1, 1, 2, 2)}
    assert same(Session(network.model).run(sample), Session(raised.model).run(sample))


def test_what_the_converter_has_no_adapter_for_is_refused() -> None:
    s = Sketch(8)
    ones = s.constant(np.ones(2, np.float32), "ones")
    x = s.input("x", [1, 2, 4])
    y = s.op("BatchNormalization", x, *[ones] * 4, name="norm", spatial=0)
    with pytest.raises(CaseError, match="from opset 8 to 22"):
        raise_opset(s.network(y))
