"""Parts of a model, on the numbers that they read."""

import numpy as np
import pytest
from onnx import TensorProto, helper

from halfwise.emulation.ort import Session
from halfwise.errors import CaseError
from halfwise.graph.loading import network_from_proto
from halfwise.graph.model import node_name
from halfwise.metrics.difference import relative_rms
from halfwise.tools.reduce import Search
from tests import control
from tests.control import BOOL
from tests.unit.graph.sketch import Sketch, f32
from tests.unit.tools.compare.copies import DATA, network

X = {"x": DATA[0]}


def piece(whole, sample, *names):
    """Cut a part out; it gives what the whole model has there."""
    nodes = [node for node in whole.nodes() if node_name(node) in names]
    part, numbers = Search(whole, sample, lambda *_: True).part(nodes)
    whole_copy = whole.copy()
    whole_copy.graph.outputs[:] = [v for n in whole_copy.graph for v in n.outputs]
    true = Session(whole_copy).run(sample)
    for name, array in Session(part.model).run(numbers).items():
        assert relative_rms(true[name], array) < 1e-5, name
    return part, numbers


def ends(part):
    return {value.name for value in part.graph.outputs}


def test_a_part_gives_what_others_read():
    assert ends(piece(network(), X, "b", "centre")[0]) == {"b_out", "centre_out"}


def test_the_rest_of_a_model_takes_what_is_left_out_and_gives_what_that_read():
    whole = network()
    part, numbers = piece(whole, X, *({node_name(n) for n in whole.nodes()} - {"centre"}))
    assert {"mean_out", "y_out"} <= ends(part)
    assert numbers.keys() == {"x", "centre_out"}


def test_integers_from_outside_are_constants():
    s = Sketch()
    x = s.input("x", ["N", 2])
    shape = s.op("Shape", x, name="shape")
    twice = s.op("Concat", s.op("Tanh", x, name="tanh"), x, name="twice", axis=0)
    best = s.op("ArgMax", twice, name="best", axis=0, keepdims=0)
    picked = s.op("Gather", twice, best, name="picked", axis=0)
    y = s.op("Mul", picked, s.op("Cast", shape, name="cast", to=TensorProto.FLOAT), name="y")
    whole, sample = s.network(y), {"x": f32(np.arange(4).reshape(2, 2))}
    assert piece(whole, sample, "picked")[1].keys() == {"twice_out"}


def test_bodies_go_with_their_node():
    s = Sketch()
    x, flag = s.input("x", [2, 4]), s.input("flag", [], BOOL)
    outer = s.op("Tanh", x, name="outer")
    branches = control.branches("b", outer, x)
    s.nodes.append(helper.make_node("If", [flag], ["chosen"], "choose", **branches))
    whole = s.network(s.op("Neg", "chosen", name="neg"))
    sample = {"x": f32(np.ones((2, 4))), "flag": np.array(True)}
    assert "outer_out" in piece(whole, sample, "choose")[1]


def test_what_is_no_tensor_cannot_be_given():
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    nodes = [
        helper.make_node("SequenceConstruct", ["x", "x"], ["s"], "make"),
        helper.make_node("ConcatFromSequence", ["s"], ["y"], "join", axis=0),
    ]
    graph = helper.make_graph(nodes, "g", [x], [y])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    whole, sample = network_from_proto(proto), {"x": f32([1, 2])}
    with pytest.raises(CaseError, match="s is not a tensor"):
        piece(whole, sample, "join")


def test_the_last_nodes_are_found_in_a_model_that_goes_on():
    sketch = Sketch()
    x = sketch.input("x", [4, 16])
    for i in range(20):
        x = sketch.op("Mul", x, f32(1.5), name=f"m{i}")
    wanted = {"m10", "m11", "m12"}

    def failing(part, _):
        return wanted <= {node_name(node) for node in part.nodes()}

    search = Search(sketch.network(x), X, failing)
    assert {node_name(node) for node in search.smallest()} == wanted
