import numpy as np
import onnx_ir as ir
import pytest
from onnx import AttributeProto, TensorProto, helper, inliner, numpy_helper

from halfwise.emulation.ort import Session
from halfwise.emulation.switched import SWITCH_INPUT, emulate_switched
from halfwise.emulation.typed import emulate_typed
from halfwise.errors import CaseError
from halfwise.formats import FP16
from halfwise.graph.casts import rewrite
from halfwise.graph.conversion import upcast
from halfwise.graph.intake import name_uniquely
from halfwise.graph.loading import network_from_proto
from halfwise.graph.model import Network
from halfwise.graph.roles import roles_of
from tests import control
from tests.unit.graph.sketch import Sketch, f32

ONNX = helper.make_opsetid("", 17)
MY = helper.make_opsetid("my", 1)
X = {"x": np.array([-2, -1, 1, 2], np.float32)}
F32 = TensorProto.FLOAT


def call(op, source, target, name="", **attributes):
    return helper.make_node(op, [source], [target], name=name, domain="my", **attributes)


def function(name, *nodes, opsets=(ONNX, MY), **more):
    """Return a function from `a` to `b`."""
    return helper.make_function("my", name, ["a"], ["b"], nodes, opsets, **more)


def leaky(**more):
    node = helper.make_node("LeakyRelu", ["a"], ["b"], name="leak")
    alpha = AttributeProto(name="alpha", ref_attr_name="alpha", type=AttributeProto.FLOAT)
    node.attribute.append(alpha)
    return function("Leaky", node, **more)


def model(functions, *nodes):
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:])
    return helper.make_model(graph, functions=functions, opset_imports=[ONNX, MY], ir_version=10)


def loaded(functions, *nodes):
    return network_from_proto(model(functions, *nodes))


def named(network):
    return [n.name for n in network.model.graph.all_nodes()]


def test_names_tell_the_calls_that_lead_there():
    inner = function("Inner", helper.make_node("Neg", ["a"], ["b"], name="neg"))
    outer = function("Outer", call("Inner", "a", "h", "one"), call("Inner", "h", "b", "two"))
    calls = (call("Outer", "x", "h", "/enc/0"), call("Outer", "h", "y", "/enc/1"))
    network = loaded([inner, outer], *calls)
    expected = [f"/enc/{i}/{name}/neg" for i in (0, 1) for name in ("one", "two")]
    assert named(network) == expected
    assert network.original_names == {}
    assert all(not node.metadata_props for node in network.nodes())


def test_types_stand_in_for_missing_names():
    inner = function("Inner", helper.make_node("Neg", ["a"], ["b"]))
    network = loaded([inner], call("Inner", "x", "h"), call("Inner", "h", "y"))
    assert named(network) == ["Inner/Neg", "Inner/Neg_1"]


def test_attributes_and_their_defaults():
    default = leaky(attribute_protos=[helper.make_attribute("alpha", 0.25)])
    network = loaded([default], call("Leaky", "x", "h", "d"), call("Leaky", "h", "y", alpha=0.5))
    assert [n.attributes["alpha"].as_float() for n in network.nodes()] == [0.25, 0.5]
    given = loaded([leaky(attributes=["alpha"])], call("Leaky", "x", "y", "g", alpha=0.5))
    np.testing.assert_array_equal(Session(given.model).run(X)["y"], [-1, -0.5, 1, 2])


def test_overloads():
    functions = [
        function("F", helper.make_node(op, ["a"], ["b"], name=op.lower()), overload=op)
        for op in ("Neg", "Abs")
    ]
    calls = [call("F", "x", "h", "first"), call("F", "h", "y", "second")]
    calls[0].overload, calls[1].overload = "Abs", "Neg"
    assert named(loaded(functions, *calls)) == ["first/abs", "second/neg"]


def test_calls_in_bodies():
    inner = function("Inner", helper.make_node("Neg", ["a"], ["b"], name="neg"))
    bodies = {}
    for branch, node in (
        ("then_branch", call("Inner", "a", "t", "inside")),
        ("else_branch", helper.make_node("Abs", ["a"], ["t"], name="abs")),
    ):
        end = helper.make_tensor_value_info("t", TensorProto.FLOAT, [4])
        bodies[branch] = helper.make_graph([node], branch, [], [end])
    true = numpy_helper.from_array(np.array(True))
    outer = function(
        "Outer",
        helper.make_node("Constant", [], ["c"], value=true, name="c"),
        helper.make_node("If", ["c"], ["b"], name="if", **bodies),
    )
    network = loaded([inner, outer], call("Outer", "x", "y", "top"))
    assert set(named(network)) == {"top/if", "top/inside/neg", "top/abs"}
    np.testing.assert_array_equal(Session(network.model).run(X)["y"], -X["x"])


def test_the_models_function_comes_before_an_operator_of_onnx_runtime():
    opset = helper.make_opsetid("com.microsoft", 1)
    square = helper.make_node("Mul", ["a", "a"], ["b"], name="square")
    proto = model(
        [helper.make_function("com.microsoft", "Gelu", ["a"], ["b"], [square], [ONNX])],
        helper.make_node("Gelu", ["x"], ["y"], name="gelu", domain="com.microsoft"),
    )
    proto.opset_import.append(opset)
    network = network_from_proto(proto)
    assert named(network) == ["gelu/square"]
    np.testing.assert_array_equal(Session(network.model).run(X)["y"], X["x"] ** 2)


def test_a_function_that_calls_itself():
    with pytest.raises(CaseError, match=r"my::R.* -> my::R"):
        loaded([function("R", call("R", "a", "b"))], call("R", "x", "y"))


def test_functions_that_expand_without_end_are_refused_before_they_are_expanded():
    doubling = [
        function(f"F{i}", call(f"F{i + 1}", "a", "c"), call(f"F{i + 1}", "c", "b"))
        for i in range(40)
    ]
    last = function("F40", helper.make_node("Neg", ["a"], ["b"]))
    with pytest.raises(
        CaseError, match=r"expand to 1,099,511,627,776 nodes; the limit is 1,000,000"
    ):
        loaded([*doubling, last], call("F0", "x", "y"))


def test_a_function_of_another_opset_is_told_with_what_helps():
    old = function(
        "Old", helper.make_node("Neg", ["a"], ["b"]), opsets=[helper.make_opsetid("", 13)]
    )
    proto = model([old], call("Old", "x", "y"))
    with pytest.raises(CaseError, match=r"Function my::Old .* version 13 .* uses version 17"):
        network_from_proto(proto)
    converted = inliner.inline_local_functions(proto, convert_version=True)
    assert [n.op_type for n in network_from_proto(converted).nodes()] == ["Neg"]
    # One that nothing calls does no harm.
    assert len(named(loaded([old], helper.make_node("Neg", ["x"], ["y"], name="n")))) == 1


def positions(opset: int = 17, **attributes: int) -> Sketch:
    """Integers in the type of activations, as exporters of positional codes write it."""
    s = Sketch(opset)
    x, ids = s.input("x", [2, 4]), s.input("ids", [2, 4], TensorProto.INT64)
    like = s.op("CastLike", ids, s.op("Relu", x, name="relu"), name="like", **attributes)
    s.op("Mul", like, 1e-4, name="scale")
    return s


def node_called(network: Network, name: str) -> ir.Node:
    return next(n for n in network.model.graph.all_nodes() if n.name == name)


def cast_type(network: Network, name: str) -> ir.DataType:
    node = node_called(network, name)
    assert node.op_type == "Cast"
    assert len(node.inputs) == 1
    return ir.DataType(node.attributes["to"].as_int())


@pytest.mark.parametrize(("opset", "attributes"), [(15, {}), (19, {"saturate": 0}), (25, {})])
def test_a_cast_with_the_same_names_and_attributes(opset, attributes) -> None:
    network = positions(opset, **attributes).network("scale_out")
    assert cast_type(network, "like") == ir.DataType.FLOAT
    node = node_called(network, "like")
    assert {k: a.value for k, a in node.attributes.items()} == {"to": 1, **attributes}
    assert node.outputs[0].name == "like_out"


def test_a_constant_that_only_gave_the_type_goes() -> None:
    s = Sketch()
    ids = s.input("ids", [4], TensorProto.INT64)
    network = s.network(s.op("CastLike", ids, f32([0.0]), name="like"))
    assert cast_type(network, "like") == ir.DataType.FLOAT
    assert not network.graph.initializers


def test_integers_beyond_the_range_are_infinite_in_both_emulations() -> None:
    network = positions().network("scale_out")
    sample = {"x": f32(np.ones((2, 4))), "ids": np.full((2, 4), 70_000)}
    roles = roles_of(network)
    switched = emulate_switched(network, roles, FP16)
    feed = {**sample, SWITCH_INPUT: switched.switches.switch(frozenset())}
    assert np.isinf(Session(switched.model).run(feed)["scale_out"]).all()
    mixed = rewrite(network, roles, frozenset(), FP16).model
    assert np.isinf(Session(emulate_typed(mixed)).run(sample)["scale_out"]).all()


def test_an_export_rounds_where_it_casts() -> None:
    s = Sketch()
    x, ids = s.input("x", [2, 4], TensorProto.FLOAT16), s.input("ids", [2, 4], TensorProto.INT64)
    network = s.network(s.op("CastLike", ids, x, name="like"))
    assert cast_type(network, "like") == ir.DataType.FLOAT16
    wide, _ = upcast(network)
    assert cast_type(wide, "like") == ir.DataType.FLOAT
    sample = {"x": f32(np.ones((2, 4))), "ids": np.full((2, 4), 70_000)}
    assert np.isinf(Session(emulate_typed(network.model)).run(sample)["like_out"]).all()


def test_bodies_have_casts_too() -> None:
    s = Sketch()
    s.input("x", [2, 4])
    flag, ids = s.input("flag", [], TensorProto.BOOL), s.input("ids", [2, 4], TensorProto.INT64)
    nodes = [helper.make_node("CastLike", [ids, "x"], ["inside"], "like")]
    body = control.graph("body", nodes, (), [("inside", control.MATRIX)])
    branches = {"then_branch": body, "else_branch": body}
    s.nodes.append(helper.make_node("If", [flag], ["chosen"], "choose", **branches))
    network = s.network(s.op("Neg", "chosen", name="neg"))
    assert all(n.op_type != "CastLike" for n in network.model.graph.all_nodes())


def test_a_type_that_an_operator_of_onnx_runtime_gives() -> None:
    info = helper.make_tensor_value_info
    nodes = [
        helper.make_node("QuickGelu", ["x"], ["g"], "gelu", domain="com.microsoft"),
        helper.make_node("CastLike", ["ids", "g"], ["f"], "like"),
        helper.make_node("Mul", ["f", "x"], ["y"], "scale"),
    ]
    inputs = [info("x", TensorProto.FLOAT, [4]), info("ids", TensorProto.INT64, [4])]
    graph = helper.make_graph(nodes, "g", inputs, [info("y", TensorProto.FLOAT, [4])])
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    proto = helper.make_model(graph, opset_imports=imports, ir_version=8)
    network = network_from_proto(proto)
    assert cast_type(network, "like") == ir.DataType.FLOAT


def model_constants(*constants, name="used"):
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [600]) for n in "xy")
    add = helper.make_node("Add", ["x", name], ["y"], "add")
    graph = helper.make_graph([add], "g", [x], [y], list(constants))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def large(name):
    return numpy_helper.from_array(np.ones(600, np.float32), name)


def test_a_large_constant_that_nobody_reads_is_dropped_and_the_model_runs():
    """Silero's VAD for opset 18 has one; its array was handed to ONNX Runtime in vain."""
    network = network_from_proto(model_constants(large("used"), large("unused")))
    assert list(network.graph.initializers) == ["used"]
    x = np.zeros(600, np.float32)
    assert Session(network.model).run({"x": x})["y"].tolist() == [1.0] * 600


def test_a_constant_that_is_an_output_or_read_in_a_body_stays():
    outer = large("outer")
    body = helper.make_graph(
        [helper.make_node("Identity", ["outer"], ["inner"])],
        "body",
        [],
        [helper.make_tensor_value_info("inner", TensorProto.FLOAT, [600])],
    )
    proto = model_constants(large("used"), outer, large("given"))
    branch = helper.make_node("If", ["yes"], ["z"], "if", then_branch=body, else_branch=body)
    proto.graph.initializer.append(numpy_helper.from_array(np.array(True), "yes"))
    proto.graph.node.append(branch)
    for output in ("z", "given"):
        info = helper.make_tensor_value_info(output, TensorProto.FLOAT, [600])
        proto.graph.output.append(info)
    kept = set(network_from_proto(proto).graph.initializers)
    assert kept == {"used", "outer", "given", "yes"}


def test_incomplete_data_is_told_by_name():
    short = large("used")
    short.raw_data = short.raw_data[:-4]
    with pytest.raises(CaseError, match="'used' is incomplete"):
        network_from_proto(model_constants(short))


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
