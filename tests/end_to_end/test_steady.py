"""The same command gives the same plan in another process; beside busy ones: bench/steady.py."""

import json
import subprocess
import sys

import numpy as np
import pytest

from tests import models
from tests.processes import end


@pytest.mark.slow
@pytest.mark.parametrize("budget", [30, 1500])
def test_neither_hashes_nor_time_decide_anything(saved, tmp_path, environment, budget):
    """Sets of names are in another order in each process, unless the seed is the same."""
    ill = models.deep(layers=24)
    more = np.concatenate([ill.inputs["x"], ill.inputs["x"][::-1] * np.float32(0.7)])
    model, inputs = saved(models.Ill(ill.proto, {"x": more}, set()))
    options = ("--rel-max", "0.001", "--budget", f"inferences={budget}")
    command = [sys.executable, "-m", "halfwise", "fix", model, "--inputs", inputs, *options]
    running = [
        subprocess.Popen(
            [*command, "-o", f"run{seed}"],
            cwd=tmp_path,
            env=environment | {"PYTHONHASHSEED": seed},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for seed in ("1", "2")
    ]
    try:
        told = [process.communicate()[1] for process in running]
    finally:
        for process in running:
            end(process)
    assert [process.returncode for process in running] == [0, 0], told
    first, second = (json.loads((tmp_path / f"run{seed}/run.json").read_text()) for seed in "12")
    for part in ("plan", "search", "curve", "verdict", "growth", "followed", "worth"):
        assert first[part] == second[part], part
    assert first["cost"]["evaluations"] == second["cost"]["evaluations"]
    assert first["search"]["ended_by"] == (["work"] if budget == 30 else [])
