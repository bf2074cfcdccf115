import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from halfwise.emulation.ort import Session
from halfwise.formats import BF16, FP16
from halfwise.graph.anchors import is_anchor
from halfwise.graph.casts import adjusted_constants, low_type, rewrite
from halfwise.graph.loading import network_from_proto
from halfwise.graph.model import Network
from halfwise.graph.roles import Role, roles_of
from halfwise.records import NodeName, TensorName
from tests.graphs import Drawn, free_nodes, graphs, low_ends, plans

F32, I64 = TensorProto.FLOAT, TensorProto.INT64
HALF, FULL = ir.DataType.FLOAT16, ir.DataType.FLOAT


def node(op_type, inputs, outputs, name="", **attributes):
    return helper.make_node(op_type, inputs.split(), outputs.split(), name=name, **attributes)


def network(nodes, outputs="y", constants=None, opset=17) -> Network:
    infos = [helper.make_tensor_value_info(n, F32, [None, None]) for n in outputs.split()]
    tensors = [numpy_helper.from_array(np.asarray(a), n) for n, a in (constants or {}).items()]
    x = helper.make_tensor_value_info("x", F32, [2, 4])
    graph = helper.make_graph(nodes, "g", [x], infos, tensors)
    imports = [helper.make_opsetid("", opset)]
    return network_from_proto(helper.make_model(graph, opset_imports=imports, ir_version=8))


def lower(net: Network, *fp32: str, low_io=frozenset(), fmt=FP16):
    result = rewrite(net, roles_of(net), names(*fp32), fmt, low_io=low_io)
    onnx.checker.check_model(ir.serde.serialize_model(result.model), full_check=True)
    Session(result.model)
    return result


def names(*values: str) -> frozenset[NodeName]:
    return frozenset(map(NodeName, values))


def ends(*values: str) -> frozenset[TensorName]:
    return frozenset(map(TensorName, values))


def ops(result) -> list[str]:
    return [n.op_type for n in result.model.graph]


def find(result, name):
    return next(n for n in result.model.graph if n.name == name)


def types(result) -> dict[str, ir.DataType | None]:
    return {v.name: v.dtype for n in result.model.graph for v in n.outputs}


MLP = [
    node("MatMul", "x w", "h", "mm"),
    node("Relu", "h", "r", "relu"),
    node("Add", "r b", "y", "a"),
]
WEIGHTS = {"w": np.eye(4, dtype=np.float32), "b": np.ones(4, np.float32)}


# --- properties -------------------------------------------------------------------------------


@given(graphs(), st.data())
def test_every_plan_gives_a_valid_model_with_one_cast_per_value(drawn: Drawn, data):
    net = network_from_proto(drawn.proto)
    roles, fp32, low_io = roles_of(net), data.draw(plans(net)), data.draw(low_ends(net))
    before = [n.name for n in net.model.graph.all_nodes()]
    result = lower(net, *fp32, low_io=low_io)
    graph = result.model.graph
    nodes = list(graph.all_nodes())
    added = [n for n in nodes if n.name not in before and not is_anchor(n)]
    assert [n.op_type for n in added] == ["Cast"] * result.casts
    # Casts of one value: at most one, and it changes the type.
    assert len({n.inputs[0] for n in added}) == len(added)
    assert all(n.inputs[0].dtype != n.outputs[0].dtype for n in added)
    # Nodes keep names and order.
    assert [n.name for n in nodes if n.name in before] == before
    # Every slot of a node has the type that its part in the plan asks for.
    for n in (n for n in nodes if n.name in before):
        if roles.of(n).role is not Role.BLIND:
            for slot, value in enumerate(n.inputs):
                if value is not None and value.dtype in (HALF, FULL):
                    assert value.dtype == (HALF if roles.reads_low(n, slot, fp32) else FULL)
    for value in (*graph.inputs, *graph.outputs):
        if value.dtype in (HALF, FULL):
            assert value.dtype == (HALF if value.name in low_io else FULL)
    assert [v.name for v in graph.inputs] == [v.name for v in net.graph.inputs]
    assert [v.name for v in graph.outputs] == [v.name for v in net.graph.outputs]


@given(graphs())
def test_all_in_fp32_is_the_original_to_the_byte(drawn: Drawn):
    net = network_from_proto(drawn.proto)
    before = ir.serde.serialize_model(net.model).SerializeToString(deterministic=True)
    result = lower(net, *free_nodes(net))
    after = ir.serde.serialize_model(result.model).SerializeToString(deterministic=True)
    assert result.casts == 0
    assert after == before


@given(graphs(), st.data())
def test_the_network_is_not_changed(drawn: Drawn, data):
    net = network_from_proto(drawn.proto)
    before = ir.serde.serialize_model(net.model).SerializeToString(deterministic=True)
    lower(net, *data.draw(plans(net)), low_io=data.draw(low_ends(net)))
    after = ir.serde.serialize_model(net.model).SerializeToString(deterministic=True)
    assert after == before


# --- casts ------------------------------------------------------------------------------------


def test_all_low_casts_at_the_ends_only():
    assert ops(lower(network(MLP, "y", WEIGHTS))) == ["Cast", "MatMul", "Relu", "Add", "Cast"]


def test_a_kept_node_in_the_middle_stands_between_two_casts():
    result = lower(network(MLP, "y", WEIGHTS), "relu")
    assert ops(result) == ["Cast", "MatMul", "Cast", "Relu", "Cast", "Add", "Cast"]
    assert result.casts == 4
    assert types(result)["r"] is FULL


def test_an_edge_between_kept_nodes_has_no_cast():
    assert ops(lower(network(MLP, "y", WEIGHTS), "relu", "a")) == [
        *("Cast", "MatMul", "Cast", "Relu", "Add")
    ]


def test_consumers_of_the_same_type_share_a_cast():
    nodes = [
        node("Exp", "x", "h", "kept"),
        node("Relu", "h", "a", "low1"),
        node("Neg", "h", "b", "low2"),
        node("Add", "a b", "y", "low3"),
    ]
    result = lower(network(nodes), "kept")
    assert result.casts == 2
    assert find(result, "low1").inputs[0] is find(result, "low2").inputs[0]


def test_nodes_may_have_bf16_beside_the_low_format():
    nodes = [
        node("MatMul", "x w", "h", "low1"),
        node("MatMul", "h w", "a", "narrow"),
        node("Add", "h a", "b", "low2"),
        node("Mul", "a a", "c", "kept"),
        node("Add", "b c", "y", "low3"),
    ]
    net = network(nodes, constants={"w": np.full((4, 4), 1e5, np.float32)})
    roles, kept = roles_of(net), frozenset((NodeName("kept"),))
    result = rewrite(net, roles, kept, FP16, bf16=frozenset((NodeName("narrow"),)))
    found = {n.name: {v.dtype for v in (*n.inputs, *n.outputs) if v} for n in result.model.graph}
    assert (found["narrow"], found["kept"]) == ({ir.DataType.BFLOAT16}, {FULL})
    assert found["low1"] == found["low2"] == found["low3"] == {HALF}
    # Each type of a value is made once: x, h and c in one other, a in two, y at the end.
    assert result.casts == 6
    weights = {v.dtype for v in result.model.graph.initializers.values()}
    assert weights == {HALF, ir.DataType.BFLOAT16}
    onnx.checker.check_model(ir.to_proto(result.model), full_check=True)


def test_an_output_that_is_also_used_inside_keeps_its_name_and_type():
    nodes = [node("Relu", "x", "h", "one"), node("Neg", "h", "y", "two")]
    result = lower(network(nodes, "h y"))
    assert [(v.name, v.dtype) for v in result.model.graph.outputs] == [("h", FULL), ("y", FULL)]
    # The low reader takes the value before the Cast, a kept one would take the output.
    assert find(result, "two").inputs[0] is find(result, "one").outputs[0]
    kept = lower(network(nodes, "h y"), "two")
    assert find(kept, "two").inputs[0] is kept.model.graph.outputs[0]
    assert kept.casts == 2


def test_low_io_changes_the_ends_and_saves_their_casts():
    result = lower(network(MLP, "y", WEIGHTS), low_io=ends("x", "y"))
    assert result.casts == 0
    assert result.model.graph.inputs[0].dtype is HALF
    assert result.model.graph.outputs[0].dtype is HALF
    assert lower(network(MLP, "y", WEIGHTS), "mm", "relu", "a", low_io=ends("x", "y")).casts == 2
    one = lower(network(MLP, "y", WEIGHTS), low_io=ends("y"))
    assert [v.dtype for v in (*one.model.graph.inputs, *one.model.graph.outputs)] == [FULL, HALF]
    assert one.casts == 1


@pytest.mark.parametrize("outputs", ["y w", "w"])
def test_a_constant_that_is_an_output_has_the_type_of_the_outputs(outputs):
    nodes = [node("Neg", "w", "y", "neg")] if "y" in outputs else []
    net = network(nodes, outputs, {"w": np.array([[0.1, 5.0]], np.float32)})
    for low_io in (ends(), ends("x", *outputs.split())):
        result = lower(net, low_io=low_io)
        x = np.zeros((2, 4), np.float16 if low_io else np.float32)
        results = Session(result.model).run({"x": x})
        assert {v.dtype for v in result.model.graph.outputs} == {HALF if low_io else FULL}
        assert list(results) == outputs.split()
        expected = np.array([[0.1, 5.0]], np.float16 if low_io else np.float32)
        np.testing.assert_array_equal(results["w"], expected)


def test_slots_without_a_low_form_stay_fp32():
    nodes = [
        node("Unsqueeze", "x axes", "x4", "up"),
        helper.make_node("Resize", ["x4", "", "scales"], ["y4"], "resize", mode="nearest"),
        node("Squeeze", "y4 axes", "y", "down"),
    ]
    constants = {"axes": np.array([0, 1]), "scales": np.array([1, 1, 2, 2], np.float32)}
    result = lower(network(nodes, "y", constants))
    resize = find(result, "resize")
    assert resize.inputs[0].dtype is HALF
    assert resize.inputs[1] is None
    assert resize.inputs[2].dtype is FULL
    assert result.casts == 2


def test_produced_types_follow():
    one = numpy_helper.from_array(np.ones(1, np.float32))
    nodes = [
        node("Shape", "x", "s", "shape"),
        node("ConstantOfShape", "s", "zeros", "zeros"),
        node("ConstantOfShape", "s", "ones", "ones", value=one),
        node("ArgMax", "x", "best", "best"),
        node("Cast", "best", "f", "cast", to=F32),
        node("Add", "zeros ones", "z", "a1"),
        node("Mul", "z f", "y", "a2"),
    ]
    result = lower(network(nodes))
    assert find(result, "zeros").attributes["value"].as_tensor().dtype is HALF
    assert find(result, "ones").attributes["value"].as_tensor().dtype is HALF
    assert find(result, "cast").attributes["to"].as_int() == int(HALF)
    assert types(result)["s"] is ir.DataType.INT64


def test_names_that_are_taken_are_avoided():
    nodes = [node("Relu", "x", "x_fp16", "x_to_fp16"), node("Neg", "x_fp16", "y", "y_cast")]
    result = lower(network(nodes))
    names = [n.name for n in result.model.graph]
    assert len(set(names)) == len(names) == 4
    assert names[1] == "x_to_fp16"


def test_names_do_not_run_out():
    taken = ["x_fp16", *(f"x_fp16_{i}" for i in range(1, 1000))]
    nodes = [node("Neg", "x", "y", "neg"), *(node("Abs", "x", name) for name in taken)]
    net = network(nodes, "y")
    model = rewrite(net, roles_of(net), frozenset(), FP16).model
    assert "x_fp16_1000" in [v.name for n in model.graph for v in n.outputs]


# --- constants --------------------------------------------------------------------------------


@pytest.mark.parametrize("fmt", [FP16, BF16])
def test_weights_are_stored_low_with_signs_and_nans(fmt):
    special = [[-0.0, 0.0, 1e-9, -1e-9], [np.nan, -np.nan, np.inf, -np.inf]]
    net = network([node("Mul", "x w", "y", "mul")], "y", {"w": np.array(special, np.float32)})
    result = rewrite(net, roles_of(net, low_type(fmt)), frozenset(), fmt)
    stored = result.model.graph.initializers["w"].const_value
    assert stored is not None
    assert stored.dtype is low_type(fmt)
    wide = np.asarray(stored.numpy()).astype(np.float32)
    np.testing.assert_array_equal(wide, fmt.round(np.array(special, np.float32)))
    np.testing.assert_array_equal(np.signbit(wide), np.signbit(np.array(special)))


def test_weights_beyond_the_range_saturate_and_are_told():
    w = np.array([1e6, -7e4, 65519, 65504, np.inf, np.nan, 1, 0], np.float32).reshape(2, 4)
    net = network([node("Mul", "x w", "h", "m1"), node("Add", "h w", "y", "m2")], "y", {"w": w})
    roles = roles_of(net)
    result = lower(net)
    stored = np.asarray(result.model.graph.initializers["w"].const_value.numpy())
    expected = np.array([65504, -65504, 65504, 65504, np.inf, np.nan, 1, 0], np.float16)
    np.testing.assert_array_equal(stored.ravel(), expected)
    [found] = adjusted_constants(net, roles, frozenset(), FP16)
    assert (found.name, found.minimum, found.maximum) == ("w", -7e4, 1e6)
    assert found.elements == 3
    assert found.consumers == ("m1", "m2")
    [less] = adjusted_constants(net, roles, names("m1"), FP16)
    assert less.consumers == ("m2",)
    assert adjusted_constants(net, roles, names("m1", "m2"), FP16) == ()


@pytest.mark.parametrize("kept", [(), ("m1",), ("m1", "m2")])
def test_a_constant_that_is_a_low_output_saturates_and_is_told(kept):
    w = np.full((2, 4), 1e6, np.float32)
    nodes = [node("Mul", "x w", "h", "m1"), node("Mul", "h w", "y", "m2")]
    net = network(nodes, "y w", {"w": w})
    result = lower(net, *kept, low_io=ends("w"))
    stored = result.model.graph.initializers
    assert [v.name for v in result.model.graph.outputs] == ["y", "w"]
    assert result.model.graph.outputs[1] is stored["w"]
    assert stored["w"].const_value.numpy().max() == 65504
    assert {n: v.dtype for n, v in stored.items()} == {
        "w": HALF,
        **({"w_fp32": FULL} if kept else {}),
    }
    [found] = adjusted_constants(net, roles_of(net), names(*kept), FP16, ends("w"))
    assert found.consumers == tuple(n for n in ("m1", "m2") if n not in kept)
    assert not any(n.op_type == "Cast" and n.outputs[0].name == "w" for n in result.model.graph)


@pytest.mark.parametrize("eps", [1e-12, -1e-30, 2.0**-25])
def test_a_single_number_never_becomes_zero_and_that_is_told(eps):
    net = network([node("Add", "x eps", "y", "add")], "y", {"eps": np.array(eps, np.float32)})
    stored = np.asarray(lower(net).model.graph.initializers["eps"].const_value.numpy())
    assert stored == np.copysign(np.float16(2.0**-24), np.float16(eps))
    [found] = adjusted_constants(net, roles_of(net), frozenset(), FP16)
    assert (found.name, found.elements, found.consumers) == ("eps", 1, ("add",))
    assert found.minimum == found.maximum == np.float32(eps)


def test_single_numbers_that_fp16_has_are_not_adjusted():
    for value in (0.0, -0.0, 1e-7, np.nan, np.inf):
        net = network([node("Add", "x c", "y", "add")], "y", {"c": np.array(value, np.float32)})
        assert adjusted_constants(net, roles_of(net), frozenset(), FP16) == ()


def test_a_fill_beyond_the_range_saturates_and_is_told():
    fill = numpy_helper.from_array(np.array([-3e38], np.float32))
    nodes = [
        node("Shape", "x", "s", "shape"),
        node("ConstantOfShape", "s", "mask", "fill", value=fill),
        node("Add", "x mask", "h", "add"),
        node("ConstantOfShape", "s", "zeros", "zeros"),
        node("Add", "h zeros", "y", "end"),
    ]
    net = network(nodes)
    stored = find(lower(net), "fill").attributes["value"].as_tensor().numpy()
    assert float(stored[0]) == -65504
    [found] = adjusted_constants(net, roles_of(net), frozenset(), FP16)
    assert found.consumers == ("fill",)
    assert found.elements == 1
    assert adjusted_constants(net, roles_of(net), names("fill"), FP16) == ()


def test_a_shared_weight_is_copied_only_if_both_types_are_read():
    nodes = [node("Mul", "x w", "h", "m1"), node("Mul", "h w", "y", "m2")]
    net = network(nodes, "y", {"w": np.full((2, 4), 0.1, np.float32)})
    both = lower(net, "m2")
    assert {n: v.dtype for n, v in both.model.graph.initializers.items()} == {
        "w": FULL,
        "w_fp16": HALF,
    }
    assert both.casts == 2
    assert list(lower(net).model.graph.initializers) == ["w"]


def test_weights_that_stay_are_shared_with_the_network():
    net = network(MLP, "y", WEIGHTS)
    result = lower(net, "mm")
    for name, shared in (("w", True), ("b", False)):
        mine, theirs = (m.graph.initializers[name].const_value for m in (result.model, net.model))
        assert (mine is theirs) == shared


def test_a_lowered_custom_operator_called_cast_keeps_its_attributes():
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [4]) for n in ("x", "y")]
    own = helper.make_node("Cast", ["x"], ["y"], "own", domain="com.example", to="speech")
    graph = helper.make_graph([own], "g", values[:1], values[1:])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.example", 1)]
    net = network_from_proto(helper.make_model(graph, opset_imports=opsets, ir_version=10))
    result = rewrite(net, roles_of(net, lowered=(NodeName("own"),)), frozenset(), FP16).model
    (cast,) = (n for n in result.graph if n.domain == "com.example")
    assert cast.outputs[0].dtype == ir.DataType.FLOAT16
    assert cast.attributes["to"].as_string() == "speech"
