"""A repair without which no more is kept is undone."""

import pytest

from halfwise.fixing.repair import needed
from tests.unit.fixing.repair.sluices import WIDE, Sluice, sluiced
from tests.unit.fixing.repair.test_choice import found, told

__all__ = ["found"]


@pytest.mark.parametrize(("few", "undone"), [(4, ["repair-spare"]), (1, ["repair-untried"])])
def test_what_the_plan_does_not_need_is_undone_and_told(found, monkeypatch, few, undone):
    monkeypatch.setattr(needed, "FEW", few)
    fixed = found(Sluice(above=0), ill=sluiced(WIDE, 3.0))
    assert fixed.verdict.passed
    assert not fixed.plan.keep
    assert told(fixed) == undone
    assert len(fixed.plan.repairs) == 1 + (undone == ["repair-untried"])
    assert fixed.plan.repairs[0].nodes == ("up_0", "wide_0", "down_0")
    assert fixed.planner.case.repairs == fixed.plan.repairs
