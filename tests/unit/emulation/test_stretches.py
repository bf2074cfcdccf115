"""Where a graph is cut into stretches."""

import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from halfwise.emulation.stretches import stretches
from halfwise.graph.loading import network_from_proto
from halfwise.graph.roles import roles_of


def cut(nodes, size, apart=(), outputs=("y",)):
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 4])
    given = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs]
    graph = helper.make_graph(nodes, "g", [x], given)
    imports = [helper.make_opsetid("", 17)]
    net = network_from_proto(helper.make_model(graph, opset_imports=imports, ir_version=8))
    order: list[ir.Node] = list(net.graph)
    parts = stretches(order, roles_of(net), size, frozenset(apart))
    assert [n for part in parts for n in part] == order
    return [[n.name for n in part] for part in parts]


def node(op_type, inputs, outputs, name, **attributes):
    return helper.make_node(op_type, inputs.split(), outputs.split(), name=name, **attributes)


def chain(count):
    names = ["x", *(f"v{i}" for i in range(1, count)), "y"]
    return [node("Relu", names[i], names[i + 1], f"n{i}") for i in range(count)]


@pytest.mark.parametrize("count", [1, 2, 6, 7, 30])
def test_stretches_have_about_the_size(count):
    parts = cut(chain(count), 4)
    assert all(2 <= len(part) <= 6 for part in parts[:-1])


def test_of_size_one_each_node_is_alone():
    assert cut(chain(3), 1) == [["n0"], ["n1"], ["n2"]]


def test_they_are_cut_where_least_crosses():
    # Two branches, joined by the fourth node.
    nodes = [
        node("Relu", "x", "a", "a"),
        node("Neg", "a", "b", "b"),
        node("Abs", "a", "c", "c"),
        node("Add", "b c", "d", "join"),
        *(node("Relu", f"{'d' if i == 0 else i}", f"{i + 1}", f"r{i}") for i in range(4)),
        node("Relu", "4", "y", "last"),
    ]
    assert cut(nodes, 4)[0] == ["a", "b", "c", "join", "r0", "r1"]
    assert cut(nodes, 2)[0] == ["a"]


def test_what_no_if_may_hold_stands_alone():
    nodes = [
        node("Relu", "x", "a", "a"),
        node("Neg", "a", "b", "b"),
        node("EyeLike", "b", "e", "pinned"),
        node("Add", "b e", "c", "c"),
        node("Shape", "c", "s", "shape"),
        node("Reshape", "c s", "y", "y"),
    ]
    assert cut(nodes, 24) == [["a", "b"], ["pinned"], ["c", "shape", "y"]]


def test_one_node_that_may_be_low_needs_no_company():
    nodes = [node("Shape", "x", "s", "shape"), node("Reshape", "x s", "y", "y")]
    assert cut(nodes, 24) == [["shape"], ["y"]]


def test_what_is_likely_of_another_precision_has_a_stretch_of_its_own():
    nodes = chain(6)
    nodes.insert(3, node("Shape", "v3", "s", "shape"))
    nodes[4] = node("Reshape", "v3 s", "v4", "n3")
    found = cut(nodes, 24, apart=["n2", "n3"])
    assert found == [["n0", "n1"], ["n2", "shape", "n3"], ["n4", "n5"]]
    assert cut(chain(3), 24, apart=["n1"]) == [["n0"], ["n1"], ["n2"]]
