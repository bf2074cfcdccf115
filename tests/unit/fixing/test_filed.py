"""Plans that pass where each value is rounded, and not as ONNX Runtime runs the file."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from halfwise.case import Built, Samples
from halfwise.emulation.blocks import MOST
from halfwise.emulation.budget import Budget
from halfwise.emulation.runner import OnnxRuntime
from halfwise.errors import CaseError, RunFailed
from halfwise.fixing import depths
from halfwise.fixing.filed import STEP, filed, low_sum_work, lowest_sums
from halfwise.fixing.fixed import Fixed
from halfwise.fixing.loop import fix
from halfwise.fixing.rewrite import rewrite as rewrite_mixed
from halfwise.fixing.space import Space
from halfwise.formats import FP16
from halfwise.graph.casts import low_type
from halfwise.graph.model import tensor_name
from halfwise.graph.roles import roles_of
from halfwise.judging import inside
from halfwise.judging.judge import judge
from halfwise.judging.reference import inspected_reference
from halfwise.metrics import totals
from halfwise.options.loading import load_case
from halfwise.options.options import understand
from halfwise.progress import Interruption, Silent
from halfwise.records import replace
from halfwise.reporting.remarks import reasons
from tests import models
from tests.models import Ill, signals, weights
from tests.models.accumulation import mean_beside_products
from tests.unit.casing import names
from tests.unit.fixing.running import Listener, found, kept, space_of
from tests.unit.graph.sketch import Sketch, f32

pytestmark = pytest.mark.usefixtures("unrepaired")


def holds_quotient(fixed: Fixed) -> bool:
    """Return whether it keeps that, and costs no more than with that alone."""
    cost, alone = (fixed.space.cost(nodes) for nodes in (fixed.result.kept, names("quotient")))
    return "quotient" in kept(fixed) and (cost or 9) <= (alone or 0)


@dataclass(frozen=True)
class Builder:
    """Builds nothing, and says that FP16 values move so many bytes each."""

    bytes_each: int
    name: str = "builder"
    version: str = "1"
    runs: bool = False
    fuses: bool = True

    def run(self, model, samples):
        assert len(samples) > 0
        values = (value for node in model.graph.all_nodes() for value in node.outputs)
        low = [value for value in values if value.dtype == TensorProto.FLOAT16]
        return Built(traffic=1000 + self.bytes_each * len(low))

    def close(self):
        """Do nothing."""


@pytest.mark.parametrize(("bytes_each", "count"), [(0, 2), (10_000, 3)])
def test_the_builder_decides_between_the_last_plans(bytes_each, count):
    ill = models.two_readers()
    request = understand(dict(ill.inputs), {"allow_random": True})
    case = load_case(ill.proto, request.data, request.criterion)
    settings = replace(request.settings, targets=(Builder(bytes_each),))
    fixed = fix(case, settings, Silent())
    assert fixed.verdict.passed
    assert len(fixed.plan.keep) == count


@dataclass(frozen=True)
class Refusing(Builder):
    """Refuses files with few FP16 values, and counts what it is asked."""

    asked: list[int] = field(default_factory=list)

    def run(self, model, samples):
        built = super().run(model, samples)
        self.asked.append(built.traffic)
        if built.traffic == min(self.asked) < max(self.asked):
            raise CaseError("It is refused.")
        return built


class WrongInTheSearch(OnnxRuntime, frozen=True):
    """Has files with few FP16 values wrong, on more than two samples."""

    def run(self, model, samples):
        results = super().run(model, samples)
        few = 0 < Builder(1).run(model, samples).traffic - 1000 < 4
        wrong = few and len(samples) > 2
        return [{n: 2 * a if wrong else a for n, a in r.items()} for r in results]


def test_a_plan_whose_file_is_wrong_in_the_search_is_none_of_the_last():
    ill = models.two_readers()
    request = understand(dict(ill.inputs), {"allow_random": True})
    case = load_case(ill.proto, request.data, request.criterion)
    targets = Builder(10_000), WrongInTheSearch()
    fixed = fix(case, replace(request.settings, targets=targets), Silent())
    assert fixed.verdict.passed
    assert len(fixed.plan.keep) == 2


def test_a_plan_that_the_builder_refuses_is_none_of_the_last():
    ill = models.two_readers()
    request = understand(dict(ill.inputs), {"allow_random": True})
    case = load_case(ill.proto, request.data, request.criterion)
    builder = Refusing(10_000)
    fixed = fix(case, replace(request.settings, targets=(builder,)), Silent())
    assert fixed.verdict.passed
    assert len(fixed.plan.keep) == 2


def test_without_time_no_further_plan_is_built(monkeypatch):
    ill = models.two_readers()
    request = understand(dict(ill.inputs), {"allow_random": True})
    case = load_case(ill.proto, request.data, request.criterion)
    builder = Refusing(0)
    stopped = Interruption()
    monkeypatch.setattr("halfwise.emulation.budget.interruption", lambda: stopped)
    run = Builder.run

    def interrupted(self, model, samples):
        stopped.at = 0.0
        return run(self, model, samples)

    monkeypatch.setattr(Builder, "run", interrupted)
    fixed = fix(case, replace(request.settings, targets=(builder,)), Silent())
    assert fixed.verdict.passed
    assert len(builder.asked) == 1


def test_few_nodes_that_lead_to_the_decision_are_kept():
    listener = Listener()
    fixed = found(models.position_bucket(), listener)
    assert holds_quotient(fixed)
    assert fixed.verdict.passed
    assert fixed.verdict.as_file[0].passed
    assert any("of the search fail as the file runs" in note for note in listener.notes)
    (guard,) = [g for g in fixed.guards if g.kind == "decision"]
    assert (guard.node, guard.tensor) == ("bucket", "spread_out")
    assert guard.nodes == ("bucket", "spread", "quotient", "log", "part")


def test_the_same_nodes_lead_to_it_where_a_share_may_fail():
    fixed = found(models.position_bucket(), failing=0.5)
    assert [k.node for k in fixed.plan.keep if k.guard == "decision"] == ["quotient"]


def test_flips_that_no_output_feels_keep_nothing():
    ill = models.position_bucket()
    fixed = found(ill, max_abs=1e3)
    assert kept(fixed) == set()
    assert fixed.verdict.as_file[0].passed


def test_heldout_samples_alone_that_flip_join():
    ill = models.position_bucket()
    calm = np.array(ill.inputs["x"])
    calm[calm % 16 == 0] = 9
    fixed = found(Ill(ill.proto, {"x": calm}), heldout=dict(ill.inputs))
    assert holds_quotient(fixed)
    assert fixed.verdict.passed
    assert fixed.search.joined


def test_the_last_heldout_sample_fails_with_the_decision():
    ill = models.position_bucket()
    calm = np.array(ill.inputs["x"])
    calm[calm % 16 == 0] = 9
    fixed = found(Ill(ill.proto, {"x": calm}), heldout={"x": ill.inputs["x"][:1]})
    assert not fixed.verdict.passed
    assert any("hen ONNX Runtime runs the file" in r for r in reasons(fixed.verdict.failures))
    assert any("bucket (Cast) decides" in r for r in reasons(fixed.verdict.failures))
    assert not fixed.verdict.as_file[0].passed
    flips = [failure for failure in fixed.verdict.failures if failure.kind == "flip"]
    assert [failure.names["node"] for failure in flips] == ["bucket"]


def test_a_rule_that_lowers_what_would_help_fails():
    lower = ["bucket", "spread", "quotient", "log", "part"]
    fixed = found(models.position_bucket(), lower=lower)
    assert kept(fixed) == {"half"}  # all that is left to keep
    assert not fixed.result.passed
    assert not fixed.verdict.passed


def test_what_cannot_run_as_a_file_says_why():
    fixed = found(models.layer_norm(), to="bf16")
    assert fixed.verdict.passed
    assert fixed.verdict.as_file[0].passed is None
    assert fixed.verdict.as_file[0].not_run


def test_models_that_decide_nothing_run_once_more_at_the_end():
    fixed = found(models.small())
    assert fixed.verdict.as_file[0].passed
    assert fixed.verdict.as_file[0].outputs.keys() == {"relu_out"}


def test_two_decisions_are_mended_together():
    s = Sketch()
    far = s.op("Cast", s.input("x", [1, 24], TensorProto.INT64), name="far", to=TensorProto.FLOAT)
    parts = []
    for i, base in enumerate((16, 16)):
        log = s.op("Log", s.op("Div", far, f32(8.0), name=f"part{i}"), name=f"log{i}")
        quotient = s.op("Div", log, f32(np.log(base)), name=f"quotient{i}")
        spread = s.op("Mul", quotient, f32(8.0), name=f"spread{i}")
        bucket = s.op("Cast", spread, name=f"bucket{i}", to=TensorProto.INT64)
        table = models.weights(9, 4, seed=160 + i, scale=1.0)
        parts.append(s.op("Gather", table, bucket, name=f"bias{i}"))
    y = s.op("Add", *parts, name="both")
    fixed = found(Ill(s.proto(y), models.position_bucket().inputs))
    assert fixed.verdict.passed
    decided = {k.node for k in fixed.plan.keep if k.guard == "decision"}
    assert {node[-1] for node in decided} == {"0", "1"}


def test_what_gains_nothing_over_fp32_stays():
    fixed = found(models.deep(), rel_max=5.5e-4)
    assert fixed.verdict.sums == "fp32"
    assert kept(fixed) < fixed.space.choices


@pytest.mark.parametrize("options", [{}, {"lower": ["mean"]}])
def test_a_sum_that_costs_more_or_is_low_by_a_rule_stays_low(options):
    fixed = found(mean_beside_products(8192 if options else 16), **options)
    assert kept(fixed) == set()
    assert fixed.verdict.passed
    assert fixed.verdict.sums == "fp32"
    assert not any(g.kind == "sum" for g in fixed.guards)


# --- files that fail, without a decision that explains it --------------------------------------


def chain() -> Ill:
    s = Sketch()
    x = s.input("x", [1, 8])
    for i in range(4):
        x = s.op("MatMul", x, weights(8, 8, seed=i, scale=0.3), name=f"mat{i}")
    return Ill(s.proto(x), {"x": signals(1, 8, seed=3, count=12)})


RUN = OnnxRuntime.run


def reversed_while_low(runner, model, samples):
    results = RUN(runner, model, samples)
    (own,) = [n for n in model.graph if n.name == "mat2"]
    low = own.outputs[0].dtype.name == "FLOAT16"
    return [{n: a[..., ::-1] if low else a for n, a in r.items()} for r in results]


def filed_failing(*_, **__):
    raise RunFailed("it does not run")


def refusing(*_, **__):
    raise CaseError("it does not load")


@pytest.mark.parametrize("options", [{}, {"metric": "snr", "metric_drop": 60.0}])
def test_the_search_goes_on_until_the_file_passes(monkeypatch, options):
    monkeypatch.setattr(OnnxRuntime, "run", reversed_while_low)
    listener = Listener()
    fixed = found(chain(), listener, **options)
    assert kept(fixed) == {"mat2"}
    assert fixed.verdict.passed
    assert fixed.verdict.as_file[0].passed
    assert fixed.search.joined
    assert any("fail as the file runs" in note for note in listener.notes)


@pytest.fixture
def demanding() -> Space:
    """Return plans whose files have to pass."""
    space = space_of(chain())
    space.bench.demand(lambda *of: filed(space.bench, space.budget, *of).excess)
    return space


def test_what_is_demanded_of_a_plan_is_of_plans_with_repairs_too(monkeypatch, demanding):
    monkeypatch.setattr(OnnxRuntime, "run", reversed_while_low)
    assert not demanding.evaluate(names()).passed
    other = demanding.repaired(())
    assert not other.evaluate(names()).passed
    assert other.evaluate(names("mat2")).passed


@pytest.mark.parametrize("run", [refusing, filed_failing])
def test_a_file_that_is_not_run_demands_nothing(monkeypatch, demanding, run):
    monkeypatch.setattr(OnnxRuntime, "run", run)
    assert demanding.evaluate(names()).passed


# --- work that is not done twice ---------------------------------------------------------------


@pytest.fixture
def emulated(monkeypatch):
    """Tell, of each emulation, on how many samples, and whether inside all count exactly."""
    seen, emulate = [], inside.emulate

    def telling(candidate, samples, **options):
        seen.append((len(samples), options.get("exact", False)))
        return emulate(candidate, samples, **options)

    monkeypatch.setattr(depths, "emulate", telling)
    return seen


def test_a_model_that_needs_nothing_is_emulated_once(emulated):
    fixed = found(models.small())
    assert emulated == [(len(fixed.heldout.samples), False)]
    assert fixed.space.bench.runs == len(fixed.space.bench.references)
    assert fixed.evaluations == 1
    assert fixed.verdict.outputs == fixed.baseline.outputs


def test_of_one_that_overflows_the_baseline_counts_exactly_from_the_start(emulated):
    fixed = found(models.layer_norm())
    assert kept(fixed)
    samples = len(fixed.heldout.samples)
    searched = len(fixed.space.bench.references)
    assert emulated == [(samples, True), (searched, False), (samples, False)]


NONE: frozenset[Any] = frozenset()


def lowest(ill, kept=NONE, budget=None, options=None, **settings):
    samples = Samples(("0", "1", "2"), ill.sample)
    request = understand(dict(ill.inputs), options or {})
    case = load_case(ill.proto, request.data, request.criterion)
    network = case.network
    roles = roles_of(network, low_type(FP16))
    written = rewrite_mixed(network, roles, kept, FP16, fixed=NONE, low_io=NONE)
    references = inspected_reference(network, samples)[0]
    verdict = judge(written.model, samples, references, case.criterion, case.metric).verdict
    assert verdict.passed
    worst = verdict.excesses.index(max(verdict.excesses))
    one = samples[worst], references[worst], totals(references)
    chosen = replace(request.settings, **settings)
    return lowest_sums(written.model, (one,), case, chosen, budget or Budget())


@pytest.mark.parametrize(
    ("make", "sums"),
    [
        (models.small, "fp16"),
        (models.accumulation.long_product, "fp32"),
        (models.accumulation.global_mean, "fp32"),
        (models.accumulation.inner_squares, "fp32"),
    ],
)
def test_the_lowest_format_with_which_it_passes(make, sums) -> None:
    assert lowest(make()) == sums


def test_infinities_of_low_sums_are_no_class() -> None:
    """They leave the first class first, as it is in FP32."""
    s = Sketch()
    y = s.op("ReduceMean", s.input("x", [1, 4, 4096]), axes=[2], keepdims=0)
    values = np.random.default_rng(7).uniform(30, 40, (8, 1, 4, 4096))
    values[::2, :, 0] *= 2  # the hardest samples
    values[1::2, :, 2] *= 1.5
    ill = Ill(s.proto(y), {"x": f32(values)})
    assert lowest(ill, options={"metric": "top1"}) == "fp32"


def test_a_sum_kept_in_fp32_is_no_low_sum() -> None:
    ill = models.accumulation.inner_squares()
    assert lowest(ill, frozenset(ill.kept)) == "fp16"
    every = frozenset(n.name for n in ill.proto.graph.node)
    assert lowest(ill, every) is None


def test_what_was_judged_with_low_sums_is_not_run_again() -> None:
    assert lowest(models.small(), accumulate="fp16") == "fp16"


def test_without_a_sum_its_format_does_not_matter() -> None:
    s = Sketch()
    y = s.op("Exp", s.input("x", [1, 64]))
    inputs = {"x": f32(np.random.default_rng(1).uniform(8, 11, (8, 1, 64)))}  # off by 0.7 %
    assert lowest(Ill(s.proto(y), inputs)) == "fp16"


def test_low_sums_are_beside_the_budget() -> None:
    budget = Budget()
    assert lowest(models.small(), budget=budget) == "fp16"
    assert not budget.spent
    assert not budget.cut


def test_a_budget_that_is_spent_shows_nothing() -> None:
    budget = Budget(work=0)
    assert lowest(models.small(), budget=budget) == "fp32"
    assert budget.cut == ["sums"]
    assert budget.ended_by == ["work"]


@pytest.mark.parametrize(("value", "sums"), [(1.0, "fp16"), (30.0, "fp32")])
def test_below_the_opset_of_low_sums_a_model_is_raised_to_it(value, sums) -> None:
    s = Sketch(11)
    y = s.op("Div", s.op("ReduceMean", s.input("x", [1, 4096]), axes=[1]), f32(value))
    inputs = {"x": f32(np.full((8, 1, 4096), value))}
    assert lowest(Ill(s.proto(y), inputs)) == sums


def test_too_many_additions_are_not_made(monkeypatch) -> None:
    monkeypatch.setattr("halfwise.fixing.filed.ADDITIONS", 1e3)
    budget = Budget()
    assert lowest(models.small(), budget=budget) == "fp32"
    assert not budget.cut


@pytest.mark.parametrize(
    ("op", "shapes", "work"),
    [
        ("MatMul", ([2, 3], [3, 5]), 3 * (10 + STEP)),
        ("MatMul", ([2, 10**6], [10**6, 5]), MOST * (10 + STEP)),
        ("Conv", ([1, 3, 8, 8], [4, 3, 3, 3]), 27 * (144 + STEP)),
    ],
)
def test_work_is_counted_by_products(op, shapes, work) -> None:
    s = Sketch()
    a, b = (s.input(name, shape) for name, shape in zip("ab", shapes, strict=True))
    network = s.network(s.op(op, a, b, name="y"))
    values = (*network.graph.inputs, *network.graph.outputs)
    seen = {tensor_name(v): tuple(d for d in v.shape or () if type(d) is int) for v in values}
    assert low_sum_work(network.graph, seen) == work
