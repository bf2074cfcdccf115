"""The band of errors that low precision explains."""

from math import inf, isclose
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from halfwise.records import (
    FULL_RUNGS,
    Band,
    Cause,
    EngineResult,
    EngineRound,
    EngineRung,
    Engines,
    LadderRung,
    Move,
    NodeName,
    Plan,
    Refusal,
    Run,
    TimeRatio,
)
from tests.unit.reporting.engine_runs import result

ERRORS = st.floats(0.0, 1e6) | st.just(inf)


@given(ERRORS, ERRORS, ERRORS)
def test_what_is_inside_is_explained_and_what_is_larger_is_not(one, other, measured):
    band = Band(least=min(one, other), most=max(one, other))
    assert band.holds(one)
    assert band.holds(other)
    assert band.explains(measured) == (measured <= band.most)
    assert band.holds(measured) == (band.least <= measured <= band.most)
    assert band.decibels >= 0


def test_a_band_that_may_overflow_holds_infinity_alone_beyond_its_end():
    band = Band(least=0.25, most=0.5, may_overflow=True)
    assert band.holds(inf)
    assert not band.holds(0.6)
    assert isclose(band.decibels, 6.0206, rel_tol=1e-4)


def test_the_width_of_what_has_no_ratio():
    assert Band(least=0.0, most=0.0).decibels == Band(least=inf, most=inf).decibels == 0
    assert Band(least=0.0, most=1.0).decibels == Band(least=1.0, most=inf).decibels == inf


def test_it_is_stored_with_infinity():
    band = Band(least=1.0, most=inf)
    assert Band.model_validate_json(band.model_dump_json()) == band


@pytest.mark.parametrize(
    "record",
    [
        Move(kind="level", refused=2, ends=("a", "b"), level=5),
        Refusal(kind="crash", build=3, ends=("a", "b"), nodes=(NodeName("a"),), avoided=2),
    ],
)
def test_what_is_stored_is_read(record):
    assert type(record).model_validate_json(record.model_dump_json()) == record


def test_only_kinds_that_are_known():
    with pytest.raises(ValidationError):
        Move.model_validate({"kind": "luck", "refused": 1})
    with pytest.raises(ValidationError):
        Refusal.model_validate({"kind": "luck", "build": 1})


def test_runs_of_before_have_neither():
    old = {"step": "the plan of the emulation", "build": 2, "keep": (), "passed": True}
    assert EngineRound.model_validate(old).move is None
    assert Engines.model_fields["refusals"].default == ()


def test_a_cause_of_an_unknown_kind_does_not_open():
    with pytest.raises(ValidationError):
        Cause.model_validate({"kind": "guessed"})


def test_rows_survive_json():
    row = result("mixed", 2, 1.0)
    told = row.model_copy(update={"ratio": TimeRatio(low=0.9, high=1.1, rounds=7)})
    assert EngineResult.model_validate_json(told.model_dump_json()) == told


def test_a_plan_of_before_has_no_int8_and_a_run_no_rungs():
    assert Plan.model_fields["int8"].default == Plan.model_fields["left_out"].default == ()
    assert Plan.model_fields["ranges"].default is None
    assert Run.model_fields["rungs"].default == ()


def test_a_rung_needs_its_type_and_whether_it_passed_alone():
    rung = LadderRung.model_validate({"rung": "int8", "passed": None})
    assert LadderRung.model_validate_json(rung.model_dump_json()) == rung
    assert get_args(EngineRung)[:2] == FULL_RUNGS
    assert get_args(EngineRung)[-1] == "int8"
