"""The graph of a model in columns."""

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from halfwise.evidence.sources import Sources
from halfwise.evidence.structure import graph_of
from halfwise.graph.model import network_from_proto
from tests.unit.graph.sketch import Sketch


def told(network, own=()):
    return graph_of(network.model, own, Sources())


def test_columns_tell_what_reads_what() -> None:
    s = Sketch(17)
    x = s.input("x", ["n", 4])
    y = s.op("Mul", x, s.constant(np.ones(4, np.float32), "w"), name="/a/mul")
    z = s.op("Cast", y, name="cast", to=TensorProto.FLOAT16)
    graph = told(s.network(s.op("Neg", z, name="/b/neg")), {"/a/mul", "/b/neg"})
    assert graph.nodes == ("/a/mul", "cast", "/b/neg")
    assert graph.ops == ("Mul", "Cast", "Neg")
    names = [graph.tensors[i] for i in graph.reads[0]]
    assert names == ["x", "w"]
    assert graph.gives[0] == graph.reads[1]
    assert graph.added == (1,)
    assert [graph.scope_names[i] for i in graph.scopes] == ["a", "a", "b"]
    assert [graph.tensors[i] for i in graph.constants] == ["w"]
    assert graph.inputs == (graph.tensors.index("x"),)
    assert graph.outputs == graph.gives[2]
    kinds = {graph.tensors[i]: (graph.types[i], s) for i, s in enumerate(graph.shapes)}
    assert {n: (t, graph.shape_names[s]) for n, (t, s) in kinds.items()} == {
        "x": ("FLOAT", "n×4"),
        "w": ("FLOAT", "4"),
        "/a/mul_out": ("FLOAT", "n×4"),
        "cast_out": ("FLOAT16", "n×4"),
        "/b/neg_out": ("FLOAT16", "n×4"),
    }


def test_nodes_in_bodies_are_told_with_their_owner() -> None:
    value = helper.make_tensor_value_info
    one = numpy_helper.from_array(np.ones(1, np.float32), "one")
    bodies = [
        helper.make_graph(
            [helper.make_node(op, ["x", "one"], [f"y{op}"], name=op)],
            op,
            [],
            [value(f"y{op}", TensorProto.FLOAT, [1])],
            [one],
        )
        for op in ("Add", "Mul")
    ]
    branch = helper.make_node(
        "If", ["c"], ["z"], name="if", then_branch=bodies[0], else_branch=bodies[1]
    )
    graph = helper.make_graph(
        [branch],
        "g",
        [value("c", TensorProto.BOOL, []), value("x", TensorProto.FLOAT, [1])],
        [value("z", TensorProto.FLOAT, [1])],
    )
    opsets = [helper.make_opsetid("", 17)]
    found = told(network_from_proto(helper.make_model(graph, opset_imports=opsets)))
    assert found.nodes[0] == "if"
    assert set(found.nodes[1:]) == {"Add", "Mul"}
    assert found.bodies == {1: 0, 2: 0}
    assert found.reads[1][0] == found.inputs[1]
