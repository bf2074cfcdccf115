"""What a plan is worth."""

import re
from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from halfwise import api
from halfwise.case import Rules
from halfwise.emulation.budget import Budget
from halfwise.emulation.runner import seen_shapes
from halfwise.emulation.tf32 import tf32_nodes
from halfwise.errors import CaseError
from halfwise.fixing.loop import fix
from halfwise.fixing.planner import Planner
from halfwise.fixing.types import Types
from halfwise.fixing.worth import candidate_worth, worth_of
from halfwise.graph.casts import low_type
from halfwise.graph.conversion import low_nodes
from halfwise.graph.roles import FIRST_BF16_OPSET, roles_of
from halfwise.options.loading import load_case
from halfwise.options.options import understand
from halfwise.progress import Silent
from tests import models
from tests.graphs import Drawn, graphs
from tests.models import saved_beside, signals
from tests.unit.graph.quantisation.qdq import SIZE, chain, last
from tests.unit.reporting.engine_runs import engines, failed, result

pytestmark = pytest.mark.usefixtures("unrepaired")


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
    assert worth.over_fp32 == pytest.approx(1)
    if worth.fp32 > 1:
        assert not worth.gains
        assert worth.nearest is not None
        assert worth.nearest.kept < len(everything)
        assert not worth.nearest.passes


def test_of_a_plan_that_passes_that_is_known():
    ill = models.small()
    request = understand(ill.inputs, {"allow_random": True})
    case = load_case(ill.proto, request.data, request.criterion)
    planner = fix(case, request.settings, Silent()).planner
    worth = worth_of(planner, frozenset(n for n, role in planner.roles.items() if role.free))
    assert worth is not None
    assert worth.nearest is not None
    assert (worth.nearest.kept, worth.nearest.passes) == (0, True)
    everything = frozenset(n for n, role in planner.roles.items() if role.free)
    planner.forced = replace(planner.forced, kept=dict.fromkeys(everything, "--keep-op Gemm"))
    ruled = worth_of(planner, everything)
    assert ruled is not None
    assert ruled.nearest is None


def test_without_time_no_cheaper_plan_is_measured(fixed, monkeypatch):
    planner = fixed.planner
    monkeypatch.setattr(planner, "budget", Budget(0))
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
    assert found.low == "fp16"
    assert candidate_worth(planner.case, planner.settings, planner.case.network) is None


@pytest.mark.parametrize("make", [models.large_weights, models.two_bodies])
def test_the_weights_of_a_large_candidate_are_not_widened(make, tmp_path, monkeypatch):
    ill = make()
    path = saved_beside(ill, tmp_path)
    request = understand(ill.inputs, {})
    case = load_case(path, request.data, request.criterion)
    asked = replace(request.settings, large_from=0)
    planner = Planner(case, asked, roles_of(case.network), Silent())
    kept = frozenset(sorted(planner.choices)[:1])
    mixed = replace(case.network, model=planner.rewrite(kept)[0].model)
    ran = []

    def seen(network, sample, *, stand_in=None, **options):
        ran.append((network.model, stand_in))
        return seen_shapes(network, sample, stand_in=stand_in, **options)

    monkeypatch.setattr("halfwise.fixing.pricing.seen_shapes", seen)
    found = candidate_worth(case, asked, mixed)
    if len(case.network.graphs()) > 1:  # shapes in them would need its weights
        assert (found, ran) == (None, [])
        return
    assert planner.prices is not None
    assert found is not None
    assert found.cost == pytest.approx(planner.prices.of(kept))
    wide, emulated = ran[1]
    weight = wide.graph.initializers["out_w"].const_value.numpy()
    assert weight.strides == (0, 0)
    assert emulated.graph.initializers["out_w"].dtype == ir.DataType.FLOAT16


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


def test_where_a_plan_gives_the_very_file_of_fp32_the_delivered_rung_counts(fixed):
    # Seen in an engine of TensorRT 8.6.0: with its constraints the builder chose FP32 everywhere.
    fp32 = result("FP32, TF32 off", 1, 2.0, rung="fp32")
    rows = (fp32, result("FP16", 2, 2.0, rung="fp16"), result("mixed", 3, 3.0, rung="fp16"))
    for rung, measured in (("fp32", 1.0), ("fp16", 1.5)):
        found = engines(results=rows, rung=rung, delivered=fp32.build.engine)
        worth = worth_of(fixed.planner, fixed.found.kept, found)
        assert worth is not None
        assert (worth.measured, worth.measured_fp32) == (measured, 1.0)


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


def test_where_no_shape_in_a_body_is_seen_no_cost_is_told(fixed, monkeypatch):
    def refuse(*_, **__):
        raise CaseError("The model is too old.", "Raise its opset.")

    monkeypatch.setattr("halfwise.fixing.pricing.seen_in_bodies", refuse)
    planner = fixed.planner
    again = Planner(planner.case, planner.settings, planner.roles, Silent())
    assert worth_of(again, frozenset()) is None
    assert again.price(frozenset()) is None


@given(graphs(), st.sampled_from(("fp16", "fp32")), st.data())
def test_a_file_of_any_plan_costs_what_the_plan_does(drawn: Drawn, io, data):
    inputs = {name: np.stack([array] * 2) for name, array in drawn.sample.items()}
    new = drawn.proto.opset_import[0].version >= FIRST_BF16_OPSET
    request = understand(inputs, {"io": io, "allow": "bf16,tf32" if new else "tf32"})
    case = load_case(drawn.proto, request.data, request.criterion)
    planner = Planner(case, request.settings, roles_of(case.network), Silent())
    nodes = st.sets(st.sampled_from(sorted(planner.choices)) if planner.choices else st.nothing())
    kept = frozenset(data.draw(nodes))
    bf16 = planner.narrowing.may_have_bf16(kept).intersection(data.draw(nodes))
    types = Types(bf16, tf32=data.draw(st.booleans()) and has_product(planner, kept - bf16))
    planner.narrowing.take(kept, types)
    mixed = replace(case.network, model=planner.rewrite(kept)[0].model)
    assume(planner.prices is not None and low_nodes(mixed, (ir.DataType.FLOAT16,)))
    assert planner.prices is not None
    for large in (False, True):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("halfwise.fixing.worth.is_large", lambda *_, large=large: large)
            found = candidate_worth(case, planner.settings, mixed)
        if large and len(case.network.graphs()) > 1:
            assert found is None
            continue
        assert found is not None
        assert found.cost == pytest.approx(planner.prices.of(kept, types))
        assert found.fp32 == pytest.approx(planner.prices.fp32)


def has_product(planner, nodes):
    return not nodes.isdisjoint(tf32_nodes(planner.case.network))


def test_a_quantised_candidate_costs_what_the_run_said_that_wrote_it(tmp_path):
    sketch = chain([], opset=17)
    data = {"x": signals(2, SIZE, seed=1, peak=25)}
    run = api.fix(
        sketch.proto(last(sketch)), data, out=tmp_path / "run", to="int8", rel_max=0.3
    ).run
    found = api.verify(sketch.proto(last(sketch)), tmp_path / "run" / "model.onnx", data).run
    assert run.plan is not None
    assert run.plan.int8
    assert run.worth is not None
    assert found.worth is not None
    assert found.worth.cost == pytest.approx(run.worth.cost)
    assert found.worth.cost < 1 < found.worth.fp32
