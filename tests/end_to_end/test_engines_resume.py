"""A run with engines that was killed goes on, and leaves out what takes the machine down."""

import json
import shlex
import subprocess
import sys

import pytest

from tests import models
from tests.fake_tensorrt.faults import Fault
from tests.processes import children_of, end, is_running, wait_for


@pytest.fixture
def killed(tmp_path, environment):
    """Kill -9 halfwise in a build that hangs: `killed(arguments, number)`, of all builds so far."""

    def killed(arguments, number):
        process = subprocess.Popen(
            [sys.executable, "-m", "halfwise", *arguments],
            cwd=tmp_path,
            env=environment | {"TMPDIR": str(tmp_path)},  # what it had in there stays
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        counted = tmp_path / "worker-counts" / "build"
        try:
            wait_for(lambda: process.poll() is not None or _size(counted) >= number)
            assert process.poll() is None
            started = children_of(process.pid)
            process.kill()
            process.wait()
            assert not (tmp_path / "run").exists()
            wait_for(lambda: not any(map(is_running, started)))
        finally:
            end(process)
        return tmp_path / "run.journal.jsonl"

    return killed


def _size(path):
    return path.stat().st_size if path.exists() else 0


@pytest.fixture
def arguments(saved, fake_worker):
    """What to call where some builds hang: `arguments(*hanging)`."""

    def arguments(*hanging):
        model, inputs = saved(models.layer_norm())
        # One that is forked elsewhere would be no child of halfwise.
        faults = [Fault("build", "hang", on=hanging)]
        worker = shlex.join(fake_worker(faults=faults, interpreter=sys.executable))
        return [
            *("fix", str(model), "--inputs", str(inputs), "-o", "run", "--target", "tensorrt"),
            *("--trt-command", worker, "--engine", "repeat=1", "--budget", "builds=1"),
            # Builds are counted: a plan beside those of repairs would be one more.
            *("--budget", "build-timeout=100", "--no-repair"),
        ]

    return arguments


def test_a_run_that_was_killed_goes_on_without_what_took_it_down_twice(call, killed, arguments):
    asked = arguments(3, 6)
    killed(asked, 3)
    refused = call(*asked)
    assert refused.code == 2
    assert "run that ended early" in refused.err
    journal = killed([*asked, "--resume"], 6)
    events = [json.loads(line)["event"] for line in journal.read_text().splitlines()]
    goes_on = ["begin", "end", "begin", "end", "begin"]
    assert events == [*goes_on, "resume", *goes_on]
    ended = call(*asked, "--resume")
    assert ended.code == 0, ended.err
    assert not journal.exists()
    builds = ended.record["engines"]["builds"]
    assert {b["status"] for b in builds if b["number"] != 3} == {"built"}
    assert [(b["number"], b["status"]) for b in builds if b["status"] != "built"] == [
        (3, "skipped")
    ]


@pytest.mark.slow
def test_the_fp32_build_that_took_halfwise_down_is_tried_once_more(call, killed, arguments):
    asked = arguments(1, 2)
    killed(asked, 1)
    journal = killed([*asked, "--resume"], 2)
    refused = call(*asked, "--resume")
    assert refused.code == 5
    said = " ".join(refused.err.split())
    assert "TensorRT builds no FP32 engine of this model (skipped): 2 runs in a row" in said
    assert "A smaller --engine workspace" in said
    other = call(*asked, "--resume", "--engine", "optimization-level=1")
    assert other.code == 0, other.err
    assert not journal.exists()
