import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from halfwise.graph.loading import network_from_proto
from halfwise.graph.model import Network, node_name
from halfwise.graph.movement import Following, carried
from halfwise.graph.roles import float_io, roles_of
from halfwise.records import NodeName, TensorName
from tests import control
from tests.unit.graph.sketch import Sketch

F32 = TensorProto.FLOAT
Names = frozenset[NodeName]


def node(op_type, inputs, outputs, name, **attributes):
    return helper.make_node(op_type, inputs.split(), outputs.split(), name=name, **attributes)


def network(nodes, outputs="y", constants=None) -> Network:
    infos = [helper.make_tensor_value_info(n, F32, [None, None]) for n in outputs.split()]
    tensors = [numpy_helper.from_array(np.asarray(a), n) for n, a in (constants or {}).items()]
    inputs = [helper.make_tensor_value_info(n, F32, [2, 4]) for n in ("x", "z")]
    graph = helper.make_graph(nodes, "g", inputs, infos, tensors)
    imports = [helper.make_opsetid("", 17)]
    return network_from_proto(helper.make_model(graph, opset_imports=imports, ir_version=8))


def names(*values: str) -> Names:
    return frozenset(NodeName(v) for v in values)


# --- what must be carried in FP32 -------------------------------------------------------------


@pytest.mark.parametrize(
    ("kept", "expected"),
    [
        ((), ()),
        (("exp",), ()),
        (("neg",), ()),
        (("exp", "neg"), ("t1", "t2")),
    ],
)
def test_movement_between_kept_nodes_is_carried(kept, expected):
    nodes = [
        node("Exp", "x", "a", "exp"),
        node("Transpose", "a", "b", "t1"),
        node("Transpose", "b", "c", "t2"),
        node("Neg", "c", "y", "neg"),
    ]
    net = network(nodes)
    assert carried(net, roles_of(net), names(*kept)) == names(*expected)


def test_inputs_constants_and_outputs_count_unless_they_are_low():
    nodes = [
        node("Transpose", "x", "a", "from_input"),
        node("Exp", "a", "b", "exp"),
        node("Transpose", "b", "c", "to_output"),
        node("Transpose", "w", "d", "from_constant"),
        node("Add", "c d", "y", "add"),
        node("Identity", "z", "through", "through"),
    ]
    net = network(nodes, "y c through", {"w": np.ones((2, 4), np.float32)})
    roles, kept = roles_of(net), names("exp", "add")
    moving = names("from_input", "to_output", "from_constant", "through")
    assert carried(net, roles, kept) == moving
    # Then only what lies between two kept nodes or a constant and one.
    assert carried(net, roles, kept, low_io=float_io(net)) == names("to_output", "from_constant")
    assert carried(net, roles, names(), low_io=float_io(net)) == names()
    one = frozenset({TensorName("c")})
    assert carried(net, roles, kept, low_io=one) == moving


def test_pinned_nodes_are_sources_and_consumers():
    nodes = [
        node("EyeLike", "x", "e", "eye"),
        node("Transpose", "e", "a", "t"),
        node("EyeLike", "a", "f", "eye2"),
        node("Neg", "f", "y", "neg"),
    ]
    net = network(nodes)
    assert carried(net, roles_of(net), names()) == names("t")


def test_a_constant_shape_is_no_fp32_source():
    nodes = [
        node("Exp", "x", "a", "exp"),
        node("Reshape", "a shape", "b", "reshape"),
        node("Neg", "b", "y", "neg"),
    ]
    net = network(nodes, "y", {"shape": np.array([4, 2])})
    assert carried(net, roles_of(net), names("neg")) == names()


def test_slots_that_are_always_fp32_are_consumers():
    nodes = [
        node("Unsqueeze", "x axes", "x4", "unsqueeze"),
        node("Identity", "scales", "moved", "identity"),
        helper.make_node("Resize", ["x4", "", "moved"], ["y4"], "resize", mode="nearest"),
        node("Squeeze", "y4 axes", "y", "squeeze"),
    ]
    constants = {"axes": np.array([0, 1]), "scales": np.array([1, 1, 2, 2.00001], np.float32)}
    net = network(nodes, "y", constants)
    assert carried(net, roles_of(net), names()) == names("identity")


def test_integers_become_fp32_for_a_kept_consumer():
    nodes = [
        node("ArgMax", "x", "best", "best"),
        node("Cast", "best", "f", "cast", to=F32),
        node("Neg", "f", "y", "neg"),
    ]
    net = network(nodes)
    assert carried(net, roles_of(net), names("neg")) == names("cast")
    assert carried(net, roles_of(net), names()) == names()


@pytest.mark.parametrize("reads", ["inside", "outside"])
def test_what_a_body_reads_is_carried_for_its_fp32_nodes(reads):
    nodes = [
        node("Transpose", "x", "t", "t"),
        helper.make_node("Constant", [], ["flag"], value=numpy_helper.from_array(np.array(True))),
        node("Shape", "t", "s", "shape"),
        node("Neg", "r", "y", "neg"),
    ]
    inner = [node("Neg", "t", "o", "inner")]
    if reads == "outside":
        inner = [node("EyeLike", "t", "e", "eye"), node("Neg", "e", "o", "inner")]
    body = control.graph("body", inner, (), [("o", control.MATRIX)])
    nodes.insert(3, node("If", "flag", "r", "if", then_branch=body, else_branch=body))
    net = network(nodes)
    expected = names("t") if reads == "outside" else names()
    assert carried(net, roles_of(net), names()) == expected
    assert carried(net, roles_of(net), names("inner")) == names("t")


def test_without_bf16_nothing_is_asked_of_an_opset_that_has_none():
    s = Sketch(11)
    network = s.network(s.op("Neg", s.op("Identity", s.input("x", [2]))))
    names = frozenset(node_name(n) for n in network.nodes())
    assert Following(network, roles_of(network))(names, frozenset()) == frozenset()
