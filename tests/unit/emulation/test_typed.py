import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from halfwise.emulation.ort import Session
from halfwise.emulation.switched import SWITCH_INPUT, emulate_switched
from halfwise.emulation.typed import (
    TF32_PRECISION,
    emulate_tf32,
    emulate_typed,
    round_tf32,
    tf32_nodes,
)
from halfwise.formats import BF16, FP16
from halfwise.graph.casts import low_type, rewrite
from halfwise.graph.loading import load_network, network_from_proto
from halfwise.graph.model import Network
from halfwise.graph.roles import roles_of
from halfwise.graph.weights import LowWeights
from halfwise.records import NodeName
from tests import control, models
from tests.control import GO, MATRIX, STEP
from tests.graphs import OPSETS, Drawn, graphs, low_ends, plans
from tests.unit.graph.qdq import chain, last
from tests.unit.graph.sketch import Sketch, f32

F16, BF, F32 = TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.FLOAT
LOW = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
X = np.array([[0.1, -1.3, 300.7, 1e-6], [7e4, 2049.0, -0.0, 1 / 3]], np.float32)


def node(op_type, inputs, outputs, name="", **attributes):
    return helper.make_node(op_type, inputs.split(), outputs.split(), name=name, **attributes)


def info(name, dtype, shape=(2, 4)):
    return helper.make_tensor_value_info(name, dtype, shape)


def low(name, array, dtype=np.float16):
    return numpy_helper.from_array(np.asarray(array, np.float32).astype(dtype), name)


def emulation(nodes, dtype, constants=(), *, inputs=None, outputs=None, opset=17, **options):
    """Return the emulation of a model that is low from end to end."""
    graph = helper.make_graph(
        nodes, "g", inputs or [info("x", dtype)], outputs or [info("y", dtype)], list(constants)
    )
    imports = [helper.make_opsetid("", opset)]
    proto = helper.make_model(graph, opset_imports=imports, ir_version=8)
    return emulate_typed(network_from_proto(proto).model, **options)


def run(model, **sample):
    return Session(model).run(sample or {"x": X})["y"]


def f16(array):
    return FP16.round(np.asarray(array, np.float32))


# --- against another runtime ------------------------------------------------------------------


@given(graphs(exact=True), st.data())
def test_onnx_runtime_and_the_reference_evaluator_agree(drawn: Drawn, data):
    net = network_from_proto(drawn.proto)
    low_io = data.draw(low_ends(net))
    rewritten = rewrite(net, roles_of(net), data.draw(plans(net)), FP16, low_io=low_io)
    expansion = emulate_typed(rewritten.model)
    results = Session(expansion).run(drawn.sample)
    # Runtimes differ in what Max or ArgMax make of NaN.
    assume(all(np.isfinite(v).all() for v in results.values()))
    reference = ReferenceEvaluator(ir.serde.serialize_model(expansion))
    # What a Min or a Where leaves out warns there, an overflow or a difference of infinities.
    with np.errstate(over="ignore", invalid="ignore"):
        expected = reference.run(list(results), drawn.sample)
    for (name, result), array in zip(results.items(), expected, strict=True):
        assert result.dtype == array.dtype
        np.testing.assert_allclose(
            np.asarray(result, np.float64), array, rtol=1e-5, atol=1e-7, err_msg=name
        )


@pytest.mark.parametrize("fmt", [FP16, BF16])
@given(graphs(opsets=[o for o in OPSETS if o >= 13]), st.data())
def test_only_cast_pairs_hold_low_values(fmt, drawn: Drawn, data):
    net = network_from_proto(drawn.proto)
    roles = roles_of(net, low_type(fmt))
    low_io = data.draw(low_ends(net))
    rewritten = rewrite(net, roles, data.draw(plans(net)), fmt, low_io=low_io).model
    before = ir.serde.serialize_model(rewritten).SerializeToString(deterministic=True)
    result = emulate_typed(rewritten)
    for n in result.graph.all_nodes():
        for value in n.outputs:
            if value.dtype in LOW:
                assert n.op_type == "Cast"
                assert [u.node.op_type for u in value.uses()] == ["Cast"]
    assert [v.name for v in result.graph.inputs] == [v.name for v in net.graph.inputs]
    assert [v.name for v in result.graph.outputs] == [v.name for v in net.graph.outputs]
    assert not any(v.dtype in LOW for v in (*result.graph.inputs, *result.graph.outputs))
    onnx.checker.check_model(ir.serde.serialize_model(result), full_check=True)
    after = ir.serde.serialize_model(rewritten).SerializeToString(deterministic=True)
    assert after == before


# --- plain low exports ------------------------------------------------------------------------


def test_every_tensor_of_an_fp16_export_is_rounded():
    w = np.array([0.1, 0.7, 1e-7, 3.0])
    model = emulation(
        [node("Mul", "x w", "h"), node("Exp", "h", "e"), node("Neg", "e", "y")], F16, [low("w", w)]
    )
    with np.errstate(over="ignore", invalid="ignore"):
        # x itself, then x·w, then its exponential: each is stored in FP16.
        h = f16(f16(X) * f16(w))
        expected = -f16(np.exp(h))
    result = run(model)
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, expected, rtol=2**-10)
    np.testing.assert_array_equal(result, f16(result))
    assert np.isinf(result[1, 0])


@pytest.mark.parametrize(("dtype", "fmt"), [(F16, FP16), (BF, BF16)])
def test_inputs_and_outputs_are_rounded(dtype, fmt):
    result = run(emulation([node("Identity", "x", "y")], dtype))
    np.testing.assert_array_equal(result, fmt.round(X))
    third = run(emulation([node("Mul", "x w", "y")], dtype, [low("w", [1 / 3], fmt.dtype)]))
    weight = fmt.round(np.array([1 / 3], np.float32))
    np.testing.assert_array_equal(third, fmt.round(fmt.round(X) * weight))


def branch(name, op_type):
    constant = numpy_helper.from_array(np.array([0.1], np.float16))
    nodes = [
        node("Constant", "", f"{name}_c", value=constant),
        node(op_type, f"h {name}_c", f"{name}_a"),
        node("Mul", f"{name}_a w", f"{name}_o"),
    ]
    return helper.make_graph(nodes, name, [], [info(f"{name}_o", F16)])


@pytest.mark.parametrize("flag", [True, False])
def test_bodies_of_an_if_are_rounded_node_by_node(flag):
    choose = node(
        *("If", "flag", "r"),
        then_branch=branch("yes", "Add"),
        else_branch=branch("no", "Sub"),
    )
    model = emulation(
        [node("Abs", "x", "h"), choose, node("Neg", "r", "y")],
        F16,
        [low("w", [0.3])],
        inputs=[info("x", F16), info("flag", TensorProto.BOOL, ())],
    )
    h = f16(np.abs(f16(X)))
    constant = np.float32(np.float16(0.1))
    inner = f16(h + constant if flag else h - constant)
    expected = -f16(inner * np.float32(np.float16(0.3)))
    np.testing.assert_array_equal(run(model, x=X, flag=np.array(flag)), expected)


def test_the_state_of_a_loop_is_rounded_every_time():
    body = helper.make_graph(
        [node("Add", "total x", "sum"), node("Identity", "go", "go_on")],
        "body",
        [
            info("i", TensorProto.INT64, ()),
            info("go", TensorProto.BOOL, ()),
            info("total", F16),
        ],
        [info("go_on", TensorProto.BOOL, ()), info("sum", F16)],
    )
    trips = numpy_helper.from_array(np.array(100), "trips")
    loop = helper.make_node("Loop", ["trips", "", "start"], ["y"], body=body)
    model = emulation([loop], F16, [trips, low("start", np.zeros((2, 4)))])
    step, expected = f16(X), np.zeros((2, 4), np.float32)
    for _ in range(100):
        with np.errstate(over="ignore", invalid="ignore"):
            expected = f16(expected + step)
    np.testing.assert_array_equal(run(model), expected)


def test_low_values_in_sequences_and_optionals_become_fp32_ones():
    held = onnx.helper.make_optional_type_proto(helper.make_tensor_type_proto(F16, None))
    nodes = [
        node("SequenceEmpty", "", "none", dtype=F16),
        node("Mul", "x x", "square"),
        node("SequenceInsert", "none square", "list"),
        node("SequenceAt", "list zero", "first"),
        node("Optional", "first", "maybe"),
        node("OptionalGetElement", "maybe", "there"),
        node("Optional", "", "nothing", type=held.optional_type.elem_type),
        node("OptionalHasElement", "nothing", "has"),
        node("Where", "has x there", "y"),
    ]
    zero = numpy_helper.from_array(np.array(0), "zero")
    with np.errstate(over="ignore", invalid="ignore"):
        expected = f16(f16(X) * f16(X))
    np.testing.assert_array_equal(run(emulation(nodes, F16, [zero])), expected)


def test_mixed_models_round_where_their_casts_say():
    # FP32 → FP16 → FP32 in the user's own model, and FP32 elsewhere.
    nodes = [
        node("Mul", "x x", "a"),
        node("Cast", "a", "b", to=F16),
        node("Cast", "b", "c", to=F32),
        node("Mul", "c x", "y"),
    ]
    model = emulation(nodes, F32)
    x = X[0]
    result = run(model, x=np.stack([x, x]))
    np.testing.assert_array_equal(result[0], f16(x * x) * x)


def test_a_cast_between_two_low_types_rounds_to_both():
    nodes = [node("Cast", "x", "a", to=BF), node("Cast", "a", "y", to=F32)]
    model = emulation(nodes, F16, outputs=[info("y", F32)])
    np.testing.assert_array_equal(run(model), BF16.round(FP16.round(X)))


@pytest.mark.parametrize("opset", [10, 17])
def test_the_value_that_pad_adds_is_rounded(opset):
    if opset == 10:
        nodes, constants = [node("Pad", "x", "y", pads=[0, 0, 0, 1], value=0.1)], []
    else:
        nodes = [node("Pad", "x pads value", "y")]
        constants = [numpy_helper.from_array(np.array([0, 0, 0, 1]), "pads"), low("value", 0.1)]
    model = emulation(nodes, F16, constants, outputs=[info("y", F16, (2, 5))], opset=opset)
    expected = np.pad(f16(X), ((0, 0), (0, 1)), constant_values=np.float32(np.float16(0.1)))
    np.testing.assert_array_equal(run(model), expected)


def test_attributes_of_low_types_are_widened():
    fill = numpy_helper.from_array(np.array([0.1], np.float16))
    nodes = [
        node("Shape", "x", "s"),
        node("ConstantOfShape", "s", "c", value=fill),
        node("Add", "x c", "y"),
    ]
    expected = f16(f16(X) + np.float32(np.float16(0.1)))
    np.testing.assert_array_equal(run(emulation(nodes, F16)), expected)


def test_sums_are_low_only_if_asked_for_and_only_in_low_nodes():
    ones = np.ones((1, 4096), np.float32)
    weight = np.full((4096, 1), np.float16(0.1), np.float32)
    results = {}
    for dtype, stored in ((F16, np.float16), (F32, np.float32), (BF, ml_dtypes.bfloat16)):
        for accumulate in ("fp32", "fp16"):
            model = emulation(
                [node("MatMul", "x w", "y")],
                dtype,
                [low("w", weight, stored)],
                inputs=[info("x", dtype, (1, 4096))],
                outputs=[info("y", dtype, (1, 1))],
                accumulate=accumulate,
            )
            results[dtype, accumulate] = run(model, x=ones)[0, 0]
    assert results[F32, "fp16"] == results[F32, "fp32"]
    # No tensor core adds up in BF16.
    assert results[BF, "fp16"] == results[BF, "fp32"]
    assert results[F16, "fp32"] == f16(results[F32, "fp32"])
    # At 256 the spacing is 1/4: sums of 16 terms (1.6) go in as 1.5.
    assert results[F16, "fp16"] < results[F16, "fp32"] - 5


def test_a_custom_operator_is_no_data_movement_whatever_its_name():
    nodes = [
        helper.make_node("Identity", ["x"], ["h"], "own", domain="com.example", to="float16"),
        node("Neg", "h", "y"),
    ]
    graph = helper.make_graph(nodes, "g", [info("x", F16)], [info("y", F16)])
    graph.value_info.append(info("h", F16))
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.example", 1)]
    proto = helper.make_model(graph, opset_imports=imports, ir_version=8)
    result = emulate_typed(network_from_proto(proto).model)
    # It computes, so what it gives is rounded: its own h, and a Cast pair behind it.
    assert "h::raw" in {v.name for n in result.graph for v in n.outputs}


def test_a_graph_without_nodes_stays_as_it_is():
    constant = low("y", np.full((2, 4), 0.1), ml_dtypes.bfloat16)
    model = emulation([], BF, [constant])
    np.testing.assert_array_equal(run(model), np.float32(ml_dtypes.bfloat16(0.1)))


# --- large models -----------------------------------------------------------------------------


@pytest.mark.parametrize("accumulate", ["fp32", "fp16"])
@pytest.mark.parametrize("kept", [(), ("up", "relu", "down")])
def test_low_weights_of_large_models_stay_low_and_give_the_same(tmp_path, kept, accumulate):
    ill = models.large_weights()
    net = load_network(models.saved_beside(ill, tmp_path))
    weights = LowWeights(net.model, FP16, large_from=0)
    mixed = rewrite(net, roles_of(net), frozenset(kept), FP16, weights=weights).model
    large = emulate_typed(mixed, accumulate=accumulate, late=True)
    small = emulate_typed(mixed, accumulate=accumulate)
    low = [v.name for v in large.graph.initializers.values() if v.dtype == ir.DataType.FLOAT16]
    assert low == [n for n in ("up_w", "down_w", "out_w") if n.removesuffix("_w") not in kept]
    assert all(v.dtype != ir.DataType.FLOAT16 for v in small.graph.initializers.values())
    # ONNX Runtime runs what is written first last: each just before its reader.
    first = list(large.graph)[: len(low)]
    assert {v.name for n in first for v in n.inputs if v is not None} == set(low)
    found, expected = (Session(m).run(ill.sample(0)) for m in (large, small))
    assert found["out_out"].tobytes() == expected["out_out"].tobytes()


@pytest.mark.parametrize("flag", [True, False])
def test_low_weights_in_bodies_of_large_models_too(tmp_path, flag):
    proto = models.two_bodies().proto
    for attribute in proto.graph.node[0].attribute:
        weight = attribute.g.initializer[0]
        array = numpy_helper.to_array(weight) / 7
        attribute.g.initializer[0].CopyFrom(low("weight", array))
        attribute.g.node.insert(0, node("Cast", "weight", "wide", f"cast_{attribute.name}", to=1))
        attribute.g.node[1].input[1] = "wide"
    path = models.saved_beside(models.Ill(proto, {}), tmp_path)
    model = load_network(path).model
    sample = {"x": np.ones((1, 8, 64), np.float32), "flag": np.array(flag)}
    large, small = (emulate_typed(model, late=late) for late in (True, False))
    found, expected = (Session(m).run(sample)["y"] for m in (large, small))
    assert found.tobytes() == expected.tobytes()
    expected = 64 * f16([3 / 7 if flag else 2 / 7])
    np.testing.assert_allclose(np.asarray(found, np.float32), expected.item(), rtol=1e-5)


def step(op_type, inputs, outputs, name, **attributes):
    return helper.make_node(op_type, inputs.split(), outputs.split(), name=name, **attributes)


def model(nodes, constants, shape):
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n in "xy")
    tensors = [numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items()]
    graph = helper.make_graph(nodes, "g", [x], [y], tensors)
    imports = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


class Runs:
    """A switched model with its session."""

    def __init__(self, net: Network, fmt=FP16, **options):
        roles = roles_of(net, low_type(fmt))
        self.switched = emulate_switched(net, roles, fmt, **options)
        self.session = Session(self.switched.model)

    def __call__(self, fp32, sample):
        switch = self.switched.switches.switch(frozenset(NodeName(n) for n in fp32))
        return self.session.run({**sample, SWITCH_INPUT: switch})["y"]


def test_long_sums_in_bodies_agree_too():
    # One operand is the state of the loop, the other is read from outside, computed or constant.
    rng = np.random.default_rng(0)
    nodes = [
        step("Identity", "go", "on", "on"),
        step("MatMul", "state w", "a", "by_constant"),
        step("MatMul", "a h", "next", "by_computed"),
    ]
    formals = [("step", STEP), ("go", GO), ("state", MATRIX)]
    body = control.graph("body", nodes, formals, [("on", GO), ("next", MATRIX)])
    loop = helper.make_node("Loop", ["trips", "", "x"], ["y"], "loop", body=body)
    weights = {n: rng.standard_normal((100, 100)).astype(np.float32) / 10 for n in ("w", "v")}
    constants = {**weights, "trips": np.array(3)}
    net = network_from_proto(model([step("Neg", "v", "h", "neg"), loop], constants, (3, 100)))
    sample = {"x": rng.standard_normal((3, 100)).astype(np.float32)}
    run, wide = Runs(net, accumulate="fp16"), Runs(net)
    for kept in ("", "neg", "by_constant by_computed", "neg by_constant by_computed"):
        fp32 = [NodeName(name) for name in kept.split()]
        rewritten = rewrite(net, roles_of(net), frozenset(fp32), FP16)
        typed = Session(emulate_typed(rewritten.model, accumulate="fp16")).run(sample)
        np.testing.assert_allclose(run(fp32, sample), np.float32(typed["y"]), rtol=1e-6, atol=0)
        # Both products are sums in FP16 where they are low.
        assert (run(fp32, sample) != wide(fp32, sample)).any() == ("by_constant" not in fp32)


def with_weights():
    """A Loop whose body has a weight of its own and reads one from outside, as the graph does.

    An If inside it, and the main graph, read the outer one too.
    """
    rng = np.random.default_rng(0)
    own, outer = (rng.standard_normal((64, 64)).astype(np.float32) / 8 for _ in range(2))
    inner = {
        branch: control.graph(
            branch,
            [step(op, "b outer", f"{branch}_y", branch)],
            [],
            [(f"{branch}_y", MATRIX)],
        )
        for branch, op in (("then_branch", "MatMul"), ("else_branch", "Add"))
    }
    nodes = [
        step("Identity", "go", "on", "on"),
        step("MatMul", "state own", "a", "by_own"),
        step("MatMul", "a outer", "b", "by_outer"),
        helper.make_node("If", ["go"], ["next"], "choose", **inner),
    ]
    formals = [("step", STEP), ("go", GO), ("state", MATRIX)]
    given = [("on", GO), ("next", MATRIX)]
    body = control.graph("body", nodes, formals, given, {"own": own})
    loop = helper.make_node("Loop", ["trips", "", "h"], ["y"], "loop", body=body)
    first = step("MatMul", "x outer", "h", "first")
    proto = model([first, loop], {"outer": outer, "trips": np.array(2)}, (64, 64))
    return models.Ill(proto, {"x": rng.standard_normal((1, 64, 64)).astype(np.float32)})


@pytest.mark.parametrize(
    ("fmt", "accumulate"),
    [(FP16, "fp32"), (FP16, "fp16"), (BF16, "fp32")],
    ids=["fp16", "fp16-sums", "bf16"],
)
def test_weights_on_disk_stay_low_in_bodies_and_give_the_same_to_the_bit(tmp_path, fmt, accumulate):
    ill = with_weights()
    net = load_network(models.saved_beside(ill, tmp_path))
    roles, weights = roles_of(net, low_type(fmt)), LowWeights(net.model, fmt, large_from=0)
    disk = Runs(net, fmt, accumulate=accumulate, weights=weights)
    memory = Runs(net, fmt, accumulate=accumulate)
    for kept in ((), ("first",), ("loop",), ("first", "loop")):
        found = disk(kept, ill.sample(0))
        assert found.tobytes() == memory(kept, ill.sample(0)).tobytes()
        mixed = rewrite(net, roles, frozenset(map(NodeName, kept)), fmt, weights=weights).model
        typed = emulate_typed(mixed, accumulate=accumulate, late=True)
        result = Session(typed).run(ill.sample(0))["y"]
        np.testing.assert_allclose(found, np.float32(result), rtol=1e-6, atol=0)


def test_no_wide_copy_of_a_low_weight_is_held(tmp_path):
    net = load_network(models.saved_beside(with_weights(), tmp_path))
    weights = LowWeights(net.model, FP16, large_from=0)
    switched = emulate_switched(net, roles_of(net), FP16, weights=weights).model
    mixed = rewrite(net, roles_of(net), frozenset(), FP16, weights=weights).model
    for made, full in ((switched, 2), (emulate_typed(mixed, late=True), 0)):
        stored = [
            v.const_value
            for graph in (made.graph, *made.graph.subgraphs())
            for v in graph.initializers.values()
            if v.const_value is not None and v.const_value.size > 1000
        ]
        kinds = [t.dtype for t in stored]
        # Whole ones are the user's; each weight is there once in FP16.
        assert kinds.count(ir.DataType.FLOAT) == full
        assert kinds.count(ir.DataType.FLOAT16) == 2


@pytest.fixture(scope="module")
def tf32():
    """A function that rounds arrays to TF32."""
    x = ir.val("x", ir.DataType.FLOAT, ir.Shape(["n"]))
    nodes, rounded = round_tf32(x, "r")
    graph = ir.Graph([x], [rounded], nodes=nodes, opset_imports={"": 17}, name="g")
    rounded.shape = ir.Shape(["n"])
    made = Session(ir.Model(graph, ir_version=8))
    (name,) = made.outputs
    return lambda array: np.asarray(made.run({"x": array})[name], np.float32)


def truncated(array):
    """Round to TF32 by its first bits."""
    dropped = 24 - TF32_PRECISION
    return (array.view(np.uint32) & ~np.uint32((1 << dropped) - 1)).view(np.float32)


NORMAL = st.floats(2.0**-100, 2.0**99, width=32)


@given(arrays(np.float32, 64, elements=NORMAL), st.sampled_from([1, -1]))
def test_it_is_what_the_first_bits_say(tf32, values, sign):
    values = np.float32(sign) * values
    np.testing.assert_array_equal(tf32(values), truncated(values))


def test_what_it_leaves_alone(tf32):
    special = f32([0, -0.0, np.inf, -np.inf, np.nan, 3e38, -3e38, 1, 2, 0.5, 1 + 2.0**-10])
    np.testing.assert_array_equal(tf32(special), special)


def test_weights_are_rounded_as_other_factors_are(tf32):
    rng = np.random.default_rng(2)
    large = f32(rng.normal(size=(8, 8)) * 2.0 ** rng.integers(-110, 110, (8, 8)))
    sketch = Sketch()
    eye = sketch.input("eye", [8, 8])
    weight = sketch.constant(large)
    network = sketch.network(sketch.op("MatMul", eye, weight, name="first"))
    session = Session(emulate_tf32(network))
    rounded = tf32(large.ravel()).reshape(8, 8)
    for row in range(8):
        # One row at a time, so that an infinity does not spoil others.
        unit = f32(np.eye(8)[[row] * 8])
        outputs = session.run({"eye": unit})
        np.testing.assert_array_equal(outputs["first_out"][0], rounded[row])


def test_products_round_both_factors():
    sketch = Sketch()
    x = sketch.input("x", [4, 64])
    rng = np.random.default_rng(1)
    weight = f32(rng.normal(size=(64, 8)))
    y = sketch.op("Add", sketch.op("MatMul", x, weight, name="product"), f32(1.0001), name="sum")
    network = sketch.network(y)
    sample = f32(rng.normal(size=(4, 64)))
    found = np.asarray(Session(emulate_tf32(network)).run({"x": sample})[y], np.float64)
    exact = sample.astype(np.float64) @ weight + np.float64(np.float32(1.0001))
    rounded = truncated(sample).astype(np.float64) @ truncated(weight)
    np.testing.assert_allclose(found, rounded + np.float64(np.float32(1.0001)), rtol=0, atol=2e-5)
    assert 1e-5 < np.abs(found - exact).max() < 0.05
    assert [n.op_type for n in network.nodes()] == ["MatMul", "Add"]


def test_products_of_integers_stay():
    s = chain(["second"])
    network = s.network(last(s))
    assert tf32_nodes(network) == ("first", "third")
    names = [str(n.name) for n in emulate_tf32(network).graph]
    assert any(name.startswith("first::tf32") for name in names)
    assert not any(name.startswith("second::tf32") for name in names)
