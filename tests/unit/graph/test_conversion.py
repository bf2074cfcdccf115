from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from halfwise.emulation.ort import Session
from halfwise.errors import CaseError
from halfwise.fixing.rewrite import same
from halfwise.formats import FP16
from halfwise.graph.casts import fill_of, rewrite
from halfwise.graph.conversion import (
    gaining,
    low_nodes,
    raise_opset,
    upcast,
    upcast_attribute,
    upcast_storage,
    upcast_tensor,
    upcast_type,
)
from halfwise.graph.loading import network_from_proto
from halfwise.graph.model import Network
from halfwise.graph.roles import Role, float_io, roles_of
from halfwise.graph.weights import LOW_TYPES
from tests import models
from tests.graphs import Drawn, graphs, plans
from tests.unit.casing import names
from tests.unit.graph.sketch import Sketch, f32

HALF = TensorProto.FLOAT16
BF, F16, F32 = ir.DataType.BFLOAT16, ir.DataType.FLOAT16, TensorProto.FLOAT


def tensors(network: Network) -> dict[str, ir.Value]:
    found = {v.name or "": v for n in network.nodes() for v in n.outputs}
    found |= {v.name or "": v for v in network.graph.inputs}
    return found | dict(network.graph.initializers)


def mixed(*, island: bool = True, low: int = HALF) -> Network:
    """FP16 from end to end, with a Softmax in FP32 between two Casts."""
    sketch = Sketch()
    x = sketch.input("x", [2, 4], low)
    dtype = helper.tensor_dtype_to_np_dtype(low)
    scaled = sketch.op("Mul", x, sketch.constant(np.full(4, 0.1, dtype), "factor"), name="scale")
    if island:
        wide = sketch.op("Cast", scaled, name="up", to=TensorProto.FLOAT)
        soft = sketch.op("Softmax", wide, name="softmax")
        scaled = sketch.op("Cast", soft, name="down", to=low)
    return sketch.network(sketch.op("Relu", scaled, name="relu"))


def test_an_fp32_model_is_returned_as_it_is():
    sketch = Sketch()
    x = sketch.input("x", [4])
    same = sketch.op("Cast", x, name="nothing", to=TensorProto.FLOAT)
    network = sketch.network(sketch.op("Relu", same, name="relu"))
    wide, stored = upcast(network)
    assert wide is network
    assert (stored.formats, stored.io, stored.islands) == ((), {}, names())


@pytest.mark.parametrize("low", [TensorProto.FLOAT16, TensorProto.BFLOAT16])
def test_storage_becomes_fp32_and_is_remembered(low):
    network = mixed(low=low)
    wide, stored = upcast(network)
    assert [n.name for n in wide.nodes()] == ["scale", "softmax", "relu"]
    assert {v.dtype for v in tensors(wide).values()} == {ir.DataType.FLOAT}
    assert stored.formats == (LOW_TYPES[ir.DataType(low)],)
    assert stored.io == dict.fromkeys(("x", "relu_out"), ir.DataType(low))
    assert stored.islands == names("softmax")
    # The network that was given is as it was.
    assert tensors(network)["factor"].dtype == ir.DataType(low)
    assert low_nodes(network) == names("scale", "relu", "up", "down")


def test_weights_are_those_of_the_file_to_the_last_bit():
    wide, _ = upcast(mixed())
    (factor,) = wide.graph.initializers.values()
    assert factor.const_value is not None
    array = factor.const_value.numpy()
    assert array.dtype == np.float32
    np.testing.assert_array_equal(array, np.full(4, np.float16(0.1), np.float32))


def test_without_a_low_compute_node_there_is_no_island():
    """Weights in FP16 that are upcast before use, and an FP16 input: storage, not arithmetic."""
    sketch = Sketch()
    x = sketch.op("Cast", sketch.input("x", [2, 4], HALF), name="up", to=TensorProto.FLOAT)
    weight = sketch.constant(np.ones((4, 4), np.float16))
    product = sketch.op("MatMul", x, sketch.op("Cast", weight, name="w", to=1), name="m")
    wide, stored = upcast(sketch.network(product))
    assert stored.islands == names()
    assert [n.name for n in wide.nodes()] == ["m"]


def test_what_cannot_be_low_is_no_island():
    """At opset 17 there is no BF16 Conv; nodes without float tensors are none either."""
    sketch = Sketch()
    x = sketch.input("x", [1, 1, 4, 4], TensorProto.BFLOAT16)
    up = sketch.op("Cast", x, name="up", to=TensorProto.FLOAT)
    convolved = sketch.op("Conv", up, np.ones((1, 1, 1, 1), np.float32), name="conv")
    low = sketch.op("Cast", convolved, name="down", to=TensorProto.BFLOAT16)
    shape = sketch.op("Shape", low, name="shape")
    squared = sketch.op("Mul", low, low, name="square")
    _, stored = upcast(sketch.network(squared, sketch.op("Abs", shape, name="abs")))
    assert stored.islands == names()


def test_type_attributes_and_fills():
    sketch = Sketch()
    x = sketch.input("x", [2, 4], HALF)
    fill = numpy_helper.from_array(np.array([0.5], np.float16))
    filled = sketch.op("ConstantOfShape", sketch.op("Shape", x), name="fill", value=fill)
    counted = sketch.op("Cast", sketch.op("Shape", x), name="count", to=HALF)
    total = sketch.op("ReduceSum", counted, name="total", keepdims=0)
    added = sketch.op("Add", filled, total, name="add")
    scale = sketch.constant(np.ones(4, np.float16))
    normed = sketch.op("LayerNormalization", added, scale, name="norm", stash_type=10)
    wide, _ = upcast(sketch.network(normed))
    nodes = {n.name: n for n in wide.nodes()}
    assert nodes["fill"].attributes["value"].as_tensor().dtype == ir.DataType.FLOAT
    assert nodes["count"].attributes["to"].as_int() == TensorProto.FLOAT
    assert nodes["norm"].attributes["stash_type"].as_int() == TensorProto.FLOAT
    result = Session(wide.model).run({"x": np.zeros((2, 4), np.float32)})
    np.testing.assert_array_equal(result["norm_out"], np.zeros((2, 4), np.float32))


def test_fp64_stays():
    sketch = Sketch()
    x = sketch.input("x", [4], TensorProto.DOUBLE)
    low = sketch.op("Cast", x, name="low", to=HALF)
    y = sketch.op("Cast", sketch.op("Relu", low, name="relu"), name="up", to=TensorProto.DOUBLE)
    wide, _ = upcast(sketch.network(y))
    found = {name: v.dtype for name, v in tensors(wide).items()}
    assert found == {
        "x": ir.DataType.DOUBLE,
        "low_out": ir.DataType.FLOAT,
        "relu_out": ir.DataType.FLOAT,
        "up_out": ir.DataType.DOUBLE,
    }


def test_sequences_and_optionals():
    half, single = (ir.TensorType(t) for t in (ir.DataType.FLOAT16, ir.DataType.FLOAT))
    nested = ir.SequenceType(ir.OptionalType(half))
    assert upcast_type(nested) == ir.SequenceType(ir.OptionalType(single))
    assert upcast_type(ir.TensorType(ir.DataType.INT64)) == ir.TensorType(ir.DataType.INT64)
    assert upcast_type(None) is None
    sketch = Sketch()
    x = sketch.input("x", [4, 2], HALF)
    parts = sketch.op("SplitToSequence", x, name="split", axis=0)
    none = sketch.op("SequenceEmpty", name="empty", dtype=HALF)
    one = sketch.op("SequenceInsert", none, sketch.op("SequenceAt", parts, [1]), name="insert")
    joined = sketch.op("ConcatFromSequence", one, name="join", axis=0)
    wide, _ = upcast(sketch.network(sketch.op("Reshape", joined, [2], name="reshape")))
    result = Session(wide.model).run({"x": f32([[1, 2], [3, 4], [5, 6], [7, 8]])})
    np.testing.assert_array_equal(result["reshape_out"], f32([3, 4]))


def test_an_optional_types_attribute():
    optional = helper.make_optional_type_proto(helper.make_tensor_type_proto(HALF, [2]))
    node = helper.make_node("Optional", [], ["o"], type=optional.optional_type.elem_type, name="o")
    flag = helper.make_node("OptionalHasElement", ["o"], ["y"], name="has")
    x = helper.make_tensor_value_info("x", HALF, [2])
    y = helper.make_tensor_value_info("y", TensorProto.BOOL, [])
    graph = helper.make_graph([node, flag], "g", [x], [y])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    wide, _ = upcast(network_from_proto(proto))
    first = next(iter(wide.nodes()))
    assert first.attributes["type"].value.type == ir.TensorType(ir.DataType.FLOAT)


def looping(low: int) -> onnx.ModelProto:
    """y = relu applied twice to x / 2 in a Loop whose body casts up and down."""
    info = helper.make_tensor_value_info
    dtype = helper.tensor_dtype_to_np_dtype(low)
    body = helper.make_graph(
        [
            helper.make_node("Mul", ["state", "half"], ["scaled"], name="scale"),
            helper.make_node("Cast", ["scaled"], ["wide"], name="up", to=TensorProto.FLOAT),
            helper.make_node("Relu", ["wide"], ["positive"], name="relu"),
            helper.make_node("Cast", ["positive"], ["next"], name="down", to=low),
            helper.make_node("Cast", ["outer"], ["again"], name="captured", to=TensorProto.FLOAT),
            helper.make_node("Identity", ["go"], ["go_on"], name="identity"),
        ],
        "body",
        [
            info("i", TensorProto.INT64, []),
            info("go", TensorProto.BOOL, []),
            info("state", low, [2]),
        ],
        [
            info("go_on", TensorProto.BOOL, []),
            info("next", low, [2]),
            info("again", TensorProto.FLOAT, [2]),
        ],
        [numpy_helper.from_array(np.array(0.5, dtype), "half")],
    )
    nodes = [
        helper.make_node("Neg", ["x"], ["outer"], name="negate"),
        helper.make_node("Loop", ["times", "", "x"], ["y", "all"], name="loop", body=body),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [info("x", low, [2])],
        [info("y", low, [2]), info("all", TensorProto.FLOAT, [None, 2])],
        [numpy_helper.from_array(np.array(2), "times")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_bodies_are_widened_too():
    wide, _ = upcast(network_from_proto(looping(HALF)))
    (loop,) = (n for n in wide.nodes() if n.op_type == "Loop")
    body = [n.name for n in loop.attributes["body"].as_graph()]
    # What the body gives out from outside needs a node that does so.
    assert [n for n in body if n != "identity"] == ["scale", "relu", "captured"]
    result = Session(wide.model).run({"x": f32([4, -4])})
    np.testing.assert_array_equal(result["y"], f32([1, 0]))
    np.testing.assert_array_equal(result["all"], f32([[-4, 4], [-4, 4]]))


def branching(*steps: tuple[str, str, str, dict[str, Any]], low: int = F32) -> Network:
    """An If of FP32 on x whose branches are these nodes: operator, input, output, attributes."""
    branches = {
        f"{side}_branch": helper.make_graph(
            [
                helper.make_node(op, [read.format(side)], [made.format(side)], **attributes)
                for op, read, made, attributes in steps
            ],
            side,
            [],
            [helper.make_tensor_value_info(side, F32, None)],
        )
        for side in ("then", "else")
    }
    x = helper.make_tensor_value_info("x", low, [2])
    y = helper.make_tensor_value_info("y", F32, [2])
    flag = helper.make_tensor_value_info("flag", TensorProto.BOOL, [])
    node = helper.make_node("If", ["flag"], ["y"], "if", **branches)
    graph = helper.make_graph([node], "g", [x, flag], [y])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    proto.ir_version = 8
    return network_from_proto(proto)


def test_a_body_is_low_where_the_node_that_holds_it_is_not():
    """An If from FP32 to FP32 whose bodies cast down and up."""
    network = branching(
        ("Cast", "x", "{}_low", {"to": HALF}), ("Cast", "{}_low", "{}", {"to": F32})
    )
    low = low_nodes(network)
    assert len(low) == 4
    assert "if" not in low


def test_a_node_is_not_low_where_its_body_reads_only_the_shape_of_a_low_tensor():
    network = branching(
        ("Shape", "x", "{}_shape", {}), ("ConstantOfShape", "{}_shape", "{}", {}), low=HALF
    )
    assert low_nodes(network) == names()


def test_names_of_outputs_stay_where_casts_go():
    """From a node the output takes its name over; from an input or another output it needs one."""
    sketch = Sketch()
    x = sketch.input("x", [4], HALF)
    relu = sketch.op("Relu", x, name="relu")
    first = sketch.op("Cast", relu, name="first", to=TensorProto.FLOAT)
    second = sketch.op("Cast", relu, name="second", to=TensorProto.FLOAT)
    copy = sketch.op("Cast", x, name="copy", to=TensorProto.FLOAT)
    network = sketch.network(first, second, copy)
    wide, stored = upcast(network)
    assert [v.name for v in wide.graph.outputs] == [first, second, copy]
    assert [n.name for n in wide.nodes()] == ["relu", "second", "copy"]
    assert stored.io.keys() == {"x"}
    result = Session(wide.model).run({"x": f32([-1, 0, 1, 2])})
    np.testing.assert_array_equal(result[first], f32([0, 0, 1, 2]))
    np.testing.assert_array_equal(result[second], result[first])
    np.testing.assert_array_equal(result[copy], f32([-1, 0, 1, 2]))


def test_names_of_removed_casts_are_forgotten():
    network = mixed()
    proto = ir.serde.serialize_model(network.copy())
    for node in proto.graph.node:
        node.name = "same"
    wide, _ = upcast(network_from_proto(proto))
    assert wide.original_names.keys() <= {n.name for n in wide.nodes()}


def test_widening_is_exact_for_every_number():
    bits = np.arange(2**16, dtype=np.uint16)
    for dtype in (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)):
        every = bits.view(dtype)
        every = every[~np.isnan(every.astype(np.float32))]
        model = ir.Model(ir.Graph([], [], nodes=[]), ir_version=10)
        value = ir.val("every", const_value=ir.tensor(every, name="every"))
        model.graph.register_initializer(value)
        upcast_storage(model)
        assert value.const_value is not None
        wide = value.const_value.numpy()
        assert wide.dtype == np.float32
        np.testing.assert_array_equal(wide.astype(dtype), every)


@given(graphs(exact=True), st.data())
def test_a_rewritten_model_widened_is_the_original(drawn, data):
    """All-FP32 outputs are equal where weights are exact in FP16, and islands are what was kept."""
    network = network_from_proto(drawn.proto)
    constants = [v.const_value for g in network.graphs() for v in g.initializers.values()]
    nodes = network.model.graph.all_nodes()
    constants += [fill_of(n) for n in nodes if n.op_type == "ConstantOfShape"]
    arrays = [t.numpy() for t in constants if t is not None and t.dtype == ir.DataType.FLOAT]
    assume(all(np.array_equal(FP16.saturate(a), a) for a in arrays))
    roles = roles_of(network)
    plan = data.draw(plans(network))
    low_io = data.draw(st.sampled_from((frozenset(), float_io(network))))
    rewritten = rewrite(network, roles, plan, FP16, low_io=low_io)
    again = network_from_proto(ir.serde.serialize_model(rewritten.model))
    wide, stored = upcast(again)
    assert not any(v.dtype in LOW_TYPES for v in tensors(wide).values())
    computing = {n for n, role in roles.items() if role.role is Role.COMPUTE}
    assert stored.islands == (plan & computing if computing - plan else names())
    assert low_nodes(again) & computing == computing - plan
    before, after = (Session(n.model).run(drawn.sample) for n in (network, wide))
    assert before.keys() == after.keys()
    for name, expected in before.items():
        np.testing.assert_array_equal(after[name], expected)


def test_an_attribute_is_widened_where_it_is_an_element_type():
    half = int(ir.DataType.FLOAT16)
    attributes = [
        ir.AttrInt64("softmax_precision", half),
        ir.AttrInt64("axis", half),
        ir.AttrString("to", "float16"),
        ir.AttrInt64s("dtype", [half]),
        ir.AttrTensor("value", ir.tensor(np.array([0.1], np.float16))),
    ]
    node = ir.Node("com.example", "Swirl", [], attributes)
    for attribute in attributes:
        upcast_attribute(node, attribute)
    kept = {name: a.value for name, a in node.attributes.items()}
    value = kept.pop("value").numpy()
    assert value.dtype == np.float32
    assert value == np.float32(np.float16(0.1))
    assert kept == {
        "softmax_precision": int(ir.DataType.FLOAT),
        "axis": half,
        "to": "float16",
        "dtype": (half,),
    }


def test_tensors_of_other_types_stay_what_they_are():
    whole = ir.tensor(np.array([1, 2]))
    assert upcast_tensor(whole) is whole


def image(opset: int) -> Sketch:
    """A convolution with a large weight, and what changed between opsets 11 and 22."""
    s = Sketch(opset)
    x = s.input("x", ["n", 2, 8, 8])
    weight = models.weights(8, 2, 5, 5, seed=1, scale=0.1)
    c = s.op("Conv", x, s.constant(weight, "weight"), name="conv", pads=[2] * 4)
    m = s.op("ReduceMean", c, name="mean", axes=[2, 3], keepdims=0)
    s.op("Softmax", m, name="softmax", axis=1)
    return s


@pytest.mark.parametrize("opset", [11, 13, 17])
def test_names_constants_and_the_function_stay(opset) -> None:
    network = image(opset).network("softmax_out", "conv_out")
    network.graph.node("mean").metadata_props["line"] = "net.py:7"
    raised = raise_opset(network)
    assert raised.opset == 22
    assert raised.graph.node("mean").metadata_props == {"line": "net.py:7"}
    assert {n.name for n in raised.nodes()} >= {"conv", "mean", "softmax"}
    assert [v.name for v in raised.graph.inputs] == ["x"]
    assert [v.name for v in raised.graph.outputs] == ["softmax_out", "conv_out"]
    assert list(raised.graph.inputs[0].shape or ()) == list(network.graph.inputs[0].shape or ())
    weight = raised.graph.initializers["weight"]
    assert weight.const_value is network.graph.initializers["weight"].const_value
    assert raised.original_names == network.original_names
    assert raised.sha256 == network.sha256
    sample = {"x": models.signals(3, 2, 8, 8, seed=2, count=1)[0]}
    assert same(Session(network.model).run(sample), Session(raised.model).run(sample))
    onnx.checker.check_model(ir.serde.serialize_model(raised.model), full_check=True)


def test_renamed_operators_keep_their_names_and_those_of_their_outputs() -> None:
    s = Sketch(9)
    x, scales = s.input("x", [1, 2, 2, 2]), f32([1, 1, 2, 2])
    twice = s.op("Upsample", s.op("Upsample", x, scales, name="first"), scales, name="second")
    beside = s.op("Upsample", x, f32([1, 1, 8, 8]), name="beside")
    indices, updates = np.zeros((1, 2, 1, 1), np.int64), np.ones((1, 2, 1, 1), np.float32)
    scattered = s.op("Scatter", twice, indices, updates, name="scatter", axis=2)
    network = s.network(s.op("Relu", scattered, name="relu"), s.op("Neg", beside, name="neg"))
    raised = raise_opset(network)
    found = {n.name: (n.op_type, n.outputs[0].name) for n in raised.nodes()}
    assert found["first"] == ("Resize", "first_out")
    assert found["second"] == ("Resize", "second_out")
    assert found["beside"] == ("Resize", "beside_out")
    assert found["scatter"] == ("ScatterElements", "scatter_out")
    sample = {"x": models.signals(1, 2, 2, 2, seed=4, count=1)[0]}
    assert same(Session(network.model).run(sample), Session(raised.model).run(sample))


def test_a_node_that_is_replaced_by_something_else_is_told(monkeypatch) -> None:
    monkeypatch.setattr("halfwise.graph.conversion._SUCCESSORS", {})
    s = Sketch(9)
    x = s.input("x", [1, 1, 2, 2])
    network = s.network(s.op("Upsample", x, f32([1, 1, 2, 2]), name="up"))
    with pytest.raises(CaseError, match="replaces node up"):
        raise_opset(network)


def test_the_network_itself_is_not_changed() -> None:
    network = image(13).network("softmax_out")
    before = ir.serde.serialize_model(network.model).SerializeToString(deterministic=True)
    raise_opset(network)
    after = ir.serde.serialize_model(network.model).SerializeToString(deterministic=True)
    assert before == after


@given(graphs())
def test_any_graph_computes_the_same(drawn: Drawn) -> None:
    network = network_from_proto(drawn.proto)
    raised = raise_opset(network)
    assert {n.name for n in raised.nodes()} >= {n.name for n in network.nodes()}
    before = Session(network.model).run(drawn.sample)
    assert same(before, Session(raised.model).run(drawn.sample))


def test_bodies_are_raised_and_their_large_constants_stay() -> None:
    weight = numpy_helper.from_array(models.weights(32, 32, seed=3, scale=0.2), "inside")
    info = helper.make_tensor_value_info
    then = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "inside"], ["t"], name="product"),
            helper.make_node("ReduceMean", ["t"], ["a"], name="mean", axes=[1]),
        ],
        *("then", [], [info("a", F32, [1, 1])], [weight]),
    )
    other = helper.make_graph(
        [helper.make_node("ReduceMax", ["x"], ["b"], name="largest", axes=[1])],
        *("else", [], [info("b", F32, [1, 1])]),
    )
    nodes = [
        helper.make_node("If", ["flag"], ["c"], name="if", then_branch=then, else_branch=other),
        helper.make_node("Sin", ["c"], ["y"], name="sine"),
    ]
    inputs = [info("x", F32, [1, 32]), info("flag", TensorProto.BOOL, [])]
    graph = helper.make_graph(nodes, "g", inputs, [info("y", F32, [1, 1])])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    network = network_from_proto(proto)
    raised = raise_opset(network)
    for flag in (True, False):
        sample = {"x": models.signals(1, 32, seed=4, count=1)[0], "flag": np.array(flag)}
        assert same(Session(network.model).run(sample), Session(raised.model).run(sample))


def test_operators_of_other_domains_keep_their_types() -> None:
    proto = image(17).proto("softmax_out")
    custom = helper.make_node("Foo", ["softmax_out"], ["z"], name="foo", domain="com.example")
    proto.graph.node.append(custom)
    proto.graph.output.append(helper.make_tensor_value_info("z", F32, ["n", 8]))
    proto.opset_import.append(helper.make_opsetid("com.example", 3))
    raised = raise_opset(network_from_proto(proto))
    assert raised.model.opset_imports == {"": 22, "com.example": 3}
    assert raised.graph.outputs[1].dtype is ir.DataType.FLOAT


def test_a_model_gains_where_its_operators_take_bf16_only_later() -> None:
    network = image(17).network("softmax_out")
    assert gaining(network) == ("Conv",)
    assert gaining(raise_opset(network)) == ()
    assert gaining(network_from_proto(models.layer_norm().proto)) == ()


def test_below_opset_13_nothing_can_be_cast_to_bf16() -> None:
    assert gaining(image(11).network("softmax_out")) == ("Conv", "ReduceMean", "Softmax")


def test_an_operator_that_is_gone_at_the_later_opset() -> None:
    s = Sketch(9)
    y = s.op("Upsample", s.input("x", [1, 1, 2, 2]), f32([1, 1, 2, 2]), name="up")
    network = s.network(y)
    assert "Upsample" not in gaining(network)
    raised = raise_opset(network)
    sample = {"x": f32(np.arange(4)).reshape(1, 1, 2, 2)}
    assert same(Session(network.model).run(sample), Session(raised.model).run(sample))


def test_what_the_converter_has_no_adapter_for_is_refused() -> None:
    s = Sketch(8)
    ones = s.constant(np.ones(2, np.float32), "ones")
    x = s.input("x", [1, 2, 4])
    y = s.op("BatchNormalization", x, *[ones] * 4, name="norm", spatial=0)
    with pytest.raises(CaseError, match="from opset 8 to 22"):
        raise_opset(s.network(y))
