"""Which samples the models of a run are emulated on."""

import pytest

from halfwise.fixing import plan_judge
from halfwise.fixing.plan_judge import BASELINE_INSPECTED
from halfwise.judging import inside
from tests import models
from tests.unit.fixing.test_loop import found, kept

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
