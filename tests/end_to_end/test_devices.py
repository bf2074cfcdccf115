"""`fix` with several workers through the command line, on stand-ins that need different plans."""

import hashlib

import numpy as np
import pytest

from tests.fake_tensorrt.faults import Fault
from tests.models import Ill
from tests.models.illness import signals
from tests.unit.graph.sketch import Sketch

QUICK = ("--engine", "repeat=1", "--budget", "builds=9")


def chain() -> Ill:
    """Five products in a row, each right in FP16."""
    s = Sketch()
    y = s.input("x", [1, 32])
    for name in ("first", "second", "third", "fourth", "fifth"):
        y = s.op("Mul", y, 1.0 + np.linspace(0.0, 0.3, 32), name=name)
    return Ill(s.proto(y), {"x": signals(1, 32, seed=3)}, set(), {None})


@pytest.fixture
def on_devices(call, saved, named):
    """Fix `chain` on stand-ins: `on_devices(orin={"lossy": {"second": 1.2}}, a100={…})`."""

    def on_devices(*options, **workers):
        model, inputs = saved(chain())
        line = ("fix", model, "--inputs", inputs, "-o", "run", "--target", "tensorrt")
        return call(*line, *QUICK, *named(**workers), *options)

    return on_devices


def devices(ended):
    found = (ended.record["engines"], *ended.record["further"])
    return {each["worker"]["name"]: each for each in found}


def told(ended):
    return " ".join(ended.out.split())


def test_one_plan_for_devices_that_need_different_ones(on_devices, call):
    ended = on_devices(orin={"lossy": {"second": 1.2}}, a100={"lossy": {"fourth": 1.2}})
    assert ended.code == 0, ended.err + ended.out
    assert ended.kept == {"second", "fourth"}
    found = devices(ended)
    assert list(found) == ["orin", "a100"]
    for name, engines in found.items():
        file = ended.folder / f"model.{name}.engine"
        assert engines["delivered"]["path"] == file.name
        assert engines["delivered"]["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
        assert set(engines["keep"]) == ended.kept
        assert engines["verdict"]["passed"]
    assert not (ended.folder / "model.engine").exists()
    # What either needs alone fails on the other: no node can go on both.
    assert ended.record["plan"]["minimal"]
    tried = {n: {frozenset(r["keep"]): r["passed"] for r in e["rounds"]} for n, e in found.items()}
    assert not tried["orin"][frozenset({"fourth"})]
    assert not tried["a100"][frozenset({"second"})]
    assert "One plan on each device" in told(ended)
    again = call("report", "run")
    assert (again.code, again.out) == (0, ended.out)
    one = call("report", "run", "--trt-worker", "a100")
    assert (one.code, "Rounds" in one.out) == (0, True)
    several = call("export", "run", "--as", "trtexec")
    assert (several.code, "orin, a100" in several.err) == (2, True)
    assert call("export", "run", "--as", "trtexec", "--trt-worker", "a100").code == 0


def test_where_a_device_is_lost_each_keeps_its_fp32_engine(on_devices):
    gone = Fault("build", "disconnect", on=(4,))
    ended = on_devices(a100={"faults": [gone], "once": True}, orin={"lossy": {"second": 1.2}})
    assert ended.code == 0, ended.err + ended.out
    found = devices(ended)
    # What it showed before is on record, and nothing more is built anywhere.
    assert [r["build"] for r in found["a100"]["rounds"] if r["measured"] is not None] == [3]
    assert len(found["orin"]["rounds"]) == 2
    for name, engines in found.items():
        assert engines["rung"] in ("fp32", "tf32")
        assert engines["verdict"]["passed"]
        assert (ended.folder / f"model.{name}.engine").exists()
    assert "the worker a100 was lost before any FP16 engine was judged" in told(ended)


def test_where_no_low_plan_passes_on_each_device(on_devices):
    never = {"lossy": {"third": 1.2}, "ignored": ["third"]}
    ended = on_devices("--budget", "builds=1", orin={}, a100=never)
    assert ended.code == 0, ended.err + ended.out
    ends = {
        name: {tried["rung"]: tried["end"] for tried in engines["rungs"]}
        for name, engines in devices(ended).items()
    }
    assert ends["orin"] == ends["a100"]
    assert ends["orin"]["fp16"] == "elsewhere"
    rungs = {engines["rung"] for engines in devices(ended).values()}
    assert len(rungs) == 1
    assert rungs <= {"fp32", "tf32"}
    assert "no FP16 plan passed on all devices" in told(ended)


def test_a_wrong_fp32_engine_on_one_device(on_devices):
    ended = on_devices(orin={}, a100={"broken": {"third": 1.5}})
    assert ended.code == 10, ended.err
    assert "On a100: the FP32 engine without TF32 is already wrong" in told(ended)
    assert "halfwise diagnose" in ended.out
    assert "a100" in ended.record["next_step"][0]["command"]
    assert [e["worker"]["name"] for e in ended.record["further"]] == ["a100"]


def test_a_device_without_an_fp32_engine_ends_the_run(on_devices):
    ended = on_devices(orin={}, a100={"faults": [Fault("build", "memory")]})
    assert ended.code == 5, ended.err
    assert "error: a100: TensorRT builds no FP32 engine of this model" in " ".join(
        ended.err.split()
    )
    assert not ended.folder.exists()


def test_workers_that_cannot_be_named_together(refused, saved, named, monkeypatch, tmp_path):
    model, inputs = saved(chain())
    monkeypatch.chdir(tmp_path)
    words = named(orin={}, a100={})
    line = ("fix", model, "--inputs", inputs, "-o", "run", "--target", "tensorrt", *words)
    assert "--trt-worker orin is given twice" in refused(2, *line, "--trt-worker", "orin")
    assert "absent is not in" in refused(2, *line, "--trt-worker", "absent")
    assert "part of a file name" in refused(2, *line, "--trt-worker", "a/b")
