import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from halfwise.emulation.ort import Session
from halfwise.emulation.switched import SWITCH_INPUT, Switched, emulate_switched
from halfwise.emulation.typed import emulate_typed
from halfwise.errors import CaseError
from halfwise.formats import BF16, FP16
from halfwise.graph.casts import low_type, rewrite
from halfwise.graph.loading import load_network, network_from_proto
from halfwise.graph.model import Network
from halfwise.graph.roles import roles_of
from halfwise.graph.weights import LowWeights
from halfwise.records import NodeName, TensorName
from tests import models
from tests.graphs import Drawn, free_nodes, graphs, low_ends, plans

F32 = TensorProto.FLOAT
X = np.array([[0.1, -1.3, 300.7, 1e-6], [9e3, 2049.0, -0.0, 1 / 3]], np.float32)


def node(op_type, inputs, outputs, name, **attributes):
    return helper.make_node(op_type, inputs.split(), outputs.split(), name=name, **attributes)


def network(nodes, outputs="y", constants=None, *, opset=17, shape=(2, 4)) -> Network:
    infos = [helper.make_tensor_value_info(n, F32, [None, None]) for n in outputs.split()]
    tensors = [numpy_helper.from_array(np.asarray(a), n) for n, a in (constants or {}).items()]
    x = helper.make_tensor_value_info("x", F32, shape)
    graph = helper.make_graph(nodes, "g", [x], infos, tensors)
    imports = [helper.make_opsetid("", opset)]
    return network_from_proto(helper.make_model(graph, opset_imports=imports, ir_version=8))


def names(*values: str) -> frozenset[TensorName]:
    return frozenset(TensorName(v) for v in values)


class Runs:
    """A switched model with its session."""

    def __init__(self, net: Network, fmt=FP16, **options):
        self.switched: Switched = emulate_switched(
            net, roles_of(net, low_type(fmt)), fmt, **options
        )
        self.session = Session(self.switched.model)

    def __call__(self, fp32=(), sample=None):
        switch = self.switched.switches.switch(frozenset(fp32))
        return self.session.run({**(sample or {"x": X}), SWITCH_INPUT: switch})


def assert_same(left, right):
    assert list(left) == list(right)
    for name, array in left.items():
        assert array.dtype == right[name].dtype
        assert array.tobytes() == right[name].tobytes(), name


def assert_close(left, right):
    assert list(left) == list(right)
    for name, array in left.items():
        np.testing.assert_allclose(array, right[name], rtol=1e-6, atol=0, err_msg=name)


# --- the two properties that everything rests on ----------------------------------------------


# What `tests/bench/test_fuzz.py` holds 100 graphs to as well, is tried on fewer here.


@pytest.mark.parametrize("accumulate", ["fp32", "fp16"])
@given(graphs(), st.data())
def test_a_plan_switched_on_equals_the_model_made_from_it(
    accumulate, drawn: Drawn, data: st.DataObject
):
    net = network_from_proto(drawn.proto)
    if net.opset < 13:
        accumulate = "fp32"
    roles, low_io = roles_of(net), data.draw(low_ends(net))
    size = data.draw(st.sampled_from([1, 3, 24]))
    run = Runs(net, accumulate=accumulate, low_io=low_io, size=size)
    for _ in range(2):
        fp32 = data.draw(plans(net))
        rewritten = rewrite(net, roles, fp32, FP16, low_io=low_io)
        typed = emulate_typed(rewritten.model, accumulate=accumulate)
        assert_close(run(fp32, drawn.sample), Session(typed).run(drawn.sample))


@given(graphs())
def test_all_in_fp32_is_the_original_to_the_bit(drawn: Drawn):
    net = network_from_proto(drawn.proto)
    expected = Session(net.model).run(drawn.sample)
    assert_same(Runs(net)(free_nodes(net), drawn.sample), expected)


@given(graphs(opsets=[13, 18, 21, 22]), st.data())
def test_bf16_alike(drawn: Drawn, data: st.DataObject):
    net = network_from_proto(drawn.proto)
    roles, low_io = roles_of(net, low_type(BF16)), data.draw(low_ends(net))
    run = Runs(net, BF16, low_io=low_io)
    for _ in range(2):
        fp32 = data.draw(plans(net))
        typed = emulate_typed(rewrite(net, roles, fp32, BF16, low_io=low_io).model)
        assert_close(run(fp32, drawn.sample), Session(typed).run(drawn.sample))


def test_long_sums_agree_too():
    # Longer than a block, over each operator that has its sums expanded.
    rng = np.random.default_rng(0)
    nodes = [
        node("MatMul", "x w", "a", "matmul"),
        node("Softmax", "a", "b", "softmax", axis=-1),
        node("Gemm", "b w bias", "c", "gemm"),
        node("ReduceMean", "c", "m", "mean", axes=[1]),
        node("Sub", "c m", "y", "sub"),
    ]
    constants = {
        "w": rng.standard_normal((100, 100)).astype(np.float32),
        "bias": rng.standard_normal(100).astype(np.float32),
    }
    net = network(nodes, "y", constants, shape=("n", 100))
    sample = {"x": rng.standard_normal((3, 100)).astype(np.float32)}
    run = Runs(net, accumulate="fp16")
    for kept in ("", "matmul", "softmax mean", "gemm sub"):
        fp32 = [NodeName(name) for name in kept.split()]
        rewritten = rewrite(net, roles_of(net), frozenset(fp32), FP16)
        typed = Session(emulate_typed(rewritten.model, accumulate="fp16")).run(sample)
        assert_close(run(fp32, sample), typed)
    assert (run((), sample)["y"] != Runs(net)((), sample)["y"]).any()


@pytest.mark.parametrize("low_io", [names(), names("x", "y")])
def test_short_sums_stay_whole_and_long_ones_become_loops(low_io):
    for terms, loops in ((16, 0), (17, 1)):
        net = network([node("Softmax", "x", "y", "softmax", axis=-1)], shape=(2, terms))
        switched = emulate_switched(net, roles_of(net), FP16, accumulate="fp16", low_io=low_io)
        found = [n for n in switched.model.graph.all_nodes() if n.op_type == "Loop"]
        assert len(found) == loops


def test_what_nodes_make_themselves_is_low_too():
    # Pad had its constant as an attribute; a fill saturates as a weight does.
    mask = numpy_helper.from_array(np.array([-3e38], np.float32))
    nodes = [
        node("Pad", "x", "p", "pad", pads=[0, 0, 0, 1], value=0.1),
        node("Shape", "x", "s", "shape"),
        node("ConstantOfShape", "s", "c", "fill", value=mask),
        node("Neg", "c", "n", "neg"),
    ]
    net = network(nodes, "p n", opset=10)
    results = Runs(net)()
    np.testing.assert_array_equal(results["p"][:, 4], FP16.round(np.full(2, 0.1, np.float32)))
    np.testing.assert_array_equal(results["n"], np.full((2, 4), 65504))
    typed = Session(emulate_typed(rewrite(net, roles_of(net), frozenset(), FP16).model))
    assert_same(results, typed.run({"x": X}))


# --- edges ------------------------------------------------------------------------------------

CHAIN = [
    node("Mul", "x third", "a", "one"),
    node("Mul", "a third", "b", "two"),
    node("Mul", "b third", "y", "three"),
]
THIRD = np.array(1 / 3, np.float32)


def oracle(fp32, *, low_io=frozenset()):
    """The chain by hand: an edge is rounded if one of its ends is low."""
    value, was_low = X, "x" in low_io
    for name in ("one", "two", "three"):
        low = name not in fp32
        value = FP16.round(value) if low or was_low else value
        value = value * (FP16.round(THIRD) if low else THIRD)
        value = FP16.round(value) if low else value
        was_low = low
    return FP16.round(value) if "y" in low_io else value


@pytest.mark.parametrize("low_io", [names(), names("x"), names("y"), names("x", "y")])
@pytest.mark.parametrize("mask", range(8))
def test_an_edge_is_rounded_if_one_of_its_ends_is_low(mask, low_io):
    fp32 = [name for i, name in enumerate(("one", "two", "three")) if mask >> i & 1]
    run = Runs(network(CHAIN, "y", {"third": THIRD}), low_io=low_io)
    np.testing.assert_array_equal(run(fp32)["y"], oracle(fp32, low_io=low_io))


def test_a_value_with_both_kinds_of_readers_is_seen_by_each_as_it_must_be():
    nodes = [
        node("Mul", "x third", "a", "kept"),
        node("Identity", "a", "b", "kept_reader"),
        node("Identity", "a", "c", "low_reader"),
    ]
    results = Runs(network(nodes, "a b c", {"third": THIRD}))(["kept", "kept_reader"])
    np.testing.assert_array_equal(results["a"], X * THIRD)
    np.testing.assert_array_equal(results["b"], X * THIRD)
    np.testing.assert_array_equal(results["c"], FP16.round(X * THIRD))


def test_the_switch_names_free_nodes_in_order():
    nodes = [
        node("Shape", "x", "s", "blind"),
        node("EyeLike", "x", "e", "pinned"),
        node("Reshape", "e s", "r", "moves"),
        node("Add", "x r", "y", "computes"),
    ]
    net = network(nodes)
    switched = emulate_switched(net, roles_of(net), FP16)
    assert switched.switches.nodes == ("moves", "computes")
    low = switched.switches.switch(frozenset({NodeName("computes")}))
    assert low.dtype == np.bool_
    np.testing.assert_array_equal(low[:2], [True, False])
    assert switched.switches.stretches == ((0, 2),)
    np.testing.assert_array_equal(low[2:], [True, True])
    assert [v.name for v in switched.model.graph.inputs] == ["x", SWITCH_INPUT]
    assert [v.name for v in switched.model.graph.outputs] == ["y"]


def test_a_network_without_free_nodes_runs():
    net = network([node("EyeLike", "x", "y", "eye")])
    run = Runs(net)
    assert run.switched.switches.nodes == ()
    np.testing.assert_array_equal(run()["y"], np.eye(2, 4))


def test_the_network_is_not_changed():
    net = network(CHAIN, "y", {"third": THIRD})
    before = ir.serde.serialize_model(net.model).SerializeToString(deterministic=True)
    Runs(net, low_io=names("x", "y"), limits={"a": 1.0})
    assert ir.serde.serialize_model(net.model).SerializeToString(deterministic=True) == before


def test_low_io_rounds_what_only_passes_through_and_constants_given_out():
    nodes = [node("Shape", "x", "s", "shape"), node("Reshape", "x s", "y", "reshape")]
    net = network(nodes, "y w", {"w": X})
    run = Runs(net, low_io=names("x", "y", "w"))
    for fp32 in ((), ("reshape",)):
        results = run(fp32)
        np.testing.assert_array_equal(results["y"], FP16.round(X))
        np.testing.assert_array_equal(results["w"], FP16.round(X))
    np.testing.assert_array_equal(Runs(net)(["reshape"])["w"], X)


def test_outputs_that_are_left_out_stay_so_and_fp32_ones_are_rounded_for_low_readers():
    nodes = [
        helper.make_node("LayerNormalization", ["x", "scale"], ["n", "", "d"], "norm"),
        node("Mul", "n d", "y", "mul"),
    ]
    constants = {"scale": np.array([0.1, 1, 2, 3], np.float32)}
    net = network(nodes, "y d", constants)
    run = Runs(net)
    for kept in ("", "norm", "mul", "norm mul"):
        fp32 = frozenset(NodeName(name) for name in kept.split())
        rewritten = rewrite(net, roles_of(net), fp32, FP16)
        results = run(fp32)
        assert_close(results, Session(emulate_typed(rewritten.model)).run({"x": X}))
        # The deviation has no FP16 form, so it is given out as it was computed.
        deviation = next(n for n in rewritten.model.graph if n.name == "norm").outputs[2]
        assert deviation.dtype is ir.DataType.FLOAT
    inner = [n for g in run.switched.model.graph.subgraphs() for n in g]
    norms = [n for n in inner if n.op_type == "LayerNormalization"]
    assert [[bool(v.name) for v in n.outputs] for n in norms] == [[True, False, True]] * len(norms)


def test_low_sums_need_a_later_operator_set():
    net = network([node("MatMul", "x w", "y", "mm")], "y", {"w": np.ones((4, 4), "f")}, opset=12)
    with pytest.raises(CaseError, match="opset 13"):
        emulate_switched(net, roles_of(net), FP16, accumulate="fp16")


# --- limits -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fp32", "finite"),
    [
        ((), False),  # a is stored low
        (("one",), False),  # and here rounded for its low reader
        (("two", "three"), False),
        (("one", "two"), True),  # an edge between kept nodes has the range of FP32
        (("one", "two", "three"), True),
    ],
)
def test_a_limit_holds_wherever_the_tensor_is_rounded(fp32, finite):
    run = Runs(network(CHAIN, "y", {"third": THIRD}), limits={"a": 2000.0})
    # |a| reaches 3000, which FP16 itself can hold.
    result = run(fp32)["y"]
    assert np.isfinite(result).all() == finite
    assert np.isfinite(result[0]).all()
    plain = Runs(network(CHAIN, "y", {"third": THIRD}))(fp32)["y"]
    np.testing.assert_array_equal(result[0], plain[0])
    if finite:
        np.testing.assert_array_equal(result, plain)
    else:
        assert np.isposinf(result[1, 0])


@pytest.mark.parametrize("low_io", [names(), names("x")])
def test_a_limit_on_an_input_holds_for_its_low_readers(low_io):
    net = network(CHAIN, "y", {"third": THIRD})
    run = Runs(net, limits={"x": 2000.0}, low_io=low_io)
    assert np.isposinf(run()["y"][1, 0])
    assert np.isfinite(run(["one", "two", "three"])["y"]).all() != bool(low_io)


def test_limits_that_nothing_reaches_change_nothing():
    net = network(CHAIN, "y", {"third": THIRD})
    wide = Runs(net, limits={"x": 65504.0, "a": 65504.0, "b": 65504.0})
    for fp32 in ((), ("one",), ("two",)):
        assert_same(wide(fp32), Runs(net)(fp32))


# --- weights on disk --------------------------------------------------------------------------

KEPT = [(), ("up",), ("up", "relu", "down"), ("out",), ("scale_it", "up", "relu", "down", "out")]


@pytest.mark.parametrize("accumulate", ["fp32", "fp16"])
@pytest.mark.parametrize("fmt", [FP16, BF16], ids=lambda f: f.name)
def test_weights_on_disk_give_the_same_to_the_bit(tmp_path, fmt, accumulate):
    ill = models.large_weights()
    net = load_network(models.saved_beside(ill, tmp_path))
    weights = LowWeights(net.model, fmt, large_from=0)
    disk = Runs(net, fmt, weights=weights, accumulate=accumulate)
    memory = Runs(net, fmt, accumulate=accumulate)
    stored = disk.switched.model.graph.initializers
    assert {stored[f"{n}_w::low"].dtype for n in ("up", "down", "out")} == {low_type(fmt)}
    for fp32 in KEPT:
        assert_same(disk(fp32, ill.sample(0)), memory(fp32, ill.sample(0)))


@pytest.mark.parametrize("kept", [(), ("m1",), ("m1", "m2")])
def test_a_constant_that_is_a_low_output_saturates_as_any_other(kept):
    w = np.array([[1e6, 0.1, -7e4, np.inf]], np.float32)
    nodes = [node("Mul", "x w", "h", "m1"), node("Mul", "h w", "y", "m2")]
    net = network(nodes, "y w", {"w": w})
    found = Runs(net, low_io=names("w"))(map(NodeName, kept))
    np.testing.assert_array_equal(found["w"], FP16.saturate(w))
    mixed = rewrite(
        net, roles_of(net), frozenset(map(NodeName, kept)), FP16, low_io=names("w")
    ).model
    assert_same(found, Session(emulate_typed(mixed)).run({"x": X}))


def test_a_wrong_declared_size_of_an_output_fails_no_assignment():
    x = helper.make_tensor_value_info("x", F32, [2, 4])
    to = helper.make_tensor_value_info("to", TensorProto.INT64, [2])
    y = helper.make_tensor_value_info("y", F32, [1, 4])
    nodes = [
        node("Exp", "x", "e", "exp"),
        node("Reshape", "e to", "r", "reshape"),
        node("Neg", "r", "y", "neg"),
    ]
    graph = helper.make_graph(nodes, "g", [x, to], [y])
    imports = [helper.make_opsetid("", 17)]
    given = network_from_proto(helper.make_model(graph, opset_imports=imports, ir_version=8))
    assert [v.shape for v in given.graph.outputs] == [(1, 4)]
    switched = emulate_switched(given, roles_of(given), FP16)
    sample = {"x": np.ones((2, 4), np.float32), "to": np.array([4, 2])}
    for fp32 in (frozenset[NodeName](), frozenset(switched.switches.nodes)):
        switch = switched.switches.switch(fp32)
        assert Session(switched.model).run({**sample, SWITCH_INPUT: switch})["y"].shape == (4, 2)


@pytest.mark.parametrize(("large_from", "parts"), [(0, 2), (-1, 5)])
def test_stretches_without_mixed_forms_are_longer_unless_the_network_is_large(large_from, parts):
    count = 128
    chain = [node("Sqrt", f"v{i}", f"v{i + 1}", f"n{i}") for i in range(count)]
    chain = [node("Neg", "x", "v0", "first"), *chain, node("Neg", f"v{count}", "y", "last")]
    net = network(chain)
    weights = LowWeights(net.model, FP16, large_from=large_from)
    made = emulate_switched(net, roles_of(net), FP16, alike=True, weights=weights)
    assert len(made.switches.stretches) == parts
