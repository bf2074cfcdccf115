"""A run with engines that was killed goes on without the build that it was killed in."""

import json
import shlex
import signal
import subprocess
import sys
import time

from tests import models
from tests.fake_tensorrt.faults import Fault


def test_a_build_that_took_halfwise_down_is_not_repeated(
    saved, call, fake_worker, tmp_path, environment
):
    model, inputs = saved(models.layer_norm())
    worker = shlex.join(fake_worker(faults=[Fault("build", "hang", on=(3,))]))
    arguments = ["fix", str(model), "--inputs", str(inputs), "-o", "run", "--target", "tensorrt"]
    arguments += ["--trt-command", worker, "--builds", "1", "--max-builds", "1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "halfwise", *arguments],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    journal = tmp_path / "run.journal.jsonl"
    deadline = time.monotonic() + 120
    while not journal.exists() or journal.read_bytes().count(b'"begin"') < 3:
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.1)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "run").exists()

    refused = call(*arguments)
    assert refused.code == 2
    assert "run that ended early" in refused.err
    ended = call(*arguments, "--resume")
    assert ended.code == 0, ended.err
    found = ended.record["engines"]
    skipped = [b for b in found["builds"] if b["status"] == "skipped"]
    assert [b["number"] for b in skipped] == [3]
    assert "halfwise itself ended during this build" in skipped[0]["message"]
    assert not journal.exists()
    lines = (ended.folder / "journal.jsonl").read_text().splitlines()
    begun = [json.loads(line) for line in lines if '"begin"' in line]
    keys = [entry["key"] for entry in begun]
    assert keys.count(begun[2]["key"]) == 1
