"""The comparison with other tools, without them: runners of this test take their places."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import onnx
import pytest

from bench import peers
from bench.peers import attempts, environments, tasks
from bench.peers.attempts import Attempt, attempt
from bench.peers.counting import counted
from bench.peers.environments import HERE, Environment, environment
from bench.peers.tasks import Task, keywords, tasks_of
from bench.peers.tools import TOOLS, Tool
from bench.runs import ROOT, Workbench
from halfwise.fixing.rewrite import rewrite, save_checked
from halfwise.formats import FP16
from halfwise.graph.loading import network_from_proto
from halfwise.graph.roles import roles_of
from halfwise.records import NodeName, replace
from tests import models

RUNNER = """
import os, shutil, time
from child import main

def convert(task, mixed, settings):
    {body}
    return {{"builds": settings["builds"]}}

main(convert)
"""
COPY = "shutil.copy(task / 'model.onnx', mixed)"


@pytest.fixture
def task(tmp_path, monkeypatch) -> Task:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(tasks, "CLASSES", [models.conv_chain])
    (made,) = tasks_of(Workbench(tmp_path / "bench"))
    return made


@pytest.fixture
def ran(tmp_path, task):
    """Run a converter with the given body on the task, in this environment."""
    shutil.copy(HERE / "runners" / "child.py", tmp_path)
    here = Environment(Path(sys.prefix), {})

    def ran(body: str, name: str = "tool", *, resume: bool = False) -> Attempt:
        runner = tmp_path / f"{name}.py"
        runner.write_text(RUNNER.format(body=body), encoding="utf-8")
        return attempt(
            Tool(name, name, str(runner), "here", {"builds": 3}), task, here, resume=resume
        )

    return ran


def test_a_task_holds_the_model_and_one_split(task):
    assert (task.name, task.nodes, task.samples) == ("conv_chain", 4, (6, 2))
    files = sorted(p.name for p in (task.folder / "heldout").iterdir())
    assert files == ["0000.npz", "0001.npz"]
    assert onnx.load(task.model).graph.node[1].name == "conv_b"


def test_options_are_those_of_the_library():
    given = ("--metric", "bench/figures.py:f1", "--metric-drop", "0.01", "--accumulate", "fp16")
    found = keywords(given)
    assert found == {
        "metric": f"{ROOT}/bench/figures.py:f1",
        "metric_drop": 0.01,
        "accumulate": "fp16",
    }


def test_what_is_made_is_counted_and_judged(ran):
    made = ran(COPY)
    assert (made.end, made.passed, made.error, made.builds) == ("made", True, 0.0, 3)
    assert (made.kept, made.casts) == (4, 0)
    assert made.seconds is not None
    assert made.convert_seconds is not None
    assert made.seconds > made.convert_seconds > 0
    assert made.peak_bytes is not None
    assert made.peak_bytes > 2**20


@pytest.mark.parametrize(
    ("body", "end", "message"),
    [
        ("raise KeyError('no\\nmore')", "refused", "KeyError: 'no\\nmore'"),
        ("raise ValueError('\\n first\\nsecond')", "refused", "ValueError: first"),
        ("assert False", "refused", "AssertionError"),
        ("os._exit(3)", "crashed", "exit code 3: "),
        ("os.abort()", "crashed", "exit code -6: "),
        ("mixed.write_bytes(b'no model')", "invalid", None),
    ],
)
def test_how_a_tool_fails_is_told(ran, body, end, message):
    ended = ran(body)
    assert (ended.end, ended.passed, ended.kept) == (end, False, None)
    assert message is None or ended.message.strip() == message.strip()


def test_a_tool_that_takes_too_long_is_stopped(ran, monkeypatch):
    monkeypatch.setattr(attempts, "LIMIT_SECONDS", 1)
    assert ran("time.sleep(60)").end == "timeout"


def test_what_was_made_is_taken(ran):
    first = ran(COPY)
    assert ran(COPY, resume=True) == first
    assert ran(COPY).seconds != first.seconds
    assert ran("assert False", resume=True).end == "refused"


def test_halfwise_runs_by_its_command_line(task):
    halfwise = attempt(TOOLS[0], task, None, resume=False)
    assert (halfwise.end, halfwise.passed, halfwise.kept, halfwise.casts) == ("made", True, 3, 2)
    assert halfwise.joined == 0


@pytest.mark.parametrize("make", [models.conv_chain, models.layer_norm, models.arg_max])
def test_kept_nodes_are_those_of_the_plan(make, tmp_path):
    ill = make()
    network = network_from_proto(ill.proto)
    kept = frozenset(map(NodeName, ill.kept))
    made = rewrite(network, roles_of(network), kept, FP16, fixed=frozenset(), low_io=frozenset())
    save_checked(made.model, tmp_path / "mixed.onnx")
    count = counted(tmp_path / "mixed.onnx")
    assert count.fp32 == len(kept)
    assert count.casts == made.casts
    onnx.save(ill.proto, tmp_path / "model.onnx")
    original = counted(tmp_path / "model.onnx")
    assert count.operations == original.operations
    assert count.largest == pytest.approx(original.largest, rel=1e-3)


def test_casts_between_other_types_are_not_counted(tmp_path):
    onnx.save(models.rotary().proto, tmp_path / "model.onnx")
    assert counted(tmp_path / "model.onnx").casts == 0


def test_what_cannot_be_installed_is_told(tmp_path, monkeypatch, task):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    # The pip of these tests fails as that of an environment of its own does, which takes seconds.
    make = tmp_path / "tools" / "make-venv"
    make.parent.mkdir()
    make.write_text(f'#!/bin/sh\nmkdir -p "$1/bin" && ln -s {sys.prefix}/bin/pip "$1/bin/pip"\n')
    make.chmod(0o755)
    monkeypatch.setattr(environments, "ROOT", tmp_path)
    requirements = tmp_path / "requirements.txt"
    requirements.write_text("./nowhere-1.0-py3-none-any.whl\n", encoding="utf-8")
    place = environment("nowhere", requirements)
    assert place.missing is not None
    assert "nowhere" in place.missing
    assert not place.folder.exists()
    ended = attempt(TOOLS[1], task, place, resume=False)
    assert (ended.end, ended.message) == ("not installed", place.missing)


def test_everything_is_told_as_json(task, monkeypatch):
    monkeypatch.setattr(peers, "TOOLS", TOOLS[:1])
    bench = Workbench(task.folder / "again")
    figures, skipped = peers.measure(bench)
    assert all(figure.reached for figure in figures)
    assert skipped == bench.missing()
    told = json.loads(json.dumps(bench.details["peers"], allow_nan=False))
    assert told["tools"]["halfwise"]["title"] == "halfwise"
    model = told["models"]["conv_chain"]
    assert (model["nodes"], model["calibration"], model["heldout"]) == (4, 6, 2)
    assert model["attempts"]["halfwise"]["kept"] == 3


def test_figures_list_every_exception():
    made = Attempt("made", passed=True, kept=2)
    one = {"halfwise": made, "better": replace(made, kept=1), "same": made}
    two = {"halfwise": replace(made, passed=False), "worse": replace(made, kept=0, passed=False)}
    other = {
        "halfwise": replace(made, headroom=1),
        "bolder": replace(made, kept=1),
        "fusing": replace(made, kept=0, fused=True),
        "clipping": replace(made, kept=0, clipped=True),
    }
    failed, fewer, fused, clipped, bolder = peers.figures({"one": one, "two": two, "other": other})
    assert (failed.measured, failed.note, failed.reached) == (1, "two", False)
    assert (fewer.measured, fewer.note, fewer.reached) == (1, "better on one (1 for 2)", False)
    assert (fused.measured, fused.note) == (1, "fusing on other (0 for 2)")
    assert (clipped.measured, clipped.note) == (1, "clipping on other (0 for 2)")
    assert (bolder.measured, bolder.note) == (1, "bolder on other (1 for 2)")
    assert "of 5," in fewer.what
