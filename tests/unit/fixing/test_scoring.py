"""What plans of small models give on held-out samples."""

from typing import Any

import pytest

from halfwise.fixing.fixed import Fixed
from halfwise.fixing.scoring import Scoring
from halfwise.records import NodeName
from tests import models
from tests.tasks import classifier, close_calls, fixed

pytestmark = pytest.mark.usefixtures("unrepaired")


def given(scoring: Scoring, kept) -> Any:
    return scoring.given(kept)


NONE = frozenset[NodeName]()


@pytest.fixture(scope="module")
def normal() -> Fixed:
    return fixed(models.layer_norm())


def test_a_plan_is_measured_once(normal):
    scoring, trials = Scoring(normal.planner, normal.heldout), normal.planner.trials
    kept = normal.found.kept
    assert scoring.given(kept) is None
    assert scoring.casts(kept) is None
    before = trials.evaluations
    scoring.measure(kept)
    scoring.measure(kept)
    assert trials.evaluations == before + 1
    assert given(scoring, kept).rel_max < 0.01
    assert scoring.casts(kept) == normal.plan.casts


def test_the_model_itself_has_run_already(normal):
    scoring, trials = Scoring(normal.planner, normal.heldout), normal.planner.trials
    everything, before = frozenset(normal.planner.roles), trials.evaluations
    scoring.measure(everything, original=True)
    assert trials.evaluations == before
    assert given(scoring, everything).heldout == 0


def test_what_a_plan_lacks_inside_is_what_overflows(normal):
    scoring = Scoring(normal.planner, normal.heldout)
    assert scoring.needs(NONE) is None
    scoring.look_inside(NONE)
    scoring.look_inside(normal.found.kept)
    needs = scoring.needs(NONE)
    assert needs
    assert needs <= models.layer_norm().kept
    assert scoring.needs(normal.found.kept) == NONE


def test_a_task_is_scored_beside_that_of_fp32():
    found = fixed(classifier())
    scoring: Any = Scoring(found.planner, found.heldout)
    assert scoring.reference == ()
    scoring.measure(NONE)
    (score,) = given(scoring, NONE).scores
    assert (score.metric, score.value, score.passed) == ("top1", 1.0, True)
    (own,) = scoring.reference
    assert own.value == 1.0


def test_with_a_metric_the_error_on_held_out_samples_is_what_it_falls():
    found = fixed(classifier(), metric="snr", metric_drop=0)
    scoring: Any = Scoring(found.planner, found.heldout)
    scoring.measure(NONE)
    mixed = given(scoring, NONE)
    (score,) = mixed.scores
    (own,) = scoring.reference
    assert mixed.heldout == pytest.approx(1 + own.value - score.value)
    assert mixed.heldout > 1


def test_samples_of_the_search_may_fail_where_held_out_ones_pass():
    found = fixed(close_calls())
    scoring: Any = Scoring(found.planner, found.heldout)
    assert scoring.searched(NONE) is None
    scoring.measure(NONE)
    scoring.search(NONE)
    assert all(score.passed for score in given(scoring, NONE).scores)
    assert scoring.searched(NONE) is False
