"""What a plan costs."""

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from halfwise.case import Rules
from halfwise.emulation.budget import TimeBudget
from halfwise.emulation.runner import seen_shapes
from halfwise.fixing.loop import fix
from halfwise.fixing.planner import Planner
from halfwise.fixing.worth import FLOPS_PER_BYTE_FP32, CostModel, candidate_worth, worth_of
from halfwise.formats import FP16
from halfwise.graph.casts import low_type
from halfwise.graph.model import network_from_proto, node_name
from halfwise.graph.roles import Role, float_io, is_float, roles_of
from halfwise.options.loading import load_case
from halfwise.options.options import understand
from halfwise.progress import Silent
from tests import models
from tests.graphs import Drawn, graphs
from tests.unit.graph.sketch import Sketch, f32
from tests.unit.reporting.engine_runs import engines, failed, result

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


def test_products_count_their_operations():
    s = Sketch()
    image = s.input("image", [1, 3, 8, 8])
    s.input("sequence", [5, 1, 4])
    y = s.op("Conv", image, f32(np.ones((6, 3, 3, 3))), name="conv")
    z = s.op("ConvTranspose", y, f32(np.ones((6, 2, 3, 3))), name="back")
    g = s.op("Gemm", s.op("Flatten", z, name="flat"), f32(np.ones((128, 10))), name="gemm")
    r = s.op(
        "RNN",
        "sequence",
        f32(np.ones((1, 7, 4))),
        f32(np.ones((1, 7, 7))),
        name="rnn",
        hidden_size=7,
    )
    network = s.network(g, r)
    sample = {"image": f32(np.ones((1, 3, 8, 8))), "sequence": f32(np.ones((5, 1, 4)))}
    model = CostModel(network, roles_of(network, low_type(FP16)), seen_shapes(network, sample))
    flops = {str(node.name): node.flops for node in model._nodes}
    assert flops["conv"] == 2 * 6 * 6 * 6 * 3 * 9
    assert flops["back"] == 2 * 6 * 36 * 2 * 9
    assert flops["gemm"] == 2 * 128 * 10
    assert flops["rnn"] == 2 * 5 * 7 * (4 + 7)


@pytest.fixture(scope="module")
def fixed():
    ill = models.layer_norm()
    request = understand(ill.inputs, {})
    case = load_case(ill.proto, request.data, request.criterion)
    return fix(case, request.settings, Silent())


def test_everything_in_fp32_gains_nothing_and_the_nearest_plan_is_told(fixed):
    everything = frozenset(n for n, role in fixed.planner.roles.items() if role.free)
    worth = worth_of(fixed.planner, everything)
    assert worth is not None
    assert worth.cost == pytest.approx(worth.fp32)
    if worth.fp32 > 1:
        assert not worth.gains
        assert worth.nearest is not None
        assert worth.nearest.kept < len(everything)


def test_without_time_no_cheaper_plan_is_measured(fixed, monkeypatch):
    planner = fixed.planner
    monkeypatch.setattr(planner, "budget", TimeBudget(0))
    worth = worth_of(planner, fixed.found.kept, required=1.0)
    assert worth is not None
    assert worth.cost > 1
    assert worth.nearest is None
    assert planner.budget.cut == ["worth"]


def test_everything_low_costs_one(fixed):
    worth = worth_of(fixed.planner, frozenset())
    assert worth is not None
    assert worth.cost == 1
    assert worth.nearest is None


@settings(max_examples=30, deadline=None)
@given(graphs(), st.sampled_from(("fp16", "fp32")), st.booleans())
def test_keeping_nothing_costs_one_in_any_graph(drawn: Drawn, io, lower):
    inputs = {name: np.stack([array] * 2) for name, array in drawn.sample.items()}
    request = understand(inputs, {"io": io})
    case = load_case(drawn.proto, request.data, request.criterion)
    roles = roles_of(case.network, low_type(request.settings.fmt))
    lowered = tuple(re.escape(n) for n, role in roles.items() if role.free) if lower else ()
    asked = replace(request.settings, rules=Rules(lower=lowered))
    worth = worth_of(Planner(case, asked, roles, Silent()), frozenset())
    assume(worth is not None)
    assert worth is not None
    assert worth.cost == 1


def test_where_less_is_asked_for_the_nearest_plan_is_one_that_costs_as_little(fixed):
    planner = fixed.planner
    own = worth_of(planner, fixed.found.kept)
    near = worth_of(planner, fixed.found.kept, required=1.0)
    assert own is not None
    assert near is not None
    assert own.cost > 1
    assert near.nearest is not None
    assert near.nearest.cost <= 1
    assert worth_of(planner, fixed.found.kept, required=own.cost) == own
    none = worth_of(planner, fixed.found.kept, required=0.1)
    assert none is not None
    assert none.nearest is None


def test_a_candidate_is_worth_what_its_plan_is_and_fp32_nothing_that_is_known(fixed):
    planner = fixed.planner
    mixed = replace(planner.case.network, model=fixed.rewritten.model)
    found = candidate_worth(planner.case, planner.settings, mixed)
    own = worth_of(planner, fixed.found.kept)
    assert found is not None
    assert own is not None
    assert found.cost == pytest.approx(own.cost)
    assert candidate_worth(planner.case, planner.settings, planner.case.network) is None


def test_what_nothing_is_low_of_costs_what_fp32_does(fixed):
    # Its plan is that of the emulation, and is not in the engine.
    fp32 = result("FP32, TF32 off", 1, 4.0)
    low = result("FP16", 2, 1.0, build=failed(2), latency=None)
    found = engines(results=(fp32, low), rung="fp32", keep=())
    worth = worth_of(fixed.planner, fixed.found.kept, found)
    assert worth is not None
    assert (worth.cost, worth.measured, worth.nearest) == (worth.fp32, None, None)


def test_the_time_of_the_delivered_row_counts(fixed):
    rows = [result(name, i, 1.0 + i) for i, name in enumerate(("FP32, TF32 off", "FP16"))]
    mixed = [result(name, i, 1.0 + i) for i, name in enumerate(("mixed", "mixed, build 3"), 2)]
    own = mixed[1].build.engine
    assert own is not None
    own = own.model_copy(update={"sha256": "cd" * 32})
    mixed[1] = mixed[1].model_copy(
        update={"build": mixed[1].build.model_copy(update={"engine": own})}
    )
    for shown in (mixed, mixed[::-1]):
        found = engines(results=(*rows, *shown), rung="fp16", delivered=own)
        worth = worth_of(fixed.planner, fixed.found.kept, found)
        assert worth is not None
        assert worth.measured == 4.0 / 2.0


@pytest.mark.parametrize("io", ["fp32", "fp16"])
def test_a_candidate_of_which_all_is_low_costs_one(io):
    ill = models.layer_norm()
    request = understand(ill.inputs, {"io": io, "max_abs": 1e9})
    case = load_case(ill.proto, request.data, request.criterion)
    planner = fix(case, request.settings, Silent()).planner
    network = replace(case.network, model=planner.rewrite(frozenset())[0].model)
    found, own = candidate_worth(case, request.settings, network), worth_of(planner, frozenset())
    assert found is not None
    assert own is not None
    assert found.cost == 1
    assert found.fp32 == pytest.approx(own.fp32)
