import numpy as np
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper

from halfwise.graph.naming import name_uniquely

F32 = TensorProto.FLOAT


def load(nodes, constants=()):
    x, y = (helper.make_tensor_value_info(n, F32, [4]) for n in "xy")
    flag = helper.make_tensor_value_info("flag", TensorProto.BOOL, [])
    graph = helper.make_graph(nodes, "g", [x, flag], [y], list(constants))
    opset = helper.make_opsetid("", 17)
    return ir.serde.deserialize_model(helper.make_model(graph, opset_imports=[opset], ir_version=8))


def body(op_type, scale):
    """A body with a node, a weight and values called as in any other body."""
    own = numpy_helper.from_array(np.full(4, scale, np.float32), "w")
    nodes = [
        helper.make_node(op_type, ["a", "w"], ["inner"], name="twin"),
        helper.make_node("Relu", ["inner"], ["out"], name="twin"),
    ]
    result = helper.make_tensor_value_info("out", F32, [4])
    return helper.make_graph(nodes, "body", [], [result], [own])


def test_nodes_that_have_a_name_of_their_own_keep_it():
    model = load(
        [
            helper.make_node("Relu", ["x"], ["a"], name="twin"),
            helper.make_node("Abs", ["a"], ["b"], name="twin"),
            helper.make_node("Neg", ["b"], ["c"]),
            helper.make_node("Exp", ["c"], ["y"], name="twin_1"),
        ]
    )
    former = name_uniquely(model)
    names = [n.name for n in model.graph]
    assert names[0] == "twin"
    assert len(set(names)) == 4
    # Only names that were taken before count as changed.
    assert [former.get(n, n) for n in names] == ["twin", "twin", "", "twin_1"]


def test_bodies_share_no_name_with_each_other_or_with_the_main_graph():
    model = load(
        [
            helper.make_node("Relu", ["x"], ["a"], name="twin"),
            helper.make_node(
                "If", ["flag"], ["b"], then_branch=body("Mul", 2.0), else_branch=body("Add", 3.0)
            ),
            helper.make_node("Neg", ["b"], ["y"], name="twin"),
        ]
    )
    name_uniquely(model)
    nodes = list(model.graph.all_nodes())
    assert len({n.name for n in nodes}) == len(nodes) == 7
    weights = {v.name: v for g in model.graph.subgraphs() for v in g.initializers.values()}
    outputs = {v.name for n in nodes for v in n.outputs}
    assert len(weights) == 2
    assert len(outputs) == 7
    assert not outputs & set(weights)
    # The bodies' own dictionaries follow.
    for graph in model.graph.subgraphs():
        assert [graph.initializers[name].name for name in graph.initializers] == list(
            graph.initializers
        )


def test_outputs_that_are_left_out_stay_so():
    model = load([helper.make_node("Dropout", ["x"], ["y", ""], name="drop")])
    assert name_uniquely(model) == {}
    assert not model.graph[0].outputs[1].name


def test_inputs_and_outputs_of_the_model_keep_their_names():
    inner = body("Mul", 2.0)
    inner.node[0].output[0] = inner.node[1].input[0] = "y"
    model = load(
        [
            helper.make_node("Relu", ["x"], ["a"]),
            helper.make_node("If", ["flag"], ["b"], then_branch=inner, else_branch=body("Add", 1)),
            helper.make_node("Neg", ["b"], ["y"]),
        ]
    )
    name_uniquely(model)
    assert [v.name for v in model.graph.inputs] == ["x", "flag"]
    assert [v.name for v in model.graph.outputs] == ["y"]
    inside = {v.name for g in model.graph.subgraphs() for n in g for v in n.outputs}
    assert not inside & {"x", "flag", "y"}
