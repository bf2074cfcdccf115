"""Hypothesis profiles, TensorRT workers without a GPU, and a look at what tests leave behind."""

import faulthandler
import gc
import os
import shlex
import signal
import tempfile
from collections.abc import Callable, Generator, Iterator
from functools import cache, partial
from pathlib import Path

import pytest
import typer.main
from _pytest.faulthandler import fault_handler_stderr_fd_key
from hypothesis import HealthCheck, settings

from halfwise.fixing.repair import making
from tests import leftovers
from tests.fake_tensorrt.start import build_cuda_library, forked_interpreters, worker_command
from tests.judges import RtxBuilder, WebGpu
from tests.processes import adopt_orphans

NEED_JUDGES = "HALFWISE_TESTS_NEED_JUDGES"
"""Set where a machine without a judge is to fail, not to skip."""

# A shared machine stalls now and then, so no clock; a failure must come back on the next run, so
# the examples are the same each time.
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", patient, max_examples=12, derandomize=True)
settings.register_profile("long", patient, max_examples=100, derandomize=True)
settings.register_profile("explore", patient, max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Leave the thousands of tests, and all that they import, out of each search for garbage.

    They stay to the end, and to visit them again and again took a tenth of the processor's time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        # With so little left to visit, the last generation would be searched all the time.
        gc.set_threshold(*gc.get_threshold()[:2], 50)
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    """Limit the end of a test that failed, too: a failure takes the limits of its test away."""
    limit = float(item.config.getini("faulthandler_timeout"))
    stderr = item.config.stash[fault_handler_stderr_fd_key]
    faulthandler.dump_traceback_later(limit, exit=True, file=stderr)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.fixture(scope="session", autouse=True)
def _interruptible() -> None:
    """Let tests be interrupted, even where a shell runs them in the background."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder for temporary files of this process and all that it starts; a cache for workers.

    Processes that outlive the tests fail the last one.
    """
    folder = tmp_path_factory.mktemp("scratch")
    adopt_orphans()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(folder))
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
        patch.setattr(tempfile, "tempdir", None)
        yield folder
    left = leftovers.processes()
    assert not left, f"Tests have left processes: {left}"


@pytest.fixture(scope="module")
def unrepaired() -> Iterator[None]:
    """Leave models as they are, in a whole module: `pytestmark = usefixtures("unrepaired")`.

    For what is about a search: most of the tiny ill models that show what it keeps, and why, can
    be repaired. A command line says so itself, with `--no-repair`.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(making, "RULES", ())
        yield


@pytest.fixture(autouse=True)
def _no_files_left(scratch: Path) -> Iterator[None]:
    """Fail a test that leaves temporary files outside of its own folder."""
    yield
    left = leftovers.files(scratch)
    assert not left, f"The test has left temporary files: {left}"


@pytest.fixture(scope="session", autouse=True)
def _commands_made_once() -> Iterator[None]:
    """Make the parser of the command line once, not for each of its many calls in one process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.main, "get_command", cache(typer.main.get_command))
        yield


@pytest.fixture(scope="session")
def cuda_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-in for libcuda.so.1, compiled."""
    return build_cuda_library(tmp_path_factory.mktemp("cuda"))


@pytest.fixture(scope="session")
def interpreter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An interpreter that has loaded what the stand-in for TensorRT needs."""
    with forked_interpreters(tmp_path_factory.mktemp("forks")) as command:
        yield command


@pytest.fixture(scope="session")
def rtx(scratch: Path) -> Iterator[RtxBuilder]:  # noqa: ARG001 - it works there
    """The builder of TensorRT for RTX."""
    with RtxBuilder() as judge:
        _require(judge.missing())
        yield judge


@pytest.fixture(scope="session")
def webgpu(scratch: Path) -> Iterator[WebGpu]:  # noqa: ARG001 - it works there
    """ONNX Runtime on WebGPU, in real FP16."""
    with WebGpu() as judge:
        _require(judge.missing())
        yield judge


@pytest.fixture
def on_webgpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `--target webgpu` find its program."""
    _require(WebGpu().missing())
    monkeypatch.setenv("HALFWISE_WEBGPU_COMMAND", shlex.join(WebGpu.command()))


@pytest.fixture
def in_rtx(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `--target rtx` find its program."""
    _require(RtxBuilder().missing())
    monkeypatch.setenv("HALFWISE_RTX_COMMAND", shlex.join(RtxBuilder.command))


def _require(missing: str | None) -> None:
    if missing is not None:
        pytest.fail(missing) if os.environ.get(NEED_JUDGES) else pytest.skip(missing)


def quick_timing(patch: pytest.MonkeyPatch) -> None:
    """Time engines for as long as few runs take: the stand-in's clock is its own."""
    names = ("QUICK_SECONDS", "ROUND_SECONDS", "WARM_SECONDS")
    for name, value in {**dict.fromkeys(names, 0.001), "TIMED_RUNS": 10}.items():
        # By name: what these are of takes a second to import.
        patch.setattr(f"halfwise.fixing.engines.measure.{name}", value)


@pytest.fixture
def _quick_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    quick_timing(monkeypatch)


@pytest.fixture
def fake_worker(
    tmp_path: Path,
    cuda_library: Path,
    interpreter: str,
    _quick_timing: None,
) -> Callable[..., list[str]]:
    """Makes commands for `--trt-command`: `fake_worker("10.0.1", faults=[…])`, as `worker_command`.

    They share a cache and the counts of faults, in the test's own folder. `interpreter` forks their
    processes; with `interpreter=sys.executable` they start anew.
    """
    return partial(worker_command, tmp_path, cuda_library, interpreter=interpreter)
