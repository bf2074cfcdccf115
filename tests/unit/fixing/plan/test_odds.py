"""The belief about where plans begin to pass."""

import pytest

from halfwise.fixing.plan.odds import Odds


@pytest.mark.parametrize("expected", [None, 1.0])
def test_smaller_errors_pass_more_likely(expected):
    odds = Odds(20.0, expected)
    chances = [odds.chance(error) for error in (0.01, 0.3, 1.0, 5.0, 40.0)]
    assert chances == sorted(chances, reverse=True)
    assert 0 <= chances[-1] < 0.05
    assert 0.95 < chances[0] <= 1


def test_trials_move_the_limit():
    odds = Odds(20.0, 1.0)
    before = odds.chance(2.0)
    odds.learn(2.0, passed=False)
    odds.learn(1.0, passed=False)
    assert odds.chance(2.0) < before / 4
    odds.learn(0.5, passed=True)
    assert odds.chance(0.2) > 0.9


def test_what_nothing_explains_leaves_the_belief():
    odds = Odds(1.0, None)
    before = odds.chance(0.5)
    for _ in range(3):
        odds.learn(1e12, passed=True)
    assert odds.chance(0.5) == pytest.approx(before, abs=0.5)
    assert 0 <= odds.chance(0.5) <= 1
