import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

from halfwise.formats import FP16
from halfwise.graph.alike import alike
from halfwise.graph.casts import rewrite
from halfwise.graph.model import Network, network_from_proto, node_name
from halfwise.graph.roles import roles_of
from halfwise.graph.running import bodies_in
from halfwise.records import NodeName
from tests.control import BOOL, F32, graph
from tests.unit.graph.sketch import Sketch, f32
from tests.unit.graph.test_running import nested, node


def branches(*, weight=2.0, op="Tanh", operand="h_out", twice=True):
    s = Sketch()
    x, flag = s.input("x", [2, 3]), s.input("flag", [], BOOL)
    s.op("Exp", x, name="h")
    s.op("Sin", x, name="other")
    s.constant(f32(weight), "outer")
    inner = [node("Mul", f"{operand} outer", "a"), node(op, "a", "b"), node("Add", "b own", "c")]
    inner += [node("Add", "b b" if twice else "b c", "d")]
    body = graph("then", inner, (), [("d", (F32, (2, 3)))], {"own": 0.5})
    other = graph("else", [node("Identity", x, "e")], (), [("e", (F32, (2, 3)))])
    s.nodes.append(
        onnx.helper.make_node("If", [flag], ["y"], "choose", then_branch=body, else_branch=other)
    )
    return s.proto("y")


def then(network: Network) -> ir.Graph:
    return in_graph(network.graph)


def in_graph(main: ir.Graph) -> ir.Graph:
    return bodies_in(main)[NodeName("choose"), "then_branch"].graph


@pytest.mark.parametrize(
    "change",
    [{"weight": 2.5}, {"op": "Sin"}, {"operand": "other_out"}, {"twice": False}],
    ids=["captured-constant", "operator", "captured-value", "operand"],
)
def test_bodies_that_differ_are_told_apart(change):
    one = then(network_from_proto(branches()))
    assert alike(one, then(network_from_proto(branches())))
    assert not alike(one, then(network_from_proto(branches(**change))))


def test_an_own_constant_and_names_inside():
    proto = branches()
    (then_branch,) = (a.g for a in proto.graph.node[-1].attribute if a.name == "then_branch")
    own = then_branch.initializer[0]
    one = then(network_from_proto(proto))
    own.CopyFrom(numpy_helper.from_array(np.array(0.25, np.float32), "own"))
    assert not alike(one, then(network_from_proto(proto)))
    proto = branches()
    for attribute in proto.graph.node[-1].attribute:
        for inner in attribute.g.node:
            inner.name += "_renamed"
    assert alike(one, then(network_from_proto(proto)))


def test_nested_bodies_are_compared():
    one, other = nested(), nested()
    assert all(map(alike, graphs(one), graphs(other)))
    for inner in other.model.graph.all_nodes():
        if inner.op_type == "Tanh":
            inner.op_type = "Sin"
    assert [alike(a, b) for a, b in zip(graphs(one), graphs(other), strict=True)].count(True) == 2


def graphs(network: Network):
    return [body.graph for body in bodies_in(network.graph).values()]


def test_a_body_that_is_kept_reads_through_casts():
    network = network_from_proto(branches())
    roles = roles_of(network)
    kept = frozenset(node_name(n) for n in network.nodes() if n.op_type == "If")
    mixed = rewrite(network, roles, kept, FP16).model
    own = then(network)
    assert alike(own, in_graph(mixed.graph))
    low = rewrite(network, roles, frozenset(), FP16).model
    assert not alike(own, in_graph(low.graph))
