"""The three properties of drawn graphs and plans, on 100 examples; `bench/fuzz.py` takes 2,000."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bench import fuzz
from bench.fuzz import DRAWN, Tally, apart, examine
from tests.graphs import Drawn


@settings(max_examples=100, suppress_health_check=list(HealthCheck))
@given(DRAWN, st.data())
def test_mixed_models_are_valid_and_emulations_agree(drawn: Drawn, data: st.DataObject) -> None:
    examine(drawn, data, Tally())


def test_distance_is_relative_and_minds_what_is_not_finite() -> None:
    one = {"y": np.array([2.0, np.inf, np.nan], np.float32)}
    assert apart(one, one) == 0
    assert apart(one, {"y": np.array([1.0, np.inf, np.nan], np.float32)}) == 0.5
    assert apart(one, {"y": np.array([2.0, -np.inf, np.nan], np.float32)}) == np.inf
    assert apart(one, {"y": np.array([2.0, np.inf, 0.0], np.float32)}) == np.inf
    assert apart({"y": np.array(3)}, {"y": np.array(3)}) == 0


def test_what_fails_is_told_and_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise fuzz.Unsound("made up")

    monkeypatch.setattr(fuzz, "examine", fail)
    _, failed = fuzz.explore(5, 7, tmp_path)
    assert failed.startswith("Unsound: made up")
    assert (tmp_path / "fuzz-7.onnx").is_file()
    assert (tmp_path / "fuzz-7.npz").is_file()
