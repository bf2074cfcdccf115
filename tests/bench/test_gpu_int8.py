"""The GPU bench of INT8, from the plan to ratios and decisions, against the stand-in."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from math import inf
from pathlib import Path

import numpy as np
import pytest

from bench.figures import Result
from bench.gpu import int8, int8_plans, race, repair_plans
from bench.gpu.blocks import Blocks
from bench.gpu.jobs import Host
from bench.gpu.models import Made
from bench.gpu.repair_plans import Scaled
from halfwise.graph.loading import network_from_proto
from tests.unit.fixing.int8.products import residual


def drawn() -> Made:
    """Two layers of a sequence, 10 samples."""
    b = Blocks(0)
    y = b.ffn("ffn", "x", 8, 8, act="relu")
    x = np.random.default_rng(0).uniform(1, 2, (10, 2, 8)).astype(np.float32)
    return b.made("small", {"x": x}, {"y": (y, (2, 8))}, 17)


SIZED = Scaled(
    drawn,
    lambda: drawn().model,
    lambda _, seed: np.random.default_rng(seed).uniform(1, 2, (2, 8)).astype(np.float32),
)


def test_engines_with_int8_are_timed_and_decided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake_worker: Callable[..., list[str]]
) -> None:
    for name, value in {"SECONDS": 0.001, "WARMUP": 0.001, "ITERATIONS": 2}.items():
        monkeypatch.setattr(race, name, value)
    monkeypatch.setattr(int8, "ROUNDS", 7)
    monkeypatch.setattr(int8, "SIZES", ("sized",))
    monkeypatch.setitem(repair_plans.SCALED, "sized", SIZED)
    monkeypatch.setitem(int8_plans.SMALL, "small", drawn)
    file = tmp_path / "plans.json"
    int8_plans.write("small", int8_plans.planned(drawn()), file)
    plans = int8_plans.read(file)
    assert len(plans["small"].int8) + len(plans["small"].left_out) == 2
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {shlex.join(fake_worker("8.6.1"))} "$@"\n')
    python.chmod(0o755)
    saved: list[int] = []

    def save(result: Result) -> None:
        json.loads(result.save(tmp_path).read_text())
        saved.append(len(result.figures))

    host = Host(str(python), "", None)
    found = int8.measure(("sized", "small"), plans, host, inf, save)
    assert saved == sorted(saved)
    measured = {figure.what: figure for figure in found.figures}
    ratio = measured["sized: time of int8 / fp16"]
    assert "7 rounds, ratios" in ratio.note
    assert "of the nodes asked for: int8 100%" in measured["sized: int8: passes"].note
    decided = measured["models decided as foretold"]
    assert (decided.measured, decided.reached) == (1, True)
    told = found.details["small"][0]
    assert told["foretold"]["passed"] is told["measured"]["passed"]
    assert float(told["errors"]["error / limit"]) > 0
    late = int8.measure(("sized",), plans, host, -inf, save)
    assert late.details == {}


def test_a_model_with_residual_sums_is_timed_with_and_without_them() -> None:
    ill = residual()
    kinds = int8.choices(network_from_proto(ill.proto))
    assert kinds["int8 with sums"] - kinds["int8"] == {"sum"}
    assert set(kinds) == {"int8", "int8 with sums"}
    plain = int8.choices(network_from_proto(drawn().model))
    assert set(plain) == {"int8"}
