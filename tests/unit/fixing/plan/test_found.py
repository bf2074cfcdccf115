"""What a search asks for."""

from halfwise.fixing.plan.found import Found, Trial
from halfwise.fixing.trial import Outcome


def test_what_the_emulation_shows_is_a_trial():
    trial: Trial = Outcome(False, 2.0, nonfinite=True)
    assert (trial.passed, trial.excess, trial.nonfinite) == (False, 2.0, True)


def test_where_nothing_was_predicted_no_r2_is_told():
    found = Found(frozenset(), True, True, {}, frozenset(), {}, False, ())
    assert found.r2 is None
