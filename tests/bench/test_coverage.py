"""Bounds of drawn models, a few of the bench's draws with fewer further inputs."""

from dataclasses import replace

import pytest

from bench.coverage import draw, figures


@pytest.fixture(scope="module")
def draws():
    return [draw(seed, further=500) for seed in (1, 2)]


def test_the_true_rate_is_below_the_printed_bound(draws):
    for one in draws:
        assert 0 <= one.true <= one.bound < 1
        assert one.judged + one.joined >= 8


def test_a_broken_bound_counts(draws):
    broken = [replace(one, true=1.0) for one in draws]
    first = figures(broken)[0]
    assert first.measured == 2
    assert figures(draws)[0].measured == 0
