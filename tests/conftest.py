"""Hypothesis profiles, and TensorRT workers without a GPU."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from hypothesis import settings

from halfwise.pipeline.engines import measure
from tests.fake_tensorrt.start import build_cuda_library, worker_command

# A shared machine stalls now and then, so no deadline; a failure must come back on the next
# run, so the examples are the same each time.
settings.register_profile("ci", deadline=None, max_examples=50, derandomize=True)
settings.register_profile("explore", deadline=None, max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@pytest.fixture(scope="session")
def cuda_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-in for libcuda.so.1, compiled."""
    return build_cuda_library(tmp_path_factory.mktemp("cuda"))


@pytest.fixture
def fake_worker(tmp_path: Path, cuda_library: Path) -> Callable[..., list[str]]:
    """Makes commands for `--trt-command`: `fake_worker("10.0.1", faults=[…])`, as `worker_command`.

    They share a cache and the counts of faults, in the test's own folder.
    """
    return partial(worker_command, tmp_path, cuda_library)


@pytest.fixture
def quick_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times engines for as long as the least number of runs takes."""
    monkeypatch.setattr(measure, "QUICK_SECONDS", 0.01)
    monkeypatch.setattr(measure, "THOROUGH_SECONDS", 0.01)
