import numpy as np
import pytest
from onnx import AttributeProto, TensorProto, helper, inliner, numpy_helper

from halfwise.emulation.ort import Session
from halfwise.errors import CaseError
from halfwise.graph.model import network_from_proto

ONNX = helper.make_opsetid("", 17)
MY = helper.make_opsetid("my", 1)
X = {"x": np.array([-2, -1, 1, 2], np.float32)}


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
    with pytest.raises(CaseError, match="my::R -> my::R"):
        loaded([function("R", call("R", "a", "b"))], call("R", "x", "y"))


def test_functions_that_expand_without_end_are_refused_before_they_are_expanded():
    doubling = [
        function(f"F{i}", call(f"F{i + 1}", "a", "c"), call(f"F{i + 1}", "c", "b"))
        for i in range(40)
    ]
    last = function("F40", helper.make_node("Neg", ["a"], ["b"]))
    with pytest.raises(CaseError, match=r"expand to 1,099,511,627,776 nodes; at most 1,000,000"):
        loaded([*doubling, last], call("F0", "x", "y"))


def test_functions_that_call_each_other_too_deep_are_refused():
    deep = [function(f"F{i}", call(f"F{i + 1}", "a", "b")) for i in range(300)]
    last = function("F300", helper.make_node("Neg", ["a"], ["b"]))
    with pytest.raises(CaseError, match="302 deep; at most 200"):
        loaded([*deep, last], call("F0", "x", "y"))


def test_a_function_of_another_opset_is_told_with_what_helps():
    old = function(
        "Old", helper.make_node("Neg", ["a"], ["b"]), opsets=[helper.make_opsetid("", 13)]
    )
    proto = model([old], call("Old", "x", "y"))
    with pytest.raises(CaseError, match=r"Function my::Old is written for version 13 .* uses 17"):
        network_from_proto(proto)
    converted = inliner.inline_local_functions(proto, convert_version=True)
    assert [n.op_type for n in network_from_proto(converted).nodes()] == ["Neg"]
    # One that nothing calls does no harm.
    assert len(named(loaded([old], helper.make_node("Neg", ["x"], ["y"], name="n")))) == 1
