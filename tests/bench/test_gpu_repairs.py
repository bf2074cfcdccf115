"""Engines of repaired models, from the plan to the ratios, against the stand-in for TensorRT."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from math import inf
from pathlib import Path

import numpy as np
import pytest

from bench.figures import Result
from bench.gpu import race, repair_plans, repairs
from bench.gpu.blocks import Blocks
from bench.gpu.jobs import Host
from bench.gpu.models import Made
from bench.gpu.repair_plans import Scaled


def drawn(factor: float) -> Made:
    """Two layers; what is between them is × `factor`."""
    b = Blocks(0)
    y = b.ffn("ffn", "x", 8, 8, act="relu", factor=factor)
    x = np.random.default_rng(0).uniform(1, 2, (10, 2, 8)).astype(np.float32)
    return b.made("small", {"x": x}, {"y": (y, (2, 8))}, 17)


SMALL = Scaled(
    lambda: drawn(2.0**17),
    lambda: drawn(1.0).model,
    lambda _, seed: np.random.default_rng(seed).uniform(1, 2, (2, 8)).astype(np.float32),
)


def test_engines_of_the_plans_are_judged_and_timed_in_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake_worker: Callable[..., list[str]]
) -> None:
    for name, value in {"SECONDS": 0.001, "WARMUP": 0.001, "ITERATIONS": 2}.items():
        monkeypatch.setattr(race, name, value)
    monkeypatch.setattr(repairs, "ROUNDS", 7)
    monkeypatch.setitem(repair_plans.SCALED, "small", SMALL)
    file = tmp_path / "plans.json"
    repair_plans.write("small", repair_plans.planned(SMALL), file)
    plans = repair_plans.read(file)
    assert plans["small"].keys() == {"repaired", "kept"}
    assert plans["small"]["repaired"].keep == ()
    assert plans["small"]["kept"].repairs == ()
    assert {r.rule for r in plans["small"]["repaired"].repairs} == {"scale"}
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {shlex.join(fake_worker())} "$@"\n')
    python.chmod(0o755)
    seen: list[list[str]] = []

    def save(result: Result) -> None:
        json.loads(result.save(tmp_path).read_text())
        seen.append([figure.what for figure in result.figures])

    found = repairs.measure(plans, Host(str(python), "", None), inf, save)
    assert [len(figures) for figures in seen] == [1, 2, 3, 5, 6]
    measured = {figure.what: figure for figure in found.figures}
    assert measured["small: plain, 0 kept: passes"].measured is True
    assert measured["small: repaired, 0 kept: passes"].measured is True
    assert measured["small: unrepaired, 0 kept: passes"].measured is False
    kept = len(plans["small"]["kept"].keep)
    assert measured[f"small: kept, {kept} kept: passes"].measured is True
    for other in ("plain", "kept"):
        assert "7 rounds, interval" in measured[f"small: time of repaired / {other}"].note
    late = repairs.measure(plans, Host(str(python), "", None), -inf, save)
    assert {r["failure"] for r in late.details["small"]} == {"no time left"}
