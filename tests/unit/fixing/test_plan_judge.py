"""Which samples the models of a run are emulated on."""

from dataclasses import replace

import pytest

from halfwise.fixing import plan_judge
from halfwise.fixing.holding import Holding
from halfwise.fixing.int8.planner import int8_planner
from halfwise.fixing.plan_judge import BASELINE_INSPECTED, PlanJudge
from halfwise.judging import inside
from halfwise.progress import Silent
from halfwise.records import NodeName
from tests import models
from tests.unit.fixing.int8.test_planner import FOUND, MADE, hold
from tests.unit.fixing.running import found, kept, scoring_of

pytestmark = pytest.mark.usefixtures("unrepaired")


@pytest.fixture
def emulated(monkeypatch):
    """Tell, of each emulation, on how many samples, and how many are looked inside of."""
    seen, emulate = [], inside.emulate

    def telling(candidate, samples, **options):
        seen.append((len(samples), options["inspected"]))
        return emulate(candidate, samples, **options)

    monkeypatch.setattr(plan_judge, "emulate", telling)
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
