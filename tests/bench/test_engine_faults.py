"""A few of the hundred faults; `bench/engine_faults.py` has all."""

from dataclasses import replace
from pathlib import Path

import pytest

from bench.engine_faults import Ended, Trial, fixed, quick_times, trials, wrong

QUICK = (
    "segv in every FP16 build",
    "constraints on square ignored",
    "FP16 kernel of gamma × 1.5, no builds left",
    "memory in every FP32 build",
)
TRIALS = {trial.name: trial for trial in trials()}


def test_there_are_a_hundred_faults() -> None:
    assert len(TRIALS) == len(trials()) >= 100


@pytest.mark.parametrize("name", QUICK)
def test_a_fault_is_told_rightly(
    name: str, tmp_path: Path, cuda_library: Path, interpreter: str
) -> None:
    trial = TRIALS[name]
    trial = replace(trial, knobs={**trial.knobs, "interpreter": interpreter})
    with quick_times():
        ended = fixed(trial, tmp_path / "fault", cuda_library)
    assert wrong(trial, ended) == []


def test_what_is_told_wrongly_is_found(tmp_path: Path) -> None:
    early = Ended(None, tmp_path, 6)
    assert wrong(Trial("fails"), early) == ["exit code 6"]
    assert wrong(Trial("fails", error=6), early) == []
