import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfwise.emulation.fusion import fp32_nodes, fused_tensors
from halfwise.graph.model import network_from_proto
from halfwise.records import EngineLayer, NodeName
from tests.graphs import Drawn, graphs, plans
from tests.unit.emulation.test_switched import Runs, assert_same, names, network, node

W = np.eye(4, dtype=np.float32)
NOTHING = names()


def fp16(array):
    with np.errstate(over="ignore"):
        return np.asarray(array, np.float32).astype(np.float16).astype(np.float32)


CHAIN = network(
    [
        node("Mul", "x x", "square", "square"),
        node("Add", "square one", "more", "more"),
        node("Sqrt", "more", "y", "root"),
    ],
    constants={"one": np.float32(1)},
)
SAMPLE = np.array([[0.1, -1.3, 300.7, 1e-3], [250.0, 3.0, -0.0, 1 / 3]], np.float32)


def test_values_between_pointwise_nodes_are_fused():
    assert fused_tensors(CHAIN) == names("square", "more")


def test_a_value_with_two_readers_is_stored():
    nodes = [
        node("Tanh", "x", "t", "tanh"),
        node("Abs", "t", "a", "abs"),
        node("Add", "t a", "y", "add"),
    ]
    assert fused_tensors(network(nodes)) == names("a")


def test_a_value_that_one_node_reads_twice_is_not():
    nodes = [node("Tanh", "x", "t", "tanh"), node("Mul", "t t", "y", "mul")]
    assert fused_tensors(network(nodes)) == names("t")


def test_outputs_of_the_model_are_stored():
    nodes = [node("Tanh", "x", "t", "tanh"), node("Abs", "t", "y", "abs")]
    assert fused_tensors(network(nodes, "t y")) == NOTHING


def test_what_sums_read_and_give_is_stored():
    nodes = [
        node("Mul", "x x", "square", "square"),
        node("ReduceMean", "square", "mean", "mean", axes=[1]),
        node("Sqrt", "mean", "y", "root"),
    ]
    assert fused_tensors(network(nodes)) == NOTHING


def test_what_products_read_and_give_is_stored():
    nodes = [
        node("Tanh", "x", "t", "tanh"),
        node("MatMul", "t w", "p", "product"),
        node("Tanh", "p", "y", "tanh2"),
    ]
    assert fused_tensors(network(nodes, constants={"w": W})) == NOTHING


@pytest.mark.parametrize(
    ("factor", "operand", "folded"),
    [
        ("Mul x scalar", "w", True),
        ("Mul scalar x", "w", True),
        ("Div x scalar", "w", True),
        ("Div scalar x", "w", False),
        ("Mul x row", "w", False),
        ("Mul x x", "w", False),
        ("Add x scalar", "w", False),
        ("Mul x scalar", "turned", False),
    ],
)
def test_a_constant_factor_goes_into_constant_weights(factor, operand, folded):
    op, inputs = factor.split(maxsplit=1)
    nodes = [
        node("Transpose", "x", "turned", "turn"),
        node(op, inputs, "f", "factor"),
        node("MatMul", f"f {operand}", "y", "product"),
    ]
    constants = {"w": W, "scalar": np.float32(3), "row": np.ones(4, np.float32)}
    assert (names("f") == fused_tensors(network(nodes, constants=constants))) is folded


@given(graphs(), st.data())
def test_without_fused_values_both_emulations_are_one_to_the_bit(drawn: Drawn, data):
    net = network_from_proto(drawn.proto)
    plan = data.draw(plans(net))
    fused = Runs(net, fused=NOTHING)(plan, drawn.sample)
    assert_same(fused, Runs(net)(plan, drawn.sample))


@given(graphs(), st.data())
def test_what_is_kept_as_a_whole_has_no_fused_values(drawn: Drawn, data):
    net = network_from_proto(drawn.proto)
    fused = fused_tensors(net)
    ends = {n.name for n in net.nodes() if {v.name for v in n.outputs} & fused}
    plan = data.draw(plans(net)) | ends
    assert_same(Runs(net, fused=fused)(plan, drawn.sample), Runs(net)(plan, drawn.sample))


@pytest.mark.parametrize("chosen", [(), ("square",), ("more",), ("square", "more")])
def test_it_differs_at_the_chosen_values_only(chosen):
    def stored(name, value):
        return value if name in chosen else fp16(value)

    x = fp16(SAMPLE)
    square = stored("square", x * x)
    more = stored("more", square + np.float32(1))
    found = Runs(CHAIN, fused=names(*chosen))(sample={"x": SAMPLE})["y"]
    np.testing.assert_array_equal(found, fp16(np.sqrt(more)))


@pytest.mark.parametrize("kept", ["square", "more"])
def test_at_the_border_to_a_kept_node_a_value_is_rounded(kept):
    x = SAMPLE if kept == "square" else fp16(SAMPLE)
    square = fp16(x * x)
    found = Runs(CHAIN, fused=names("square"))([NodeName(kept)], {"x": SAMPLE})["y"]
    np.testing.assert_array_equal(found, fp16(np.sqrt(fp16(square + np.float32(1)))))


def test_a_kept_set_between_low_nodes_is_that_of_the_plain_emulation():
    everything = Runs(CHAIN, fused=fused_tensors(CHAIN))
    kept = [NodeName("square"), NodeName("root")]
    assert_same(everything(kept, {"x": SAMPLE}), Runs(CHAIN)(kept, {"x": SAMPLE}))


def layer(nodes, inputs, outputs, precision):
    return EngineLayer(
        name="+".join(nodes),
        type="Myelin",
        nodes=tuple(map(NodeName, nodes)),
        inputs=inputs,
        outputs=outputs,
        precision=precision,
    )


def test_nodes_of_fp32_layers_are_fp32():
    layers = [
        layer(["square"], ("fp32",), ("fp16",), "fp32"),
        layer(["more", "root"], ("fp16",), ("fp32",), "unknown"),
    ]
    assert fp32_nodes(CHAIN, layers) == {"square"}


def test_a_block_of_fp32_borders_has_the_unnamed_nodes_before_its_end():
    layers = [
        layer(["square"], ("fp32",), ("fp16",), "fp16"),
        layer(["root", "elsewhere"], ("fp32",), ("fp32",), "unknown"),
    ]
    assert fp32_nodes(CHAIN, layers) == {"more", "root"}


@pytest.mark.parametrize("borders", [("fp16", "fp32"), ("fp32", "fp16"), ("", "fp32")])
def test_a_block_that_reads_or_gives_anything_else_tells_nothing(borders):
    into, out = borders
    assert fp32_nodes(CHAIN, [layer(["root"], (into,), (out,), "unknown")]) == frozenset()
    assert fp32_nodes(CHAIN, []) == frozenset()
