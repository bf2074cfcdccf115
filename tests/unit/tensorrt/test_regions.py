"""Which nodes a region has, and which of them are at its border."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfwise.graph.loading import network_from_proto
from halfwise.graph.model import Network, node_name
from halfwise.graph.roles import roles_of
from halfwise.records import EngineLayer, NodeName
from halfwise.tensorrt.regions import Blamed, Region, blamed, blocks, neighbours, region_of, rim
from tests import graph_rules
from tests.graphs import graphs, plans
from tests.unit.casing import names
from tests.unit.graph.sketch import Sketch, f32


def chain(count: int = 8) -> Network:
    """MatMul with proj.weight, then Exp, over and over; Neg."""
    s = Sketch()
    last = s.input("x", [4, 4])
    weight = s.constant(f32([[1.0] * 4] * 4), "proj.weight")
    for i in range(count):
        last = s.op("Exp", s.op("MatMul", last, weight, name=f"mul{i}"), name=f"exp{i}")
    return s.network(s.op("Neg", last, name="neg"))


@pytest.mark.parametrize(
    ("layer", "first", "last"),
    [
        ("{ForeignNode[mul2_out...exp3_out]}", "mul2", "exp3"),
        ("{ForeignNode[exp2]}", "exp2", "exp2"),
        ("exp2 + mul3", "exp2", "mul3"),
        ("PWN(exp2)", "exp2", "exp2"),
        ("{ForeignNode[(Unnamed Layer* 3) [Shuffle]...exp2]}", "mul0", "exp2"),
        ("{ForeignNode[exp2...(Unnamed Layer* 9) [Shuffle]]}", "exp2", "neg"),
        ("{ForeignNode[proj.weight...exp2]}", "mul0", "exp2"),
        ("", "mul0", "neg"),
    ],
)
def test_a_region_that_no_engine_shows_reaches_from_its_first_name_to_its_last(layer, first, last):
    net = chain()
    order = [node_name(n) for n in net.nodes()]
    ends = Blamed("no-kernel", layer).ends
    expected = frozenset(order[order.index(NodeName(first)) : order.index(NodeName(last)) + 1])
    assert region_of(net, roles_of(net), ends, {}) == Region(ends, expected)


def test_the_block_of_an_engine_is_the_region_whatever_lies_between_its_ends():
    net = chain()
    nodes = ("mul1", "exp1", "mul2", "exp6")
    layer = EngineLayer(
        name="{ForeignNode[mul2...exp1]} [profile 1]",
        type="Myelin",
        nodes=tuple(map(NodeName, nodes)),
        precision="unknown",
    )
    plain = layer.model_copy(update={"name": "mul5"})
    shown = blocks([plain, layer])
    assert shown == {("mul2", "exp1"): names(*nodes)}
    ends = Blamed("no-kernel", "{ForeignNode[mul2...exp1]}").ends
    assert region_of(net, roles_of(net), ends, shown) == Region(ends, names(*nodes), shown=True)
    assert not region_of(net, roles_of(net), ("mul2", "exp2"), shown).shown


def test_the_rim_of_nodes_is_next_to_others():
    net = chain()
    roles = roles_of(net)
    island = names("exp1", "mul2", "exp2", "mul3")
    assert neighbours(net, roles, island) == names("mul1", "exp3")
    assert rim(net, roles, island) == names("exp1", "mul3")
    everything = frozenset(roles)
    assert rim(net, roles, everything) == frozenset()


@given(graphs(opsets=graph_rules.EVERY_OPSET, rules=graph_rules.rules_at), st.data())
def test_rims_are_what_has_neighbours(drawn, data):
    net = network_from_proto(drawn.proto)
    roles = roles_of(net)
    chosen = data.draw(plans(net))
    outside, edge = neighbours(net, roles, chosen), rim(net, roles, chosen)
    assert not outside & chosen
    assert edge <= chosen
    assert bool(edge) == bool(outside)
    # Without its rim nothing of it touches what is outside.
    assert not neighbours(net, roles, chosen - edge) & outside


REGION = "{ForeignNode[a/Pow...b/Add]}"
NO_KERNEL = (
    "10: [optimizer.cpp::computeCosts::3869] Error Code 10: Internal Error (Could not find any "
    f"implementation for node {REGION}.)"
)
NOT_BUILT = "2: [builder.cpp::buildSerializedNetwork::751] Error Code 2: Internal Error (Assertion engine != nullptr failed. )"  # noqa: E501


@pytest.mark.parametrize(
    ("status", "lines", "kind", "ends"),
    [
        ("failed", [NO_KERNEL, NOT_BUILT], "no-kernel", ("a/Pow", "b/Add")),
        ("failed", ["mha_fusion.cpp:344: DCHECK(fc1_ && fc2_ && softmax_) failed.", NO_KERNEL],
         "no-kernel", ("a/Pow", "b/Add")),
        ("failed", [f"9: Error Code 9: Myelin ({REGION}: no tactics)"], "compiler",
         ("a/Pow", "b/Add")),
        ("failed", ["1: Error Code 1: Myelin (No Myelin Error exists)"], "compiler", ()),
        ("failed", ["2: [virtualMemoryBuffer.cpp::resizePhysical::145] Error Code 2: OutOfMemory"],
         "unknown", ()),
        ("crashed", [f"[V] [TRT] --------------- Timing Runner: {REGION} (Myelin[0x80000023])"],
         "crash", ("a/Pow", "b/Add")),
        ("timeout", [f"[V] [TRT] =============== Computing costs for {REGION}"],
         "timeout", ("a/Pow", "b/Add")),
        ("timeout", [], "timeout", ()),
        ("failed", [NO_KERNEL.replace(REGION, "a + b")], "no-kernel", ("a", "b")),
        ("failed", [NO_KERNEL, NO_KERNEL.replace("b/Add", "c/Mul")], "no-kernel",
         ("a/Pow", "c/Mul")),
    ],
)  # fmt: skip
def test_how_a_build_was_refused_and_where(status, lines, kind, ends):
    found = blamed(status, lines)
    assert (found.kind, found.ends) == (kind, ends)


def test_a_single_layer_is_both_ends():
    assert Blamed("no-kernel", "PWN(exp2)").ends == ("exp2", "exp2")
    assert Blamed("unknown").ends == ()


def test_the_line_that_tells_of_it_is_neither_the_last_nor_a_warning():
    warning = "warning: onnx2trt_utils.cpp:374: Your ONNX model has INT64 weights."
    found = blamed("failed", [warning, f"error: {NO_KERNEL}", NOT_BUILT, warning])
    assert found.line == (f"Could not find any implementation for node {REGION}.")
    odd = ["error: nobody knows this", warning]
    assert blamed("failed", odd).line == "nobody knows this"
    assert blamed("crashed", ["[V] [TRT] Tactic: 0x3e8", warning, ""]).line == ""
