"""What a plan is worth."""

import pytest

from halfwise.records import (
    LEAST_SAVED,
    Worth,
)


@pytest.mark.parametrize(
    ("cost", "fp32", "saved"),
    [
        (1.0, 2.0, 1.0),
        (2.0, 2.0, 0.0),
        (1.5, 2.0, 0.5),
        (2.5, 2.0, 0.0),
        (0.9, 2.0, 1.0),
        (0.9, 0.8, 0.0),
        (0.7, 0.8, 1.0),
        (1, 1, 0),
    ],
)
def test_what_a_plan_saves_of_what_all_low_does(cost, fp32, saved):
    worth = Worth(cost=cost, fp32=fp32)
    assert worth.saved == pytest.approx(saved)
    assert worth.gains is (saved >= LEAST_SAVED)
    assert worth.ratio == cost


def test_measured_times_count_where_there_are_some():
    worth = Worth(cost=2.0, fp32=2.0, measured=1.1, measured_fp32=2.0)
    assert worth.ratio == 1.1
    assert worth.saved == pytest.approx(0.9)
    assert Worth(cost=1.0, fp32=2.0, measured=2.0, measured_fp32=2.0).saved == 0
    assert Worth(cost=2.0, fp32=2.0, measured=0.9, measured_fp32=0.9).saved == 0


def test_a_plan_may_cost_more_than_fp32():
    dear = Worth(cost=6.0, fp32=2.0)
    assert dear.is_dearer
    assert dear.times_fp32 == 3
    assert not Worth(cost=2.0, fp32=2.0).is_dearer
    assert not Worth(cost=6.0, fp32=2.0, measured=1.0, measured_fp32=2.0).is_dearer
    assert not Worth(cost=1.0, fp32=0.0).is_dearer
