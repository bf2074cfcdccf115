"""What counts of a plan that passed."""

from dataclasses import replace

from halfwise.fixing import standing
from halfwise.fixing.standing import stands
from halfwise.records import Unjudged
from tests import models
from tests.unit.fixing.test_loop import found


def test_a_plan_counts_that_passes_on_real_data():
    fixed = found(models.small(), allow_random=True)
    assert stands(fixed)
    failed = fixed.verdict.model_copy(update={"passed": False})
    assert not stands(replace(fixed, verdict=failed))
    strict = replace(fixed.planner.settings, allow_random=False)
    fixed.planner.settings, fixed.planner.case = strict, replace(fixed.planner.case, real=False)
    assert not stands(fixed)
    fixed.planner.case = replace(fixed.planner.case, real=True)
    assert stands(fixed)


def test_what_the_samples_leave_untested_does_not_count_unless_allowed(monkeypatch):
    fixed = found(models.small(), allow_random=True)
    untested = Unjudged(kind="zeros", name="y")
    monkeypatch.setattr(standing, "find_unjudged", lambda *_, **__: (untested,))
    assert not stands(fixed)
    fixed.planner.settings = replace(fixed.planner.settings, allow_unjudged=True)
    assert stands(fixed)
