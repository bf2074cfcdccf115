"""Where a graph is cut into stretches, and the sessions that run them."""

from functools import partial

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from halfwise.emulation.switched import SwitchedRunner, emulate_switched, stretches
from halfwise.formats import FP16
from halfwise.graph.loading import network_from_proto
from halfwise.graph.model import node_name
from halfwise.graph.roles import roles_of
from tests.unit.emulation.test_forms import chain


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


def node_stretches(op_type, inputs, outputs, name, **attributes):
    return helper.make_node(op_type, inputs.split(), outputs.split(), name=name, **attributes)


def chain_stretches(count):
    names = ["x", *(f"v{i}" for i in range(1, count)), "y"]
    return [node_stretches("Relu", names[i], names[i + 1], f"n{i}") for i in range(count)]


@pytest.mark.parametrize("count", [1, 2, 6, 7, 30])
def test_stretches_have_about_the_size(count):
    parts = cut(chain_stretches(count), 4)
    assert all(2 <= len(part) <= 6 for part in parts[:-1])


def test_of_size_one_each_node_is_alone():
    assert cut(chain_stretches(3), 1) == [["n0"], ["n1"], ["n2"]]


def test_what_no_if_may_hold_stands_alone():
    nodes = [
        node_stretches("Relu", "x", "a", "a"),
        node_stretches("Neg", "a", "b", "b"),
        node_stretches("EyeLike", "b", "e", "pinned"),
        node_stretches("Add", "b e", "c", "c"),
        node_stretches("Shape", "c", "s", "shape"),
        node_stretches("Reshape", "c s", "y", "y"),
    ]
    assert cut(nodes, 24) == [["a", "b"], ["pinned"], ["c", "shape", "y"]]


def test_one_node_that_may_be_low_needs_no_company():
    nodes = [node_stretches("Shape", "x", "s", "shape"), node_stretches("Reshape", "x s", "y", "y")]
    assert cut(nodes, 24) == [["shape"], ["y"]]


def test_what_is_likely_of_another_precision_has_a_stretch_of_its_own():
    nodes = chain_stretches(6)
    nodes.insert(3, node_stretches("Shape", "v3", "s", "shape"))
    nodes[4] = node_stretches("Reshape", "v3 s", "v4", "n3")
    found = cut(nodes, 24, apart=["n2", "n3"])
    assert found == [["n0", "n1"], ["n2"], ["shape"], ["n3"], ["n4", "n5"]]
    assert cut(chain_stretches(3), 24, apart=["n1"]) == [["n0"], ["n1"], ["n2"]]


@pytest.mark.parametrize("kept", [0, 64, 100, 200])
def test_the_model_loaded_for_mixed_stretches_gets_switches_of_its_own(kept):
    net, sample = chain(200), {"x": np.full((2, 4), 3, np.float32)}

    def make(*, alike: bool):
        return emulate_switched(net, roles_of(net), FP16, alike=alike)

    fp32 = frozenset(map(node_name, list(net.nodes())[:kept]))
    both = SwitchedRunner(partial(make, alike=True), partial(make, alike=False))
    expected = SwitchedRunner(partial(make, alike=False)).run(sample, fp32)
    both.run(sample, frozenset())
    assert np.array_equal(both.run(sample, fp32)["y"], expected["y"])
