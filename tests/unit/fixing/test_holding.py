"""Plans that pass where each value is rounded, and not as ONNX Runtime runs the file."""

from dataclasses import replace

import numpy as np
import pytest
from onnx import TensorProto
from tests.unit.fixing.int8.test_planner import FOUND, MADE, hold

from halfwise.fixing import holding
from halfwise.fixing.holding import BASELINE_INSPECTED, DEARER, Holding, PlanJudge
from halfwise.fixing.int8.planner import int8_planner
from halfwise.fixing.plan.found import Found
from halfwise.judging import inside
from halfwise.progress import Silent
from halfwise.records import NodeName
from halfwise.reporting.remarks import reasons
from tests import models
from tests.models import Ill
from tests.models.accumulation import mean_beside_products
from tests.unit.fixing.running import Listener, found, kept, planner, scoring_of
from tests.unit.graph.sketch import Sketch, f32

pytestmark = pytest.mark.usefixtures("unrepaired")


def test_few_nodes_that_lead_to_the_decision_are_kept():
    listener = Listener()
    fixed = found(models.position_bucket(), listener)
    assert kept(fixed) == {"quotient"}
    assert fixed.plan.minimal
    assert fixed.verdict.passed
    assert fixed.verdict.as_file is not None
    assert fixed.verdict.as_file.passed
    assert any("without rounding between nodes" in note for note in listener.notes)
    (guard,) = [g for g in fixed.guards if g.kind == "decision"]
    assert (guard.node, guard.tensor, guard.nodes) == ("bucket", "spread_out", ("quotient",))


def test_flips_that_no_output_feels_keep_nothing():
    ill = models.position_bucket()
    fixed = found(ill, max_abs=1e3)
    assert kept(fixed) == set()
    assert fixed.verdict.as_file is not None
    assert fixed.verdict.as_file.passed


def test_heldout_samples_alone_that_flip_join():
    ill = models.position_bucket()
    calm = np.array(ill.inputs["x"])
    calm[calm % 16 == 0] = 9
    fixed = found(Ill(ill.proto, {"x": calm}), heldout=dict(ill.inputs))
    assert kept(fixed) == {"quotient"}
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
    assert fixed.verdict.as_file is not None
    assert not fixed.verdict.as_file.passed
    assert [f.node for f in fixed.verdict.as_file.flips] == ["bucket"]


def test_a_rule_that_lowers_what_would_help_fails():
    lower = ["bucket", "spread", "quotient", "log", "part"]
    fixed = found(models.position_bucket(), lower=lower)
    assert kept(fixed) == {"half"}  # all that is left to keep
    assert not fixed.found.passed
    assert not fixed.verdict.passed


def test_what_cannot_run_as_a_file_says_why():
    fixed = found(models.layer_norm(), to="bf16")
    assert fixed.verdict.passed
    assert fixed.verdict.as_file is not None
    assert fixed.verdict.as_file.passed is None
    assert fixed.verdict.as_file.not_run


def test_models_that_decide_nothing_run_once_more_at_the_end():
    fixed = found(models.small())
    assert fixed.verdict.as_file is not None
    assert fixed.verdict.as_file.passed
    assert fixed.verdict.as_file.outputs.keys() == {"relu_out"}


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
    assert {k.guard for k in fixed.plan.keep} == {"decision"}
    assert {n for k in fixed.plan.keep for n in [k.node[-1]]} == {"0", "1"}


def test_both_are_held_one_after_the_other_and_told():
    listener = Listener()
    fixed = found(models.small_token(), listener)
    (note,) = [n for n in listener.notes if "the outputs pass, but" in n]
    assert "3 tensors are infinite inside; 4 nodes held" in note
    assert fixed.verdict.as_file is not None


@pytest.mark.parametrize("dear", [False, True])
def test_a_known_plan_that_holds_and_costs_less_is_taken_instead(monkeypatch, dear):
    own = planner(models.small_token())
    few = frozenset[NodeName]()
    larger = frozenset(map(NodeName, models.small_token().kept)) | {min(own.roles.computing)}
    assert all(own.trials.evaluate(kept).passed for kept in (few, larger))
    prices = {few: 1.0, larger: 3.0 if dear else 1.1, own.roles.computing: 4.0}
    monkeypatch.setattr(own, "price", lambda kept: prices.get(kept, 2.0))
    holding = Holding(scoring_of(own))
    plan = Found(few, True, True, {}, frozenset(), {}, False, ())
    assert not holding.holds(plan, own.rewrite(few)[0])
    assert bool(own.held) == dear
    taken = holding.sound(plan)
    assert taken.kept == (few if dear else larger)
    assert taken.minimal == dear
    assert [step.kind for step in taken.steps] == ([] if dear else ["sounder"])
    assert dear or holding.holds(taken, own.rewrite(larger)[0])


def test_a_sum_that_costs_little_is_kept_where_others_sum_in_fp16():
    fixed = found(mean_beside_products(8192))
    assert kept(fixed) == {"mean"}
    assert [k.guard for k in fixed.plan.keep] == ["sum"]
    assert fixed.verdict.passed
    assert fixed.verdict.sums == "fp16"
    assert (fixed.scoring.planner.price(fixed.found.kept) or np.inf) <= DEARER
    (guard,) = [g for g in fixed.guards if g.kind == "sum"]
    assert (guard.node, guard.nodes) == ("mean", ("mean",))


def test_what_gains_nothing_over_fp32_stays():
    fixed = found(models.deep(), rel_max=5.5e-4)
    assert fixed.verdict.sums == "fp32"
    assert kept(fixed) < fixed.scoring.planner.choices


@pytest.mark.parametrize("options", [{}, {"lower": ["mean"]}])
def test_a_sum_that_costs_more_or_is_low_by_a_rule_stays_low(options):
    fixed = found(mean_beside_products(8192 if options else 16), **options)
    assert kept(fixed) == set()
    assert fixed.verdict.passed
    assert fixed.verdict.sums == "fp32"
    assert not any(g.kind == "sum" for g in fixed.guards)


@pytest.fixture
def emulated(monkeypatch):
    """Tell, of each emulation, on how many samples, and how many are looked inside of."""
    seen, emulate = [], inside.emulate

    def telling(candidate, samples, **options):
        seen.append((len(samples), options["inspected"]))
        return emulate(candidate, samples, **options)

    monkeypatch.setattr(holding, "emulate", telling)
    return seen


def test_a_model_that_needs_nothing_is_emulated_once(emulated):
    fixed = found(models.small())
    assert emulated == [(len(fixed.heldout.samples), None)]
    assert fixed.planner.trials.runs == len(fixed.references)
    assert fixed.evaluations == 1
    assert fixed.verdict.outputs == fixed.baseline.outputs


def test_of_another_the_baseline_is_looked_into_on_a_few_samples(emulated):
    fixed = found(models.layer_norm())
    assert kept(fixed)
    samples = len(fixed.heldout.samples)
    assert emulated == [(samples, BASELINE_INSPECTED), (samples, None)]


def test_a_file_from_before_nodes_were_held_is_not_that_of_the_plan():
    made = int8_planner(MADE, FOUND, Silent())
    assert made is not None
    made.case = replace(made.case, criterion=made.case.criterion.model_copy(update={"snr_db": 1.0}))
    made.begin(MADE.evidence)
    scoring, low = scoring_of(made), frozenset[NodeName]()
    judge = PlanJudge(scoring, frozenset(), Silent())
    judge.baseline(Holding(scoring))
    assert made.trials.excess(low) <= 1
    before, again = judge.write(low)[0], judge.write(low)[0]
    hold(made, "product1")
    after = judge.write(low)[0]
    assert before is again
    pairs = [[n.op_type for n in w.model.graph].count("DequantizeLinear") for w in (before, after)]
    assert pairs[1] == pairs[0] - 2
