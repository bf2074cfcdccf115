"""The forms that nodes have in common, against each node's own."""

import weakref

import numpy as np
import onnx_ir as ir
from hypothesis import given
from hypothesis import strategies as st

from halfwise.emulation import switched_runner
from halfwise.emulation.switched import Layout, Switched, emulate_switched
from halfwise.emulation.switched_runner import SwitchedRunner
from halfwise.formats import FP16
from halfwise.graph.loading import network_from_proto
from halfwise.graph.model import Network
from halfwise.graph.roles import roles_of
from halfwise.records import NodeName
from tests.graphs import Drawn, free_nodes, graphs, plans
from tests.unit.emulation.test_switched import Runs, X, assert_same, names, network, node


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
    alone, together = Runs(net, layout=Layout(size=1)), Runs(net)
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
        Runs(net, layout=Layout(size=1))(free_nodes(net), sample),
    )


def test_they_have_no_switches_and_round_nothing_twice():
    low, kept = in_common(Runs(chain(6)))
    assert kept == ["Relu"] * 6
    assert low == ["Cast", "Cast", *["Relu", "Cast", "Cast"] * 6]


def test_what_is_fused_in_a_low_form_is_not_even_rounded():
    low, _ = in_common(Runs(chain(3), fused=names("v1", "v2")))
    assert low == ["Cast", "Cast", "Relu", "Relu", "Relu", "Cast", "Cast"]


def test_what_differs_within_stretches_is_made_when_it_is_needed():
    net, made = chain(3), list[bool]()

    def whole() -> Switched:
        made.append(True)
        return emulate_switched(net, roles_of(net), FP16)

    alike = emulate_switched(net, roles_of(net), FP16, layout=Layout(alike=True))
    assert len(list(alike.model.graph.all_nodes())) < len(list(whole().model.graph.all_nodes()))
    made.clear()
    runner, expected = SwitchedRunner(lambda: alike, whole), Runs(net)
    for kept, times in (((), 0), (("n0", "n1", "n2"), 0), (("n1",), 1), ((), 1), (("n0",), 1)):
        fp32 = frozenset(map(NodeName, kept))
        assert_same(runner.run({"x": X}, fp32), expected(fp32))
        assert len(made) == times


def test_the_graph_goes_once_its_session_is_made(monkeypatch):
    monkeypatch.setattr(switched_runner, "_MANY", 1)
    net, models = chain(3), list[weakref.ref[ir.Graph]]()

    def make(*, alike: bool = False) -> Switched:
        made = emulate_switched(net, roles_of(net), FP16, layout=Layout(alike=alike))
        models.append(weakref.ref(made.model.graph))
        return made

    runner = SwitchedRunner(lambda: make(alike=True), make)
    runner.prepare(frozenset({NodeName("n1")}))
    assert [model() for model in models] == [None, None]


def test_names_within_are_too_short_for_memory_of_their_own():
    graph = emulate_switched(chain(3), roles_of(chain(3)), FP16).model.graph
    inner = [v.name or "" for body in graph.subgraphs() for n in body for v in n.outputs]
    assert inner
    assert max(map(len, inner)) < 16
    assert len(set(inner)) == len(inner)
