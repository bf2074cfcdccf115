"""The forms that nodes have in common, against each node's own."""

import gc
import weakref
from collections.abc import Collection

import numpy as np
import onnx_ir as ir
from hypothesis import given
from hypothesis import strategies as st

from halfwise.emulation.forms import Slots
from halfwise.emulation.ort import Session
from halfwise.emulation.switched import Switched, SwitchedRunner, emulate_switched
from halfwise.emulation.typed import emulate_typed
from halfwise.formats import FP16
from halfwise.graph.casts import rewrite
from halfwise.graph.loading import network_from_proto
from halfwise.graph.model import Network, add_constant, node_name
from halfwise.graph.roles import Role, roles_of
from halfwise.records import NodeName, replace
from tests.graphs import Drawn, free_nodes, graphs, low_ends, plans
from tests.unit.emulation.test_switched import (
    Runs,
    X,
    assert_close,
    assert_same,
    network,
    node,
)


def chain(count: int) -> Network:
    values = ["x", *(f"v{i}" for i in range(1, count)), "y"]
    return network([node("Relu", values[i], values[i + 1], f"n{i}") for i in range(count)])


def in_common(run: Runs) -> list[list[str]]:
    """Return the operators of the only stretch: all low, and all kept."""
    (stretch,) = (n for n in run.switched.model.graph if n.op_type == "If")
    (alike,) = stretch.attributes["else_branch"].as_graph()
    branches = (alike.attributes[name].as_graph() for name in ("then_branch", "else_branch"))
    return [[n.op_type for n in branch] for branch in branches]


@given(graphs(), st.data())
def test_forms_in_common_change_no_bit(drawn: Drawn, data: st.DataObject):
    net = network_from_proto(drawn.proto)
    alone, together = Runs(net, size=1), Runs(net)
    assert not alone.switched.switches.stretches
    for fp32 in (frozenset(), free_nodes(net), data.draw(plans(net))):
        assert_same(together(fp32, drawn.sample), alone(fp32, drawn.sample))


def test_weights_are_summed_alike_in_every_form():
    # ONNX Runtime packs weights, and sums in another order then, where it finds that it may.
    rng = np.random.default_rng(0)
    constants = {f"w{i}": rng.standard_normal((64, 64)).astype(np.float32) for i in range(3)}
    ends = [("x", "a"), ("a", "b"), ("b", "y")]
    nodes = [node("MatMul", f"{a} w{i}", b, f"n{i}") for i, (a, b) in enumerate(ends)]
    net = network(nodes, "y", constants, shape=(1, 64))
    sample = {"x": rng.standard_normal((1, 64)).astype(np.float32)}
    assert_same(
        Runs(net)(free_nodes(net), sample),
        Runs(net, size=1)(free_nodes(net), sample),
    )


def test_they_have_no_switches_and_round_nothing_twice():
    low, kept = in_common(Runs(chain(6)))
    assert kept == ["Relu"] * 6
    assert low == ["Cast", "Cast", *["Relu", "Cast", "Cast"] * 6]


def test_what_differs_within_stretches_is_made_when_it_is_needed():
    net, made = chain(3), list[bool]()

    def whole() -> Switched:
        made.append(True)
        return emulate_switched(net, roles_of(net), FP16)

    alike = emulate_switched(net, roles_of(net), FP16, alike=True)
    assert len(list(alike.model.graph.all_nodes())) < len(list(whole().model.graph.all_nodes()))
    made.clear()
    runner, expected = SwitchedRunner(lambda: alike, whole), Runs(net)
    for kept, times in (((), 0), (("n0", "n1", "n2"), 0), (("n1",), 1), ((), 1), (("n0",), 1)):
        fp32 = frozenset(map(NodeName, kept))
        assert_same(runner.run({"x": X}, fp32), expected(fp32))
        assert len(made) == times


def test_the_graph_goes_once_its_session_is_made():
    net, models = chain(3), list[weakref.ref[ir.Graph]]()

    def make(*, alike: bool = False) -> Switched:
        made = emulate_switched(net, roles_of(net), FP16, alike=alike)
        models.append(weakref.ref(made.model.graph))
        return made

    runner = SwitchedRunner(lambda: make(alike=True), make)
    runner.prepare(frozenset({NodeName("n1")}))
    gc.collect()
    assert [model() for model in models] == [None, None]


def test_names_within_are_too_short_for_memory_of_their_own():
    graph = emulate_switched(chain(3), roles_of(chain(3)), FP16).model.graph
    inner = [v.name or "" for body in graph.subgraphs() for n in body for v in n.outputs]
    assert inner
    assert max(map(len, inner)) < 16
    assert len(set(inner)) == len(inner)


def with_pairs(net: Network, nodes: Collection[NodeName]) -> Network:
    """Return the network with these nodes reading every float input through a pair."""
    model = net.copy()
    for each in [n for n in model.graph if node_name(n) in nodes]:
        for slot, value in float_slots(each).items():
            each.replace_input_with(slot, _pair(model.graph, each, slot, value))
    return replace(net, model=model)


def float_slots(node: ir.Node) -> dict[int, ir.Value]:
    """Return what a product multiplies."""
    return {slot: value for slot, value in enumerate(node.inputs[:2]) if value is not None}


def _pair(graph: ir.Graph, reader: ir.Node, slot: int, value: ir.Value) -> ir.Value:
    name, weight = f"{reader.name}_{slot}", value.const_value
    axis, scale = 1, np.array(0.037, np.float32)
    if weight is not None:
        array = np.nan_to_num(weight.numpy(), posinf=1e4, neginf=-1e4)
        axis = array.ndim - 1 if reader.op_type == "MatMul" else 0
        rest = tuple(a for a in range(array.ndim) if a != axis)
        scale = (np.abs(array).max(axis=rest) / 127 + 1e-6).astype(np.float32)
        shape = [-1 if a == axis else 1 for a in range(array.ndim)]
        stored = np.clip(np.rint(array / scale.reshape(shape)), -127, 127).astype(np.int8)
        integers = add_constant(graph, f"{name}_stored", stored)
    zero = add_constant(graph, f"{name}_zero", np.zeros(scale.shape, np.int8))
    ends = [add_constant(graph, f"{name}_scale", scale), zero]
    if weight is None:
        quantise = ir.node("QuantizeLinear", [value, *ends], name=f"{name}_q")
        integers = quantise.outputs[0]
        integers.name, integers.dtype = f"{name}_integers", ir.DataType.INT8
        graph.insert_before(reader, quantise)
    back = ir.node("DequantizeLinear", [integers, *ends], {"axis": axis}, name=f"{name}_dq")
    back.outputs[0].name, back.outputs[0].dtype = f"{name}_back", ir.DataType.FLOAT
    graph.insert_before(reader, back)
    return back.outputs[0]


def slots(quantised: Network, nodes: Collection[NodeName]) -> dict[NodeName, Slots]:
    named = {node_name(n): n for n in quantised.nodes()}
    return {name: float_slots(named[name]) for name in nodes}


def candidates(net: Network) -> list[NodeName]:
    roles, kinds = roles_of(net), ("Conv", "Gemm", "MatMul")
    named = (n for n in net.nodes() if n.op_type in kinds)
    return [node_name(n) for n in named if roles[node_name(n)].role is Role.COMPUTE]


@given(graphs(opsets=[13, 17, 20]), st.data())
def test_any_nodes_left_out_of_int8_are_as_in_the_model_written_so(
    drawn: Drawn, data: st.DataObject
):
    net = network_from_proto(drawn.proto)
    nodes, low_io = candidates(net), data.draw(low_ends(net))
    whole = with_pairs(net, nodes)
    size = data.draw(st.sampled_from([1, 3, 24]))
    run = Runs(net, low_io=low_io, size=size, quantised=slots(whole, nodes))
    for _ in range(2):
        fp32 = data.draw(plans(net))
        written = with_pairs(net, fp32.intersection(nodes))
        roles = roles_of(written)
        pairs = [n for n in written.nodes() if n.op_type.endswith("antizeLinear")]
        assert not any(roles[node_name(n)].free for n in pairs)
        typed = emulate_typed(rewrite(written, roles, fp32, FP16, low_io=low_io).model)
        assert_close(run(fp32, drawn.sample), Session(typed).run(drawn.sample))


@given(graphs(opsets=[13, 17, 20]))
def test_where_nothing_is_low_it_is_the_quantised_model_to_the_bit(drawn: Drawn):
    net = network_from_proto(drawn.proto)
    nodes = candidates(net)
    whole = with_pairs(net, nodes)
    found = Runs(net, quantised=slots(whole, nodes))(free_nodes(net), drawn.sample)
    assert_close(found, Session(whole.model).run(drawn.sample))
