"""Numbers of our own choice: each decides otherwise just beside it.

A number with a source is checked where its source is; these have none, so they are to be moved on
purpose only.
"""

import os
import time
from types import SimpleNamespace
from typing import Any

import pytest

from halfwise.fixing.engines.search import near
from halfwise.fixing.plan.result import clearly_cheaper
from halfwise.fixing.plan.search import gains, is_spread
from halfwise.records import EngineRound, NodeName
from halfwise.scratch import scratch
from halfwise.tools.diagnose.kernels import Transplants

A, B, C = (frozenset({NodeName(name)}) for name in "abc")
PRICES = {A: 1.5, C: 2.0}


def told(measured: float) -> EngineRound:
    return EngineRound(step="", build=1, keep=(), predicted=1.0, measured=measured, passed=False)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        # A plan that passes gains if it saves a quarter of what everything low saves,
        (gains(1.75, 1.0, 2.0), gains(1.76, 1.0, 2.0)),
        # or half of what a plan saves that serves the task.
        (gains(1.75, 1.0, 2.0, serving=1.5), gains(1.76, 1.0, 2.0, serving=1.5)),
        # Error is spread where there are 64 groups.
        (is_spread([(A, 1.0)] * 64), is_spread([(A, 1.0)] * 63)),
        # A plan is clearly cheaper from 1 % on.
        (
            bool(clearly_cheaper([B], (PRICES | {B: 1.48}).get, A, C)),
            bool(clearly_cheaper([B], (PRICES | {B: 1.49}).get, A, C)),
        ),
        # An engine's error is explained up to twice what is predicted.
        (told(2.0).explained, told(2.01).explained),
        # An engine is near another if it takes less than 5 % more.
        (near(1.049, 1.0), near(1.051, 1.0)),
    ],
)
def test_it_decides_otherwise_just_beside_the_number(one, other):
    assert one
    assert not other


@pytest.mark.parametrize(("plain", "limit"), [(11.0, 60.0), (13.0, 65.0), (100.0, 300.0)])
def test_a_part_is_built_in_five_times_as_long_as_the_engine_at_least_a_minute(plain, limit):
    engines: Any = SimpleNamespace(engine_settings=SimpleNamespace(build_timeout=300.0))
    nothing: Any = None
    made = Transplants(engines, "fp32", nothing, 0, nothing, plain_seconds=plain)
    assert made.seconds == limit


@pytest.mark.parametrize(("days", "stays"), [(13, True), (15, False)])
def test_scratch_folders_of_other_machines_stay_for_two_weeks(tmp_path, days, stays):
    place = tmp_path / str(days)  # each is looked at once only
    far = place / "halfwise.far"
    far.mkdir(parents=True)
    (far / "lock").write_text("ab12")
    then = time.time() - days * 86400
    os.utime(far / "lock", (then, then))
    with scratch(place):
        assert far.exists() is stays
