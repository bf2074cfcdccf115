"""What a run found is of one plan."""

import pytest

from tests import models
from tests.unit.fixing.test_loop import found, kept

pytestmark = pytest.mark.usefixtures("unrepaired")


def test_all_that_a_run_found_is_of_one_plan():
    fixed = found(models.root_mean_square())
    nodes = [node for node in fixed.planner.case.network.nodes() if node.name in fixed.found.kept]
    assert kept(fixed) == fixed.found.kept == {node.name for node in nodes}
    assert fixed.curve.plan is not None
    assert fixed.curve.kept(fixed.curve.points[fixed.curve.plan]) == fixed.found.kept
    assert fixed.verdict.samples == fixed.heldout.samples.ids
    assert fixed.observations is fixed.planner.evidence.observations
    assert fixed.evaluations == fixed.planner.trials.evaluations
    assert fixed.first is fixed.planner
    assert fixed.seen == fixed.observations
