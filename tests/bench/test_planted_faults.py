"""A few planted faults through the real worker, and how the bench scores what is told."""

from pathlib import Path

import pytest

from bench.planted_draws import drawn_trials
from bench.planted_faults import Found, builds_allowed, diagnosed
from bench.planted_trials import Trial, low_trials, trials
from tests.fake_tensorrt.faults import Fault
from tests.fake_tensorrt.regions import Region, Wrong

_NORM = ("layer3/conv1/Conv", "layer3/bn1/BatchNormalization", "layer3/Relu")
_SHARES = "blocks.0/attn/Softmax"
FEW = [
    Trial("a fusion", "convolutions", 7, Wrong(nodes=_NORM, unless="between", size=0.3)),
    Trial("unmarked", "transformer", 1, Wrong(nodes=(_SHARES,), unless="touched", do="roll")),
    Trial("NaN at a batch", "convolutions", 7, Wrong(nodes=_NORM[1:2], do="nan", batch=2), (1, 2)),
    Trial("a crash", "convolutions", 7, Fault("build", "segv", region=Region(nodes=_NORM[1:]))),
]


@pytest.mark.parametrize("trial", FEW, ids=lambda trial: trial.name)
def test_a_planted_fault_is_found(
    trial: Trial, tmp_path: Path, cuda_library: Path, interpreter: str
) -> None:
    found = diagnosed(trial, tmp_path / "run", cuda_library, interpreter)
    assert (found.rung, found.problems) == ("fp32", [])


def found(*named: str, builds: int = 5, rung: str = "fp32") -> Found:
    return Found(64, ("a", "b", "c", "d", "e"), named, builds, rung, 1.0)


def test_what_counts_as_localised() -> None:
    assert found("a", "x", "y", "z").localised
    assert found("a", "b", "c", "d", "e").localised
    assert not found("a", "v", "x", "y", "z").localised
    assert not found("x").localised
    assert not found().localised


def test_problems_are_told() -> None:
    assert builds_allowed(64) == 28
    assert found("a").problems == []
    assert found("a", builds=29).problems == ["29 builds"]
    assert found("a", rung="precision").problems == ["blamed on precision"]


def test_every_fault_has_a_place_and_a_network_of_the_size() -> None:
    assert len(trials()) == 24
    for trial in trials():
        drawn = trial.network()
        assert 50 <= drawn.nodes <= 502
        assert trial.planted(drawn)
    assert len({trial.name for trial in (*trials(), *low_trials())}) == 27


def test_a_draw_follows_from_its_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.planted_draws.shows", lambda *_: True)
    monkeypatch.setattr("bench.planted_draws.DEPTHS", {"recurrent": (5, 6)})
    assert drawn_trials(1) == drawn_trials(1) != drawn_trials(2)
