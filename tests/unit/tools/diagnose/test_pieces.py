import numpy as np
import pytest
from onnx import TensorProto, helper

from halfwise.case import Samples
from halfwise.emulation.ort import Session
from halfwise.emulation.runner import ModelRunner
from halfwise.errors import CaseError
from halfwise.graph.loading import network_from_proto, normalise
from halfwise.metrics.difference import relative_rms
from halfwise.records import NodeName
from halfwise.tools.diagnose.pieces import Pieces
from tests import control
from tests.control import BOOL, MATRIX
from tests.unit.graph.sketch import Sketch, f32
from tests.unit.tools.compare.copies import DATA, network

X = {"x": DATA[0]}


def pieces(whole, sample):
    right = ModelRunner(whole.model, Samples(("s",), lambda _: sample))
    return Pieces(whole, lambda names: {**sample, **next(right.get(list(names)))})


def part(*names):
    return frozenset(map(NodeName, names))


def check(piece, right, parts):
    """The piece loads, and gives what the whole model has there."""
    assert set(piece.outputs) <= set(parts)
    found = Session(normalise(piece.model.clone(), path=None, sha256="").model).run(piece.feed)
    assert found.keys() == {name for names in piece.outputs.values() for name in names}
    expected = right(list(found))
    for name, array in found.items():
        assert relative_rms(expected[name], array) < 1e-5, name


def test_every_node_alone_stands_beside_the_others_on_its_true_inputs():
    cut = pieces(network(), X)
    parts = [part(name) for name in cut.reads]
    piece = cut.cut(parts)
    check(piece, cut.values, parts)
    assert piece.outputs.keys() == set(parts)
    assert {"a_out::given", "x"} <= set(piece.feed)


def test_a_part_gives_what_it_does_not_read_itself():
    cut = pieces(network(), X)
    ((name, given),) = cut.cut([part("b", "centre")]).outputs.items()
    assert name == part("b", "centre")
    assert given == ("centre_out",)


def test_the_rest_of_a_model_takes_what_is_left_out_and_gives_what_that_read():
    cut = pieces(network(), X)
    rest = part(*cut.reads) - part("centre")
    piece = cut.cut([rest])
    assert piece.outputs == {rest: ("mean_out", "y_out")}
    assert piece.feed.keys() == {"x", "centre_out"}
    check(piece, cut.values, [rest])


def test_what_follows_from_shapes_and_integers_from_outside_are_constants():
    s = Sketch()
    x = s.input("x", ["N", 2])
    shape = s.op("Shape", x, name="shape")
    twice = s.op("Concat", s.op("Tanh", x, name="tanh"), x, name="twice", axis=0)
    best = s.op("ArgMax", twice, name="best", axis=0, keepdims=0)
    picked = s.op("Gather", twice, best, name="picked", axis=0)
    y = s.op("Mul", picked, s.op("Cast", shape, name="cast", to=TensorProto.FLOAT), name="y")
    cut = pieces(s.network(y), {"x": f32(np.arange(4).reshape(2, 2))})
    assert "shape" not in cut.reads
    piece = cut.cut([part("picked")])
    assert piece.feed.keys() == {"twice_out"}
    check(piece, cut.values, [part("picked")])
    scaled = cut.cut([part("y")])
    assert scaled.feed.keys() == {"picked_out"}
    check(scaled, cut.values, [part("y")])
    # A part that gives no floats shows nothing.
    assert cut.cut([part("best")]).outputs == {}


def test_bodies_go_with_their_node():
    s = Sketch()
    x, flag = s.input("x", [2, 2]), s.input("flag", [], BOOL)
    outer = s.op("Tanh", x, name="outer")
    bodies = {
        branch: control.graph(
            branch, [helper.make_node(op, [outer], [f"{branch}_y"])], (), [(f"{branch}_y", MATRIX)]
        )
        for branch, op in (("then_branch", "Exp"), ("else_branch", "Abs"))
    }
    s.nodes.append(helper.make_node("If", [flag], ["chosen"], "choose", **bodies))
    whole = s.network(s.op("Neg", "chosen", name="neg"))
    cut = pieces(whole, {"x": f32(np.ones((2, 2))), "flag": np.array(True)})
    assert cut.reads["choose"] == ("outer",)
    parts = [part("choose"), part("neg")]
    piece = cut.cut(parts)
    assert piece.feed.keys() == {"outer_out", "chosen::given"}
    check(piece, cut.values, parts)


def test_what_is_no_tensor_cannot_be_given():
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    nodes = [
        helper.make_node("SequenceConstruct", ["x", "x"], ["s"], "make"),
        helper.make_node("ConcatFromSequence", ["s"], ["y"], "join", axis=0),
    ]
    graph = helper.make_graph(nodes, "g", [x], [y])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    cut = pieces(network_from_proto(proto), {"x": f32([1, 2])})
    with pytest.raises(CaseError, match="s is not a tensor"):
        cut.cut([part("join")])
    check(cut.cut([part("make", "join")]), cut.values, [part("make", "join")])


def test_what_a_part_gives_is_read_by_a_node_that_gives_it_negated():
    cut = pieces(network(), X)
    piece = cut.cut([part("b", "centre")], read=True)
    found = Session(normalise(piece.model.clone(), path=None, sha256="").model).run(piece.feed)
    assert found.keys() == {"centre_out::negated"}
    expected = -np.asarray(cut.values(["centre_out"])["centre_out"])
    assert relative_rms(expected, found["centre_out::negated"]) < 1e-6
