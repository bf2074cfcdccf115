"""What a plan costs."""

import numpy as np
import onnx
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from halfwise.emulation.runner import seen_in_bodies, seen_shapes
from halfwise.fixing.cost import FLOPS_PER_BYTE_FP32, FLOPS_PER_BYTE_TF32, CostModel
from halfwise.formats import FP16
from halfwise.graph.casts import low_type
from halfwise.graph.model import network_from_proto, node_name
from halfwise.graph.roles import Role, float_io, is_float, roles_of
from tests.control import BOOL, F32, GO, I64, STEP, graph
from tests.graphs import Drawn, graphs
from tests.unit.graph.sketch import Sketch, f32

CONVS = frozenset(("first", "second", "third"))


def chain(rows, width, activation=False):
    """Three products of [rows, width], with a Relu behind the first where asked for."""
    s = Sketch()
    x = s.input("x", [rows, width])
    for name in ("first", "second", "third"):
        x = s.op("MatMul", x, f32(np.ones((width, width))), name=name)
        if activation and name == "first":
            x = s.op("Relu", x, name="relu")
    network = s.network(x)
    roles = roles_of(network, low_type(FP16))
    shapes = seen_shapes(network, {"x": np.ones((rows, width), np.float32)})
    return CostModel(network, roles, shapes)


def test_what_memory_bounds_costs_twice_as_much_in_fp32():
    model = chain(1, 64)
    moved = 3 * (64 * 64 + 2 * 64)
    assert model.cost(CONVS) == 4 * moved
    # Low, the input is converted first, 4 bytes read and 2 written, and the output last.
    assert model.cost(frozenset()) == 2 * moved + 2 * 6 * 64


def test_what_arithmetic_bounds_is_its_operations():
    model = chain(2048, 1024)
    assert model.cost(CONVS) == pytest.approx(3 * 2 * 2048 * 1024**2 / FLOPS_PER_BYTE_FP32)


def test_tf32_computes_faster_and_moves_as_much():
    large, small = chain(2048, 1024), chain(1, 64)
    flops = 3 * 2 * 2048 * 1024**2
    assert large.cost(CONVS, tf32=True) == pytest.approx(flops / FLOPS_PER_BYTE_TF32)
    assert small.cost(CONVS, tf32=True) == small.cost(CONVS)


def test_an_island_pays_for_its_casts():
    low, island = (chain(1, 64).cost(kept) for kept in (frozenset(), frozenset(("second",))))
    more = 2 * (64 * 64 + 2 * 64)
    assert island == low + more + 2 * 6 * 64


def test_what_a_kernel_hands_on_inside_is_never_stored():
    plain, fused = chain(1, 64), chain(1, 64, activation=True)
    assert fused.cost(frozenset()) == plain.cost(frozenset())
    assert fused.cost(frozenset(("relu",))) > fused.cost(frozenset())


@given(st.integers(1, 40), st.integers(1, 40))
def test_low_costs_no_more_than_fp32_but_for_the_casts_at_the_ends(rows, width):
    model = chain(rows, width)
    assert model.cost(frozenset()) <= model.cost(CONVS) + 2 * 6 * rows * width


@given(graphs())
def test_where_all_may_be_low_and_the_ends_are_no_plan_costs_less(drawn: Drawn):
    network = network_from_proto(drawn.proto)
    roles = roles_of(network, low_type(FP16))
    touching = [n for n in network.nodes() if roles[node_name(n)].role is not Role.BLIND]
    assume(
        all(
            roles[node_name(n)].inputs == tuple(map(is_float, n.inputs))
            and roles[node_name(n)].outputs == tuple(map(is_float, n.outputs))
            for n in touching
        )
    )
    model = CostModel(network, roles, seen_shapes(network, drawn.sample), low_io=float_io(network))
    assert model.cost(frozenset()) <= model.cost(frozenset(roles))


def product(made):
    """A product of [4, 512], as a node of a body that gives `made`."""
    return onnx.helper.make_node("MatMul", [f"{made}_in", "weight"], [made], f"{made}_node")


def with_body(kind):
    """The product in a Loop, or in one branch of an If whose other one gives what it reads."""
    s = Sketch()
    x = s.input("x", [None, 512])
    s.constant(f32(np.ones((512, 512))), "weight")
    state, rows = (F32, (None, 512)), s.op("Relu", x, name="relu")
    if kind == "Loop":
        trips = s.input("trips", [], I64)
        same = onnx.helper.make_node("Identity", ["go"], ["on"], "same")
        formals = [("step", STEP), ("go", GO), ("y_in", state)]
        body = graph("body", [same, product("y")], formals, [("on", GO), ("y", state)])
        s.nodes.append(onnx.helper.make_node("Loop", [trips, "", rows], ["out"], "node", body=body))
    else:
        flag, node = s.input("flag", [], BOOL), product("y")
        node.input[0] = rows
        idle = onnx.helper.make_node("Identity", [rows], ["z"], "idle")
        then, other = (
            graph(n, [m], (), [(o, state)]) for n, m, o in (("t", node, "y"), ("e", idle, "z"))
        )
        branches = {"then_branch": then, "else_branch": other}
        s.nodes.append(onnx.helper.make_node("If", [flag], ["out"], "node", **branches))
    return s.network(s.op("Relu", "out", name="last"))


def cost_of(network, samples):
    roles = roles_of(network, low_type(FP16))
    runs, inside = seen_in_bodies(network, samples)
    shapes = seen_shapes(network, samples[0]) | inside
    model = CostModel(network, roles, shapes, runs=runs, low_io=float_io(network))
    return lambda *kept: model.cost(frozenset(kept))


def test_a_loop_costs_what_its_body_does_times_its_runs():
    network = with_body("Loop")

    def of(trips):
        return cost_of(network, [{"x": np.ones((4, 512), np.float32), "trips": np.array(trips)}])

    once = 512 * 512 + 2 * 4 * 512
    assert of(7)() - of(2)() == 5 * 2 * once
    assert of(7)("node") - of(2)("node") == 5 * 4 * once
    assert of(7)("relu", "node", "last") == pytest.approx(2 * of(7)(), rel=0.02)


def test_a_branch_costs_as_often_as_it_runs():
    network = with_body("If")
    x = np.ones((4, 512), np.float32)
    samples = [{"x": x, "flag": np.array(flag)} for flag in (True, False)]
    always, half, never = (cost_of(network, s) for s in (samples[:1], samples, samples[1:]))
    assert always() > 10 * never()
    assert always() - half() == pytest.approx(half() - never())
    assert always("node") > 1.8 * always()


def energy(terms, fp32):
    """What terms say that a plan costs, up to a constant."""

    def is_fp32(end):
        return end if isinstance(end, bool) else end in fp32

    total = sum(cost for name, cost in terms.nodes.items() if name in fp32)
    for producer, readers, cost in terms.values:
        total += cost * len({is_fp32(r) for r in readers} - {is_fp32(producer)})
    return total


@given(graphs(), st.data())
def test_terms_add_up_to_the_cost_where_memory_decides(drawn, data):
    network = network_from_proto(drawn.proto)
    roles = roles_of(network)
    model = CostModel(network, roles, seen_shapes(network, drawn.sample))
    free = sorted(n for n, role in roles.items() if role.free)
    kept = data.draw(st.frozensets(st.sampled_from(free))) if free else frozenset()
    assume(all(node.flops == 0 for node in model._nodes))
    terms = model.terms()
    told = energy(terms, kept) - energy(terms, frozenset())
    assert told == pytest.approx(model.cost(kept) - model.cost(frozenset()), rel=1e-9, abs=1e-6)
