import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from halfwise.emulation.ort import Session
from halfwise.formats import FP16
from halfwise.graph.casts import rewrite
from halfwise.graph.model import Network, network_from_proto
from halfwise.graph.roles import Role, float_io, roles_of
from halfwise.graph.widen import (
    LOW_TYPES,
    low_nodes,
    wide_tensor,
    wide_type,
    widen_attribute,
    widen_storage,
    widened,
)
from tests import graphs
from tests.unit.casing import names
from tests.unit.graph.sketch import Sketch, f32

HALF = TensorProto.FLOAT16


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
    wide, stored = widened(network)
    assert wide is network
    assert (stored.formats, stored.io, stored.islands) == ((), {}, names())


@pytest.mark.parametrize("low", [TensorProto.FLOAT16, TensorProto.BFLOAT16])
def test_storage_becomes_fp32_and_is_remembered(low):
    network = mixed(low=low)
    wide, stored = widened(network)
    assert [n.name for n in wide.nodes()] == ["scale", "softmax", "relu"]
    assert {v.dtype for v in tensors(wide).values()} == {ir.DataType.FLOAT}
    assert stored.formats == (LOW_TYPES[ir.DataType(low)],)
    assert stored.io == dict.fromkeys(("x", "relu_out"), ir.DataType(low))
    assert stored.islands == names("softmax")
    # The network that was given is as it was.
    assert tensors(network)["factor"].dtype == ir.DataType(low)
    assert low_nodes(network) == names("scale", "relu", "up", "down")


def test_weights_are_those_of_the_file_to_the_last_bit():
    wide, _ = widened(mixed())
    (factor,) = wide.graph.initializers.values()
    assert factor.const_value is not None
    array = factor.const_value.numpy()
    assert array.dtype == np.float32
    np.testing.assert_array_equal(array, np.full(4, np.float16(0.1), np.float32))


def test_without_a_low_compute_node_there_is_no_island():
    """Weights in FP16 that are widened before use, and an FP16 input: storage, not arithmetic."""
    sketch = Sketch()
    x = sketch.op("Cast", sketch.input("x", [2, 4], HALF), name="up", to=TensorProto.FLOAT)
    weight = sketch.constant(np.ones((4, 4), np.float16))
    product = sketch.op("MatMul", x, sketch.op("Cast", weight, name="w", to=1), name="m")
    wide, stored = widened(sketch.network(product))
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
    _, stored = widened(sketch.network(squared, sketch.op("Abs", shape, name="abs")))
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
    wide, _ = widened(sketch.network(normed))
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
    wide, _ = widened(sketch.network(y))
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
    assert wide_type(nested) == ir.SequenceType(ir.OptionalType(single))
    assert wide_type(ir.TensorType(ir.DataType.INT64)) == ir.TensorType(ir.DataType.INT64)
    assert wide_type(None) is None
    sketch = Sketch()
    x = sketch.input("x", [4, 2], HALF)
    parts = sketch.op("SplitToSequence", x, name="split", axis=0)
    none = sketch.op("SequenceEmpty", name="empty", dtype=HALF)
    one = sketch.op("SequenceInsert", none, sketch.op("SequenceAt", parts, [1]), name="insert")
    joined = sketch.op("ConcatFromSequence", one, name="join", axis=0)
    wide, _ = widened(sketch.network(sketch.op("Reshape", joined, [2], name="reshape")))
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
    wide, _ = widened(network_from_proto(proto))
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
    wide, _ = widened(network_from_proto(looping(HALF)))
    (loop,) = (n for n in wide.nodes() if n.op_type == "Loop")
    body = [n.name for n in loop.attributes["body"].as_graph()]
    # What the body gives out from outside needs a node that does so.
    assert [n for n in body if n != "identity"] == ["scale", "relu", "captured"]
    result = Session(wide.model).run({"x": f32([4, -4])})
    np.testing.assert_array_equal(result["y"], f32([1, 0]))
    np.testing.assert_array_equal(result["all"], f32([[-4, 4], [-4, 4]]))


def test_a_node_is_low_where_its_body_is():
    """An If from FP32 to FP32 whose bodies cast down and up: FP16 is in it all the same."""
    then, other = (
        helper.make_graph(
            [
                helper.make_node("Cast", ["x"], [f"{n}_low"], f"{n}_down", to=HALF),
                helper.make_node("Cast", [f"{n}_low"], [n], f"{n}_up", to=TensorProto.FLOAT),
            ],
            n,
            [],
            [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2])],
        )
        for n in ("then", "other")
    )
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [2]) for n in ("x", "y"))
    flag = helper.make_tensor_value_info("flag", TensorProto.BOOL, [])
    node = helper.make_node("If", ["flag"], ["y"], "if", then_branch=then, else_branch=other)
    graph = helper.make_graph([node], "g", [x, flag], [y])
    branching = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    branching.ir_version = 8
    assert low_nodes(network_from_proto(branching)) == names("if")


def test_names_of_outputs_stay_where_casts_go():
    """From a node the output takes its name over; from an input or another output it needs one."""
    sketch = Sketch()
    x = sketch.input("x", [4], HALF)
    relu = sketch.op("Relu", x, name="relu")
    first = sketch.op("Cast", relu, name="first", to=TensorProto.FLOAT)
    second = sketch.op("Cast", relu, name="second", to=TensorProto.FLOAT)
    copy = sketch.op("Cast", x, name="copy", to=TensorProto.FLOAT)
    network = sketch.network(first, second, copy)
    wide, stored = widened(network)
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
    wide, _ = widened(network_from_proto(proto))
    assert wide.original_names.keys() <= {n.name for n in wide.nodes()}


def test_widening_is_exact_for_every_number():
    bits = np.arange(2**16, dtype=np.uint16)
    for dtype in (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)):
        every = bits.view(dtype)
        every = every[~np.isnan(every.astype(np.float32))]
        model = ir.Model(ir.Graph([], [], nodes=[]), ir_version=10)
        value = ir.val("every", const_value=ir.tensor(every, name="every"))
        model.graph.register_initializer(value)
        widen_storage(model)
        assert value.const_value is not None
        wide = value.const_value.numpy()
        assert wide.dtype == np.float32
        np.testing.assert_array_equal(wide.astype(dtype), every)


@given(graphs.graphs(exact=True), st.data())
def test_a_rewritten_model_widened_is_the_original(drawn, data):
    """All-FP32 outputs are equal where weights are exact in FP16, and islands are what was kept."""
    network = network_from_proto(drawn.proto)
    constants = [v.const_value for g in network.graphs() for v in g.initializers.values()]
    arrays = [t.numpy() for t in constants if t is not None and t.dtype == ir.DataType.FLOAT]
    assume(all(np.array_equal(FP16.saturate(a), a) for a in arrays))
    roles = roles_of(network)
    plan = data.draw(graphs.plans(network))
    low_io = data.draw(st.sampled_from((frozenset(), float_io(network))))
    rewritten = rewrite(network, roles, plan, FP16, low_io=low_io)
    again = network_from_proto(ir.serde.serialize_model(rewritten.model))
    wide, stored = widened(again)
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
        widen_attribute(node, attribute)
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
    assert wide_tensor(whole) is whole
