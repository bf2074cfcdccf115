"""The first proven engine is announced and usable while the run goes on, and what Ctrl-C keeps."""

import hashlib
import os
import signal
import subprocess
import threading

import pytest


from tests import models
from tests.end_to_end.test_export import decided
from tests.fake_tensorrt.faults import Fault

FAST_TF32 = {"fp32": 2.0, "tf32": 0.5, "low": 1.0, "border": 0.0}
SPEECH = {"fp32": 0.84, "tf32": 0.384, "low": 0.257, "border": 0.0}


def told(ended):
    return " ".join(ended.out.split())


def purposes(ended):
    return [build["purpose"] for build in ended.record["engines"]["builds"]]


@pytest.fixture
def when_told(monkeypatch):
    """Call a function whenever an engine is told, with what was told of it."""

    def when_told(then):
        tell = Early.tell

        def telling(early, *given):
            tell(early, *given)
            then(early.told[-1])

        monkeypatch.setattr(Early, "tell", telling)

    return when_told


def test_a_proven_engine_can_be_used_before_the_run_ends(engines, fake_worker, when_told, tmp_path):
    seen = []

    def use(found):
        engine = tmp_path / found.path
        python = fake_worker()
        done = subprocess.run(
            [*python, engine.with_name("build_engine.py")],
            capture_output=True,
            text=True,
            check=True,
        )
        assert "rebuilt.engine" in done.stdout
        assert decided(engine.with_name("rebuilt.engine")) == decided(engine)
        assert not (tmp_path / "run").exists()
        seen.append((found.build, hashlib.sha256(engine.read_bytes()).hexdigest()))

    when_told(use)
    ended = engines(models.conv_chain())
    assert ended.code == 0, ended.err
    found = ended.record["engines"]
    built = {b["number"]: b["engine"]["sha256"] for b in found["builds"]}
    assert seen == [(number, built[number]) for number, _ in seen]
    assert [proven["build"] for proven in found["proven"]] == [number for number, _ in seen]
    assert seen[0][0] <= 3
    assert "is proven on held-out data, FP32 with TF32" in " ".join(ended.err.split())
    assert "First proven engine: build 2 (FP32, TF32 on), after" in told(ended)
    assert not (tmp_path / "run.proven").exists()


def test_ctrl_c_keeps_what_is_proven_and_builds_no_more(engines, when_told, tmp_path):
    when_told(lambda _: signal.raise_signal(signal.SIGINT))
    ended = engines(models.conv_chain(), "--budget", "builds=9", pace=FAST_TF32)
    assert ended.code == 0, ended.err
    found = ended.record["engines"]
    assert purposes(ended) == ["FP32, TF32 off", "FP32, TF32 on"]
    assert found["rung"] == "tf32"
    engine = (ended.folder / "model.engine").read_bytes()
    assert found["delivered"]["sha256"] == hashlib.sha256(engine).hexdigest()
    (delivered,) = (tried for tried in found["rungs"] if tried["end"] == "delivered")
    assert (delivered["rung"], delivered["band"]["least"]) == ("tf32", 0.0)
    assert delivered["band"]["most"] > 0
    assert "The run was interrupted after an engine was proven" in told(ended)
    assert "interrupted before anything lower was built" in told(ended)
    assert not (tmp_path / "run.proven").exists()


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
    assert "(the plan of the emulation) was interrupted after" in told(ended)


@pytest.mark.parametrize(
    ("signals", "code", "last"),
    [
        ((signal.SIGINT, signal.SIGINT), 130, "interrupted"),
        ((signal.SIGTERM, signal.SIGINT), 130, "interrupted"),
        ((signal.SIGINT, signal.SIGTERM), 143, "ended by SIGTERM"),
    ],
)
def test_what_is_proven_outlives_a_run_that_ends_at_once(
    engines, when_told, tmp_path, signals, code, last
):
    def end(_):
        for number in signals:
            signal.raise_signal(number)

    when_told(end)
    ended = engines(models.conv_chain())
    assert ended.code == code
    assert not ended.folder.exists()
    where, further, end_ = ended.err.splitlines()[-3:]
    assert where.startswith("already proven: ")
    assert where.endswith("run.proven/build-2/model.engine")
    assert "--resume" in further
    assert end_ == last
    proven = tmp_path / "run.proven" / "build-2"
    assert {path.name for path in proven.iterdir()} == {
        *("model.engine", "model.fp32.onnx", "build_engine.py"),
    }
    again = engines(models.conv_chain())
    assert again.code == 2
    assert "run.proven has engines of a run that ended early" in " ".join(again.err.split())
    assert proven.exists()


def test_where_tf32_is_not_right_fp32_is_the_first(engines, when_told):
    seen = []
    when_told(lambda found: seen.append(found.build))
    ended = engines(models.conv_chain(), "--rel-max", 1e-5, pace=FAST_TF32)
    assert ended.code == 0, ended.err
    assert seen == [1]
    assert ended.record["engines"]["rung"] == "fp32"


def test_where_no_low_engine_is_right_tf32_is_delivered(engines):
    """FP16 is fast and off, whatever is kept."""
    kept = sorted(models.conv_chain().kept)
    ended = engines(
        models.conv_chain(), "--no-repair", "--budget", "builds=3", ignored=kept, pace=SPEECH
    )
    assert ended.code == 0, ended.err
    assert ended.record["engines"]["rung"] == "tf32"
    assert "The delivered engine is FP32 with TF32: no FP16 plan passed." in told(ended)
    assert len(purposes(ended)) > 4


def test_no_plan_is_looked_for_where_a_right_engine_is_faster_than_fp16(engines):
    """As for a model of which most plans cannot be built."""
    refused = Fault("build", "memory", when={"low": "fp16", "kept": ["conv_b"]})
    ended = engines(
        models.conv_chain(), "--no-repair", "--budget", "builds=9", faults=[refused], pace=FAST_TF32
    )
    assert ended.code == 0, ended.err
    found = ended.record["engines"]
    assert found["rung"] == "tf32"
    assert purposes(ended) == [
        *("FP32, TF32 off", "FP32, TF32 on", "the plan of the emulation", "plain low precision"),
        "plain low precision with TF32",
    ]
    assert [spared["kind"] for spared in found["spared"]] == ["slower"]
    why = "No more plans were built: with nothing kept a run takes 4 ms (build 5), and 3.5 ms in"
    assert why in told(ended)
