"""The race of the GPU benches and their session, against the stand-in for TensorRT."""

from __future__ import annotations

import json
import shlex
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bench.figures import Figure
from bench.gpu import race, session
from bench.gpu.autocast import FILE
from bench.gpu.blocks import Blocks
from bench.gpu.figures import measure
from bench.gpu.jobs import JOBS, Host, Job
from bench.gpu.models import Made
from bench.gpu.session import Step
from halfwise.graph.loading import network_from_proto

FACTOR = 2.0**17


def small() -> Made:
    """Two layers with what overflows between them, and a norm."""
    b = Blocks(0)
    y = b.layer_norm("norm", b.ffn("ffn", "x", 8, 8, act="relu", factor=FACTOR), 8)
    x = np.random.default_rng(0).uniform(1, 2, (10, 2, 8)).astype(np.float32)
    return b.made("small", {"x": x}, {"y": (y, (2, 8))}, 17)


def racer(name: str, medians: list[float], excess: float | None = 0.5) -> race.Racer:
    return race.Racer(name, (), "fp16", tf32=False, excess=excess, medians=medians)


def test_the_delivered_engine_is_compared_with_the_fastest_that_passes() -> None:
    delivered, wrong = racer("delivered", [2.0] * 7), racer("fp16", [1.0] * 7, excess=3.0)
    found = list(race.figures("m", [delivered, racer("fp32", [4.0] * 7), wrong]))[-1]
    assert found.measured == 0.5
    assert found.reached
    assert "fp32" in found.note
    slow = list(race.figures("m", [delivered, racer("tf32", [1.5] * 7)]))[-1]
    assert not slow.reached
    noisy = [4 / 3, 2.5, 4 / 3, 2.5, 4 / 3, 2.5, 4 / 3]
    equal = list(race.figures("m", [delivered, racer("tf32", noisy)]))[-1]
    assert equal.measured == 1.5
    assert equal.reached
    assert equal.note.endswith("which holds 1")
    assert equal.reach == "≤ 1.03, or the interval holds 1"
    few = list(race.figures("m", [racer("delivered", [2.0] * 3), racer("tf32", [1.9] * 3)]))[-1]
    assert (few.reached, few.note) == (False, "tf32; 3 rounds, too few for an interval")
    lone = list(race.figures("m", [delivered, wrong, racer("tf32", [])]))[-1]
    assert lone.measured == "nothing to compare with"


def test_a_ratio_reaches_by_its_median_or_where_its_interval_holds_1() -> None:
    def ratio(*medians: float) -> Figure:
        return race.against("m", racer("e", list(medians)), racer("e", [1.0] * 7), 1.02)

    assert ratio(*[1.01] * 7).reached
    slow = ratio(*[1.03] * 7)
    assert (slow.reached, slow.note) == (False, "7 rounds, interval 1.0300 to 1.0300")
    assert ratio(0.9, *[1.1] * 6).reached
    assert ratio(*[1.03] * 3).note.endswith("too few for an interval")
    assert not ratio().reached


def test_sets_that_are_the_same_run_once(tmp_path: Path) -> None:
    network = network_from_proto(small().model)
    norm = race.norms(network)
    assert "norm/ReduceMean" in norm
    assert all(n.startswith("norm/") for n in norm)
    names = ["fp32", "tf32", "fp16", "norms"]
    assert [r.name for r in race.others(network, tmp_path)] == names
    for keep, further in (([], []), (list(norm), []), (["ffn/Relu"], ["autocast"])):
        (tmp_path / FILE).write_text(json.dumps({"nodes": keep}), encoding="utf-8")
        assert [r.name for r in race.others(network, tmp_path)] == [*names, *further]
    moved = Blocks(0)
    x = moved.op("Abs", "end", moved.heads("turn", moved.op("Abs", "begin", "x"), [4, 2], (1, 0)))
    network_of_moves = network_from_proto(
        moved.model("m", {"x": (2, 4)}, {"y": (x, (2, 4))}, opset=17)
    )
    (tmp_path / FILE).write_text(json.dumps({"nodes": ["begin", "end"]}), encoding="utf-8")
    asked = list(race.others(network_of_moves, tmp_path))[-1].asked
    assert asked == ("begin", "turn/Reshape", "turn/Transpose", "end")
    (tmp_path / FILE).write_text(json.dumps({"failure": "no"}), encoding="utf-8")
    assert [r.name for r in race.others(network, tmp_path)] == names


def test_a_job_ends_in_a_race_of_engines_that_are_judged_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake_worker: Callable[..., list[str]]
) -> None:
    pace = {"fp32": 2.0, "tf32": 1.5, "low": 1.0}
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {shlex.join(fake_worker(pace=pace))} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setenv("HALFWISE_CACHE", str(tmp_path / "worker-cache"))
    monkeypatch.setattr(race, "SECONDS", 0.001)
    monkeypatch.setattr(race, "WARMUP", 0.001)
    monkeypatch.setattr(race, "ITERATIONS", 2)
    job = Job(small, options=("--engine", "repeat=1", "--no-repair"), race=True)
    monkeypatch.setitem(JOBS, "small", job)
    models = tmp_path / "models"
    small().save(models / "small")
    nodes = ["ffn/fc1/MatMul", "ffn/fc1/Add", "ffn/Relu", "ffn/fc2/MatMul"]
    (models / "small" / FILE).write_text(json.dumps({"nodes": nodes}), encoding="utf-8")
    found = measure("small", Host(str(python), "", models), tmp_path / "work")
    racers = {r["name"]: r for r in found.details["race"]}
    assert list(racers) == ["delivered", "fp32", "tf32", "fp16", "norms", "autocast"]
    assert {n: r["passed"] for n, r in racers.items() if not r["passed"]} == {
        "fp16": False,
        "norms": False,
    }
    assert racers["fp16"]["excess"] == "inf"
    assert racers["autocast"]["keep"] == nodes
    assert set(nodes) <= set(racers["autocast"]["asked"])
    assert (tmp_path / "work" / "small" / race.FILE).exists()
    assert all(len(r["medians"]) == 7 for r in racers.values())
    assert all(r["failure"] == "" for r in racers.values())
    built = {b["engine"] for b in racers.values()}
    assert {r["engine"] for n, r in racers.items() if n in ("fp32", "tf32")} < built
    ratio = next(f for f in found.figures if f.what.endswith("fastest that passes"))
    assert ratio.reached
    json.dumps(found.details, allow_nan=False)


def test_a_session_goes_on_after_what_hangs_and_tells_of_what_was_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "GRACE", 0.1)
    ended = session._ended([sys.executable, "-c", "import time; time.sleep(60)"], 0.2)
    assert ended == "too long"
    assert session._ended([sys.executable, "-c", "raise SystemExit(3)"], 20.0) == "3"
    steps = {"first": Step("figures", ("a",), 9.0), "last": Step("triage", ("b",), 9.0)}
    given = Namespace(trt_python="p", tactic_sources="", models=None, work=tmp_path, minutes=1.0)
    given.results, given.options = tmp_path, "--engine repeat=1"
    words: list[list[str]] = []

    def remembered(line: list[str], _: float) -> str:
        words.append(line)
        return "0"

    monkeypatch.setattr(session, "_ended", remembered)
    assert [n for n, _ in session.run(steps, given)] == ["first", "last"]
    assert [line[2] for line in words] == ["bench.gpu.figures", "bench.gpu.triage"]
    assert [line[-1] for line in words] == ["a", "b"]
    assert ["--options=--engine repeat=1" in line for line in words] == [True, False]
    given.minutes = 0.1
    assert [how for _, how in session.run(steps, given)] == ["no time left"] * 2


def test_every_step_is_a_job_or_a_triage() -> None:
    assert {s.words[-1] for s in session.STEPS.values() if s.bench == "figures"} <= set(JOBS)
    assert [s.words[-1] for s in session.STEPS.values() if s.bench == "triage"] == ["gtcrn"]
