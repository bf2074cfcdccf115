"""The first proven engine is announced while the run goes on, and what Ctrl-C keeps."""

import hashlib
import os
import signal
import threading
import time

import pytest

from halfwise.fixing.engines import device
from halfwise.reporting.plan import proven_line
from halfwise.tensorrt.client import Worker
from tests import models
from tests.fake_tensorrt.faults import Fault

FAST_TF32 = {"fp32": 2.0, "tf32": 0.5, "low": 1.0, "border": 0.0}
FAST_LOW = {"fp32": 1.0, "tf32": 0.9, "low": 0.1, "border": 0.0}
SPEECH = {"fp32": 0.84, "tf32": 0.384, "low": 0.257, "border": 0.0}


def told(ended):
    return " ".join(ended.out.split())


def purposes(ended):
    return [build["purpose"] for build in ended.record["engines"]["builds"]]


@pytest.fixture
def when_told(monkeypatch):
    """Call a function when an engine is told as proven, with its build."""

    def when_told(then):
        line = proven_line

        def telling(row):
            then(row.build.number)
            return line(row)

        monkeypatch.setattr(device, "proven_line", telling)

    return when_told


def test_the_first_engine_is_proven_while_the_run_goes_on(engines, when_told, tmp_path):
    seen = []
    when_told(lambda build: seen.append((build, (tmp_path / "run").exists())))
    ended = engines(models.conv_chain())
    assert ended.code == 0, ended.err
    assert seen == [(1, False), (2, False)]
    assert "build 1 is proven on held-out data, FP32 without TF32" in " ".join(ended.err.split())


def test_ctrl_c_keeps_what_is_proven_and_builds_no_more(engines, when_told):
    when_told(lambda _: signal.raise_signal(signal.SIGINT))
    ended = engines(models.conv_chain(), "--budget", "builds=9", pace=FAST_TF32)
    assert ended.code == 0, ended.err
    found = ended.record["engines"]
    assert purposes(ended) == ["FP32, TF32 off"]
    assert found["rung"] == "fp32"
    engine = (ended.folder / "model.engine").read_bytes()
    assert found["delivered"]["sha256"] == hashlib.sha256(engine).hexdigest()
    assert [tried["end"] for tried in found["rungs"]] == ["delivered"]
    assert "interrupted" in found["spared"]
    assert "interrupted before anything lower was built" in told(ended)


@pytest.mark.parametrize(("build", "code"), [(1, 130), (2, 0)])
def test_ctrl_c_ends_the_builds_of_fp32_too(engines, tmp_path, build, code):
    """The FP32 engine is delivered; without one there is no result, and nothing is written."""
    begun, over = tmp_path / "worker-counts" / "build", threading.Event()
    pressed: list[float] = []

    def press():
        while not over.wait(0.05):
            if begun.exists() and begun.stat().st_size == build:
                pressed.append(time.monotonic())
                os.kill(os.getpid(), signal.SIGINT)
                return

    pressing = threading.Thread(target=press)
    pressing.start()
    faults = [Fault("build", "hang", on=(build,))]
    ended = engines(models.layer_norm(), "--no-repair", "--budget", "builds=9", faults=faults)
    over.set()
    pressing.join()
    assert ended.code == code, ended.err
    assert time.monotonic() - pressed[0] < 5
    if code:
        assert not ended.folder.exists()
        return
    found = ended.record["engines"]
    assert [one["status"] for one in found["builds"]] == ["built", "interrupted"]
    assert (found["delivered"] is None, found["rung"]) == (False, "fp32")
    assert ended.record["search"]["ended_by"] == ["interrupt"]
    assert "The run was interrupted, so no more were built" in told(ended)
    assert (ended.folder / "report.html").exists()


def test_ctrl_c_ends_a_build_that_runs(engines, tmp_path):
    begun, over = tmp_path / "worker-counts" / "build", threading.Event()

    def press():
        while not over.wait(0.05):
            if begun.exists() and begun.stat().st_size == 3:
                os.kill(os.getpid(), signal.SIGINT)
                return

    pressing = threading.Thread(target=press)
    pressing.start()
    hang = Fault("build", "hang", when={"low": "fp16"})
    ended = engines(models.conv_chain(), "--no-repair", faults=[hang], pace=FAST_TF32)
    over.set()
    pressing.join()
    assert ended.code == 0, ended.err
    found = ended.record["engines"]
    assert [build["status"] for build in found["builds"]] == ["built", "built", "interrupted"]
    assert (found["rung"], found["causes"], found["rounds"]) == ("tf32", [], [])
    assert "(plain low precision): Ctrl-C came." in told(ended)


@pytest.mark.parametrize(
    ("signals", "code", "last"),
    [
        ((signal.SIGINT, signal.SIGINT), 130, "interrupted"),
        ((signal.SIGTERM, signal.SIGINT), 130, "interrupted"),
        ((signal.SIGINT, signal.SIGTERM), 143, "ended by SIGTERM"),
    ],
)
def test_pressed_again_it_ends_the_run_at_once(engines, when_told, signals, code, last):
    def end(_):
        for number in signals:
            signal.raise_signal(number)

    when_told(end)
    ended = engines(models.conv_chain())
    assert ended.code == code
    assert not ended.folder.exists()
    assert ended.err.splitlines()[-1] == last


def test_where_tf32_is_not_right_fp32_is_delivered(engines):
    ended = engines(models.conv_chain(), "--rel-max", 1e-5, pace=FAST_TF32)
    assert ended.code == 0, ended.err
    assert ended.record["engines"]["rung"] == "fp32"


def test_where_no_low_engine_is_right_tf32_is_delivered(engines):
    """FP16 is fast and off, whatever is kept."""
    kept = sorted(models.conv_chain().kept)
    ended = engines(
        models.conv_chain(), "--no-repair", "--budget", "builds=3", ignored=kept, pace=SPEECH
    )
    assert ended.code == 0, ended.err
    assert ended.record["engines"]["rung"] == "tf32"
    ends = {rung["rung"]: rung["end"] for rung in ended.record["engines"]["rungs"]}
    assert ends == {"fp32": "slower", "tf32": "delivered", "fp16": "tolerance"}
    (cause,) = ended.record["engines"]["causes"]
    assert (cause["kind"], set(cause["nodes"])) == ("ignored", {"conv_b", "relu", "conv_c"})
    assert all(node in told(ended).partition(". ")[0] for node in cause["nodes"])


@pytest.mark.parametrize(
    ("request_", "number", "rung"),
    [
        ("time", 1, "fp32"),
        ("inspect", 1, "fp32"),
        ("build", 2, "fp32"),
        ("time", 2, "fp32"),
        ("build", 3, "tf32"),
        ("time", 3, "tf32"),
        ("inspect", 3, "tf32"),
        ("time", 4, "tf32"),
        ("time", 5, "fp16"),
    ],
)
def test_ctrl_c_at_any_request_keeps_what_is_proven(engines, monkeypatch, request_, number, rung):
    calls, request = [], getattr(Worker, request_)
    pressed: list[float] = []

    def counted(*arguments, **options):
        calls.append(request_)
        if len(calls) == number:
            pressed.append(time.monotonic())
            signal.raise_signal(signal.SIGTERM)
        return request(*arguments, **options)

    monkeypatch.setattr(Worker, request_, counted)
    ended = engines(models.conv_chain(), "--no-repair", "--budget", "builds=9", pace=FAST_LOW)
    took = time.monotonic() - pressed[0]
    assert ended.code == 0, ended.err
    assert took < 5
    found = ended.record["engines"]
    assert found["rung"] == rung
    assert "interrupted" in found["spared"]
