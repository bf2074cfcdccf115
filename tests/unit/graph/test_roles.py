import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given
from onnx import TensorProto, defs, helper, numpy_helper, parser

from halfwise.errors import CaseError
from halfwise.graph.loading import network_from_proto
from halfwise.graph.model import node_name
from halfwise.graph.roles import Role, float_io, is_float, roles_of
from halfwise.records import NodeName
from tests import control
from tests.graphs import Drawn, graphs
from tests.unit.graph.qdq import LAYERS, chain, last

F32, F64, I64 = TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.INT64


def role_called(name, proto, low=ir.DataType.FLOAT16):
    return roles_of(network_from_proto(proto), low)[NodeName(name)]


def role(op_type, inputs, outputs, *, opset=17, domain="", low=ir.DataType.FLOAT16, **attributes):
    """Return the role of one node.

    Args:
        op_type: Operator.
        inputs: Per input a type, a constant array or None where it is left out.
        outputs: Types of the outputs.
        opset: Version of its operator set.
        domain: Its domain.
        low: The low type.
        attributes: Of the node.
    """
    names = [f"i{k}" if value is not None else "" for k, value in enumerate(inputs)]
    results = [f"o{k}" for k in range(len(outputs))]
    constants = [
        numpy_helper.from_array(value, name)
        for name, value in zip(names, inputs, strict=True)
        if isinstance(value, np.ndarray)
    ]
    given_inputs = [
        helper.make_tensor_value_info(name, value, [2, 3, 4, 4])
        for name, value in zip(names, inputs, strict=True)
        if isinstance(value, int)
    ]
    node = helper.make_node(op_type, names, results, name="n", domain=domain, **attributes)
    infos = [
        helper.make_tensor_value_info(name, dtype, None)
        for name, dtype in zip(results, outputs, strict=True)
    ]
    for value in infos:
        value.type.tensor_type.ClearField("shape")
    # Outputs of the graph need a shape: let the node's pass through ops that tell nothing of it.
    shapes = [helper.make_node("Shape", [name], [f"s_{name}"]) for name in results]
    graph_outputs = [helper.make_tensor_value_info(f"s_{name}", I64, [None]) for name in results]
    graph = helper.make_graph(
        [node, *shapes], "g", given_inputs, graph_outputs, constants, value_info=infos
    )
    imports = [helper.make_opsetid("", opset)]
    imports += [helper.make_opsetid(domain, 1)] if domain else []
    proto = helper.make_model(graph, opset_imports=imports, ir_version=8)
    return role_called("n", proto, low)


def ints(*values):
    return np.array(values, np.int64)


def floats(*values):
    return np.array(values, np.float32)


@pytest.mark.parametrize(
    ("op_type", "inputs", "attributes"),
    [
        ("Add", [F32, F32], {}),
        ("MatMul", [F32, F32], {}),
        ("Softmax", [F32], {}),
        ("OneHot", [I64, np.array(3), floats(0, 1)], {}),
    ],
)
def test_arithmetic_computes(op_type, inputs, attributes):
    found = role(op_type, inputs, [F32], **attributes)
    assert found.role is Role.COMPUTE
    assert found.outputs == (True,)
    assert found.inputs == tuple(
        v == F32 if isinstance(v, int) else v.dtype == np.float32 for v in inputs
    )


@pytest.mark.parametrize(
    ("op_type", "inputs", "attributes", "slots"),
    [
        ("Transpose", [F32], {}, (True,)),
        ("Reshape", [F32, ints(-1)], {}, (True, False)),
        ("Pad", [F32, ints(0, 0, 0, 0, 1, 1, 1, 1), np.float32(1)], {}, (True, False, True)),
        ("Where", [TensorProto.BOOL, F32, F32], {}, (False, True, True)),
        ("ConstantOfShape", [ints(2, 3)], {}, (False,)),
        ("Cast", [I64], {"to": F32}, (False,)),
        ("ScatterND", [F32, ints([0]), F32], {}, (True, False, True)),
    ],
)
def test_copying_is_movement(op_type, inputs, attributes, slots):
    inputs = [np.asarray(v) if isinstance(v, np.generic) else v for v in inputs]
    found = role(op_type, inputs, [F32], **attributes)
    assert found.role is Role.MOVEMENT
    assert found.inputs == slots
    assert found.outputs == (True,)


def test_scattering_with_a_reduction_computes():
    found = role("ScatterND", [F32, ints([0]), F32], [F32], opset=18, reduction="add")
    assert found.role is Role.COMPUTE
    assert role("ScatterND", [F32, ints([0]), F32], [F32], opset=18, reduction="none").role is (
        Role.MOVEMENT
    )


@pytest.mark.parametrize(
    ("op_type", "inputs", "output", "attributes"),
    [
        ("Greater", [F32, F32], TensorProto.BOOL, {}),
        ("ArgMax", [F32], I64, {}),
        ("IsNaN", [F32], TensorProto.BOOL, {}),
        ("Cast", [F32], I64, {"to": I64}),
    ],
)
def test_what_only_reads_floats_computes_on_low_ones(op_type, inputs, output, attributes):
    found = role(op_type, inputs, [output], **attributes)
    assert found.role is Role.COMPUTE
    assert all(found.inputs)
    assert found.outputs == (False,)


@pytest.mark.parametrize(
    ("op_type", "inputs", "output"),
    [("Shape", [F32], I64), ("Size", [F32], I64), ("Add", [I64, I64], I64), ("Exp", [F64], F64)],
)
def test_what_touches_no_float_value_is_blind(op_type, inputs, output):
    assert role(op_type, inputs, [output]).role is Role.BLIND


@pytest.mark.parametrize(
    ("op_type", "inputs", "attributes", "reason"),
    [
        ("Range", [np.float32(0), np.float32(4), np.float32(1)], {}, "does not take float16"),
        ("RandomNormal", [], {"shape": [2, 2]}, "random"),
        ("RandomUniformLike", [F32], {}, "random"),
        ("EyeLike", [np.eye(2, dtype=np.float32)], {}, "values"),
        ("HannWindow", [np.array(8)], {}, "values"),
        ("Scale", [F32], {"domain": "com.example"}, "'com.example'"),
    ],
)
def test_what_has_no_low_form_is_pinned(op_type, inputs, attributes, reason):
    inputs = [np.asarray(v) if isinstance(v, np.generic) else v for v in inputs]
    found = role(op_type, inputs, [F32], **attributes)
    assert found.role is Role.PINNED
    assert reason in found.reason
    assert not found.free


def test_what_gives_elements_of_less_than_a_byte_is_pinned():
    cast = parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 21]>
        g (float[4] x) => (int4[4] q, uint8[4] n)
        { q = Cast <to = 22> (x) n = Cast <to = 2> (x) }"""
    )
    packed, whole = roles_of(network_from_proto(cast)).values()
    assert packed.role is Role.PINNED
    assert "smaller than a byte" in packed.reason
    assert whole.free


def control_flow(nodes, opset=17):
    """Return a network of x: f32[2, 4], flag: bool[] → y: f32[2, 4]."""
    x, y = (helper.make_tensor_value_info(n, F32, [2, 4]) for n in "xy")
    flag = helper.make_tensor_value_info("flag", TensorProto.BOOL, [])
    graph = helper.make_graph(nodes, "g", [x, flag], [y])
    imports = [helper.make_opsetid("", opset)]
    return network_from_proto(helper.make_model(graph, opset_imports=imports, ir_version=8))


def loop(name, result, body):
    return helper.make_node("Loop", ["trips", "", "x"], [result], name, body=body)


TRIPS = helper.make_node("Constant", [], ["trips"], value_int=3)


def test_nodes_in_bodies_have_roles_of_their_own():
    branches = control.branches("b", "state", "x")
    nodes = [
        helper.make_node("Identity", ["go"], ["on"], "on"),
        helper.make_node("If", ["flag"], ["next"], "choose", **branches),
    ]
    formals = [("step", control.STEP), ("go", control.GO), ("state", control.MATRIX)]
    body = control.graph("body", nodes, formals, [("on", control.GO), ("next", control.MATRIX)])
    network = control_flow([TRIPS, loop("loop", "y", body)])
    roles = roles_of(network)
    assert list(roles) == [n.name for n in network.all_nodes()]
    assert roles[NodeName("loop")].role is Role.PINNED
    assert roles[NodeName("loop")].reason == ""
    found = {n.outputs[0].name: n for n in network.all_nodes()}
    assert roles.of(found["next"]).role is Role.PINNED
    assert roles.of(found["on"]).role is Role.BLIND
    assert roles.of(found["b_then_a"]).role is Role.COMPUTE
    assert roles.of(found["b_then_b"]).role is Role.MOVEMENT
    assert roles.of(found["b_else_s"]).role is Role.PINNED
    assert roles.reads_low(found["b_then_a"], 0)
    assert not roles.reads_low(found["b_then_a"], 0, {node_name(found["b_then_a"])})
    assert not roles.reads_low(found["b_else_s"], 0)


def test_control_flow_without_floats_is_blind():
    counts = [helper.make_node("Shape", ["x"], ["s"], "shape")]
    ends = [("s", (I64, (None,)))]
    branches = {
        "then_branch": control.graph("t", counts, (), ends),
        "else_branch": control.graph("e", counts, (), ends),
    }
    nodes = [
        helper.make_node("If", ["flag"], ["size"], "if", **branches),
        helper.make_node("Reshape", ["x", "size"], ["y"], "reshape"),
    ]
    assert roles_of(control_flow(nodes))[NodeName("if")].role is Role.BLIND


def test_control_flow_over_sequences_is_pinned_with_all_that_is_in_it():
    nodes = [
        helper.make_node("Identity", ["go"], ["on"], "on"),
        helper.make_node("Neg", ["x"], ["n"], "neg"),
        helper.make_node("SequenceInsert", ["list", "n"], ["more"], "insert"),
    ]
    body = control.graph("body", nodes, [("step", control.STEP), ("go", control.GO)], ())
    body.input.append(helper.make_tensor_sequence_value_info("list", F32, None))
    body.output.append(helper.make_tensor_value_info("on", TensorProto.BOOL, []))
    body.output.append(helper.make_tensor_sequence_value_info("more", F32, None))
    network = control_flow(
        [
            TRIPS,
            helper.make_node("SequenceConstruct", ["x"], ["first"], "construct"),
            helper.make_node("Loop", ["trips", "", "first"], ["all"], "loop", body=body),
            helper.make_node("SequenceAt", ["all", "trips"], ["y"], "at"),
        ]
    )
    roles = roles_of(network)
    assert "sequence" in roles[NodeName("loop")].reason
    assert roles[NodeName("neg")].role is Role.PINNED
    assert roles[NodeName("on")].role is Role.BLIND


def test_sequences_are_pinned():
    assert "sequence" in role_of_sequence().reason


def role_of_sequence():
    graph = helper.make_graph(
        [
            helper.make_node("SplitToSequence", ["x"], ["s"], "n"),
            helper.make_node("ConcatFromSequence", ["s"], ["y"], "m", axis=0),
        ],
        "g",
        [helper.make_tensor_value_info("x", F32, [4])],
        [helper.make_tensor_value_info("y", F32, [4])],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return role_called("n", proto)


def test_slots_follow_the_operator_set_of_the_model():
    scales = floats(1, 1, 2, 2)
    resize = role("Resize", [F32, None, scales], [F32], opset=13)
    assert resize.inputs == (True, False, False)
    # Statistics of BatchNormalization may have another type from opset 14 on, but are low too.
    channel = floats(1, 2, 3)
    norm = role("BatchNormalization", [F32, *[channel] * 4], [F32], opset=15)
    assert norm.inputs == (True,) * 5


@pytest.mark.parametrize("low", [ir.DataType.FLOAT16, ir.DataType.BFLOAT16])
def test_mean_and_deviation_of_a_layer_normalisation_stay_fp32(low):
    layer = role("LayerNormalization", [F32, floats(1, 1, 1, 1)], [F32, F32, F32], low=low)
    assert layer.outputs == (True, False, False)


def test_bf16_follows_its_own_constraints():
    # Einsum took no BF16 when FP16 was allowed.
    einsum = {"equation": "abcd,abcd->abcd"}
    assert role("Einsum", [F32, F32], [F32], **einsum).role is Role.COMPUTE
    bf16 = role("Einsum", [F32, F32], [F32], low=ir.DataType.BFLOAT16, **einsum)
    assert bf16.role is Role.PINNED
    assert "does not take bfloat16" in bf16.reason


def test_bf16_needs_an_operator_set_that_can_cast_to_it():
    with pytest.raises(CaseError, match="opset 13"):
        role("Relu", [F32], [F32], opset=12, low=ir.DataType.BFLOAT16)


def test_float_io_are_the_ends_that_can_be_rounded():
    x, y, through = (helper.make_tensor_value_info(n, F32, [2]) for n in ("x", "y", "through"))
    whole, same = (helper.make_tensor_value_info(n, I64, [2]) for n in ("whole", "same"))
    nodes = [helper.make_node("Neg", ["x"], ["y"]), helper.make_node("Abs", ["whole"], ["same"])]
    graph = helper.make_graph(nodes, "g", [x, whole, through], [y, same, through])
    assert float_io(network_from_proto(helper.make_model(graph))) == {"x", "y"}


def test_is_float_is_for_fp32_tensors_only():
    assert is_float(ir.val("a", ir.DataType.FLOAT))
    assert not is_float(None)
    assert not is_float(ir.val("a"))
    assert not is_float(ir.val("a", ir.DataType.FLOAT16))
    sequence = ir.val("a", type=ir.SequenceType(ir.TensorType(ir.DataType.FLOAT)))
    assert not is_float(sequence)


@given(graphs())
def test_low_slots_are_float_values_that_the_schema_allows(drawn: Drawn):
    network = network_from_proto(drawn.proto)
    roles = roles_of(network)
    assert list(roles) == [n.name for n in network.all_nodes()]
    for node in network.nodes():
        found = roles[node_name(node)]
        if not found.inputs + found.outputs:
            assert not found.free
            continue
        assert len(found.inputs) == len(node.inputs)
        assert len(found.outputs) == len(node.outputs)
        schema = defs.get_schema(node.op_type, network.opset, "")
        types = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}
        for low, value, k in zip(found.inputs, node.inputs, range(len(node.inputs)), strict=True):
            kind = schema.inputs[min(k, len(schema.inputs) - 1)].type_str
            assert low == (is_float(value) and "tensor(float16)" in types.get(kind, ()))


def test_custom_operators_in_bodies_and_their_neighbours_tell_that_types_are_unknown():
    nodes = [
        helper.make_node("Swirl", ["x"], ["h"], "swirl", domain="com.example"),
        helper.make_node("Mul", ["h", "h"], ["s"], "square"),
    ]
    end = helper.make_tensor_value_info("s", F32, [4])
    body = helper.make_graph(nodes, "body", [], [end])
    choose = helper.make_node("If", ["flag"], ["y"], "if", then_branch=body, else_branch=body)
    x, y = (helper.make_tensor_value_info(n, F32, [4]) for n in "xy")
    flag = helper.make_tensor_value_info("flag", TensorProto.BOOL, [])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.example", 1)]
    graph = helper.make_graph([choose], "g", [x, flag], [y])
    proto = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    inside = roles_of(network_from_proto(proto))
    assert "custom domain 'com.example'" in inside[NodeName("swirl")].reason
    assert "a tensor of unknown type" in inside[NodeName("square")].reason


@pytest.mark.parametrize(("dtype", "whole"), [(np.int8, True), (np.int16, False)])
def test_products_that_are_quantised_whole_are_never_low(dtype, whole):
    s = chain(LAYERS[:2], dtype=dtype)
    roles = roles_of(s.network(last(s)))
    found = {layer: roles[NodeName(layer)].role is Role.PINNED for layer in LAYERS}
    assert found == {"first": whole, "second": whole, "third": False}
    assert roles[NodeName("first/q")].role is roles[NodeName("first/dq")].role is Role.PINNED
