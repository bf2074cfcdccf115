"""Repairs are chosen anew where samples join that those of before do not bear."""

from dataclasses import dataclass, field

import pytest

from halfwise.emulation.bounded import OutOfTime
from halfwise.fixing.fixed import Fixed
from halfwise.fixing.repair.rule import Rule
from halfwise.fixing.repair.rules import RULES
from tests.unit.fixing.repair.sluices import Sluice
from tests.unit.fixing.repair.test_choice import found
from tests.unit.fixing.test_loop import growing

__all__ = ["found"]
ALONE = ("scale",)


def exponents(fixed: Fixed) -> dict[str, int]:
    return {name: e for repair in fixed.plan.repairs for name, e in repair.exponents.items()}


def test_what_a_joined_sample_needs_is_repaired_not_kept(found):
    rules: list[Rule] = [rule for rule in RULES if rule.name in ALONE]
    ill = growing(7)
    fixed, bare = found(*rules, ill=ill), found(ill=ill)
    assert fixed.search.joined == bare.search.joined == ("inputs[7]",)
    assert fixed.verdict.passed
    assert fixed.verdict.unseen
    assert (len(fixed.plan.keep), len(bare.plan.keep)) == (0, 3)
    assert fixed.search.calibration == fixed.planner.case.calibration.ids
    assert fixed.curve.unrepaired is not None
    # As if the sample had been there from the start.
    assert exponents(fixed) == exponents(found(*rules, ill=growing(1, 7)))


@dataclass(frozen=True)
class Ending(Sluice):
    """Proposes nothing, and runs out of time where it is asked again."""

    times: list[int] = field(default_factory=list)

    def propose(self, _):
        self.times.append(1)
        if len(self.times) > 1:
            raise OutOfTime
        return []


@pytest.mark.parametrize("no_repair", [(), ("scale",)])
def test_without_time_or_rules_what_was_chosen_stays(found, no_repair):
    rule = Ending()
    fixed = found(rule, ill=growing(7), no_repair=no_repair)
    assert len(rule.times) == (0 if no_repair else 2)
    assert fixed.verdict.passed
    assert not fixed.plan.repairs
    assert len(fixed.plan.keep) == 3
    assert fixed.search.joined == ("inputs[7]",)
