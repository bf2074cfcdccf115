"""The properties of drawn graphs and plans, on 100 examples; `bench/fuzz.py` takes 2,000."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto

from bench import fuzz
from bench.fuzz import DRAWN, Tally, apart, examine
from halfwise.emulation.ort import Session
from halfwise.emulation.typed import emulate_typed
from halfwise.formats import FP16
from halfwise.graph.casts import rewrite
from halfwise.graph.loading import network_from_proto
from halfwise.graph.roles import roles_of
from halfwise.judging.reference import check
from tests.graphs import Drawn
from tests.unit.graph.sketch import Sketch


@settings(max_examples=100, suppress_health_check=list(HealthCheck))
@given(DRAWN, st.data())
def test_mixed_models_are_valid_and_emulations_agree(drawn: Drawn, data: st.DataObject) -> None:
    examine(drawn, data, Tally())


def test_a_fault_that_both_emulations_share_shows() -> None:
    """As one did that took CastLike for a copy: integers that FP16 cannot hold."""
    sketch = Sketch()
    x, ids = sketch.input("x", [2, 4]), sketch.input("ids", [2, 4], TensorProto.INT64)
    like = sketch.op("CastLike", ids, x)
    proto = sketch.proto(sketch.op("Add", sketch.op("Mul", like, 1e-4), x))
    sample = {"x": np.ones((2, 4), np.float32), "ids": np.full((2, 4), 70_001)}
    network = network_from_proto(proto)
    check(network)
    original = Session(network.model).run(sample)
    mixed = rewrite(network, roles_of(network), frozenset(), FP16).model
    tally = Tally()
    typed = Session(emulate_typed(mixed)).run(sample)
    fuzz._demand_like_evaluator(network, mixed, sample, original, typed, tally)
    assert tally.evaluated == 0
    with pytest.raises(fuzz.Unsound, match="evaluator finds inf"):
        fuzz._demand_like_evaluator(network, mixed, sample, original, original, tally)


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
