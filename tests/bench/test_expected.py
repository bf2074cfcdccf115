import numpy as np
import pytest

from bench.expected import (
    ALTERED,
    CHANGES,
    FAULTS,
    KINDS,
    MOVES,
    NORMS,
    SIDE,
    Trial,
    made,
    photos,
    run_trial,
    trials,
)


def test_trials_are_the_same_each_time_and_either_change_inputs_or_break_something():
    planned = trials()
    assert planned == trials() != trials(1)
    assert len(planned) == CHANGES + FAULTS
    for trial in planned[:CHANGES]:
        assert not trial.fault
        assert (trial.norm != trial.to_norm) or trial.bgr or trial.move
    for trial in planned[CHANGES:]:
        assert trial.fault
        assert (trial.norm, trial.bgr, trial.move) == (trial.to_norm, "", "")


@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("norm", NORMS)
def test_inputs_that_are_made(norm, move):
    pixels = np.random.default_rng(0).integers(0, 256, (SIDE, SIDE, 3)).astype(float)
    assert made(pixels, norm, "before", move).shape == (1, 3, SIDE, SIDE)


@pytest.mark.parametrize(
    ("trial", "expected"),
    [
        (Trial("classifier", "1/255", 3, "1/255", bgr="after"), "right"),
        (Trial("classifier", "1/255", 2, "1/255", fault="gamma 2.2"), "none"),
        (Trial("grey", "1/255", 1, "1/255", bgr="after"), "same"),
        (Trial("one number", "1/255", 1, "1/255", bgr="after"), "few"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.kind,
)
def test_what_comes_of_a_trial(trial, expected):
    assert trial.kind in KINDS
    assert not trial.fault or trial.fault in ALTERED
    assert run_trial(trial, photos()).what == expected
