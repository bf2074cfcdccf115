"""What a plan is worth, and which plan that the search saw would be."""

from dataclasses import replace

import pytest

from halfwise.api.loading import load_case
from halfwise.api.options import understand
from halfwise.pipeline import fix
from halfwise.pipeline.worth import candidate_worth, worth_of
from halfwise.progress import Silent
from tests import models


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


def test_everything_low_costs_one(fixed):
    worth = worth_of(fixed.planner, frozenset())
    assert worth is not None
    assert worth.cost == 1
    assert worth.nearest is None


def test_a_candidate_that_is_not_mixed_has_no_worth(fixed):
    planner = fixed.planner
    mixed = replace(planner.case.network, model=fixed.rewritten.model)
    found = candidate_worth(planner.case, planner.settings, mixed)
    own = worth_of(planner, fixed.found.kept)
    assert found is not None
    assert own is not None
    assert found.cost == pytest.approx(own.cost)
    assert candidate_worth(planner.case, planner.settings, planner.case.network) is None
