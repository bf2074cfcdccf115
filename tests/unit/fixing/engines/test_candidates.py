"""A candidate passes where there is an engine that ran, within what the search may use."""

import pytest

from halfwise.fixing.engines.candidates import Budget, Candidate
from tests.unit.reporting.engine_runs import build


@pytest.mark.parametrize(
    ("excess", "passed"), [(None, False), (0.0, True), (1.0, True), (1.1, False)]
)
def test_passing(excess, passed):
    assert Candidate(frozenset(), "", build(1, "mixed"), excess).passed is passed


def test_a_budget_is_spent():
    budget = Budget(2)
    budget.take()
    assert budget.left == 1
