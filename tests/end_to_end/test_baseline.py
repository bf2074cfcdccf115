"""`verify --baseline`: a candidate that passes, and is worse than the one before, fails."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests import models
from tests.end_to_end.conftest import Ended


def scaled(proto: onnx.ModelProto, factor: float) -> onnx.ModelProto:
    """Return a model whose weights are off by a factor."""
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    for constant in made.graph.initializer:
        array = numpy_helper.to_array(constant) * np.float32(factor)
        constant.CopyFrom(numpy_helper.from_array(array, constant.name))
    return made


@pytest.fixture
def judged(call, saved, tmp_path):
    """Judge a candidate that is off by a factor: `judged(1.001, "out", *options)`."""
    ill = models.small()
    model, inputs = saved(ill)

    def judged(factor: float, out: str, *options: object) -> Ended:
        onnx.save(scaled(ill.proto, factor), tmp_path / f"{out}.onnx")
        words = ("verify", model, tmp_path / f"{out}.onnx", "--inputs", inputs, "-o", out)
        ended: Ended = call(*words, *options, folder=out)
        return ended

    return judged


def changes(ended: Ended) -> dict[str, dict[str, Any]]:
    return {change["kind"]: change for change in ended.record["compared"]["changes"]}


def test_what_is_worse_than_before_fails(judged):
    assert judged(1.001, "before").code == 0
    same = judged(1.001, "same", "--baseline", "before", "--may-worsen", "0")
    assert same.code == 0, same.out
    assert same.record["compared"]["same_samples"]
    worse = judged(1.0012, "worse", "--baseline", "before")
    assert worse.code == 10
    assert {f["kind"] for f in worse.record["verdict"]["failures"]} == {"worse"}
    error = changes(worse)["rel-max"]
    assert error["now"] == pytest.approx(1.2 * error["before"], rel=1e-2)
    assert not error["passed"]
    assert changes(worse)["non-finite"]["passed"]
    allowed = judged(1.0012, "allowed", "--baseline", "before", "--may-worsen", "25%")
    assert allowed.code == 0
    assert worse.record["provenance"]["candidate"].endswith("worse.onnx")
    assert judged(1.0005, "better", "--baseline", "before").code == 0


def test_the_commands_of_the_page_are_as_it_says(call, tmp_path):
    ill = models.small()
    onnx.save(ill.proto, tmp_path / "model.onnx")
    onnx.save(ill.proto, tmp_path / "mixed.onnx")
    np.savez(tmp_path / "heldout.npz", **dict(ill.inputs))  # type: ignore[arg-type]
    page = (Path(__file__).parents[2] / "docs" / "ci.md").read_text(encoding="utf-8")
    commands = re.findall(r"halfwise (verify model.*)$", page, re.MULTILINE)
    assert len(set(commands)) == 3
    for command in dict.fromkeys(commands):
        assert call(*shlex.split(command)).code == 0
    assert (tmp_path / "run" / "report.html").is_file()


def test_a_metric_may_not_fall_much_further(judged, tmp_path):
    (tmp_path / "m.py").write_text(
        "import numpy as np\n"
        "def score(outputs, references, labels):\n"
        "    pairs = zip(outputs, references)\n"
        "    return -float(max(np.abs(o[n] - r[n]).max() for o, r in pairs for n in o))\n"
    )
    metric = ("--metric", "m.py:score", "--metric-drop", "1")
    assert judged(1.001, "before", *metric).code == 0
    assert judged(1.0012, "worse", *metric, "--baseline", "before").code == 10
    wide = ("--baseline", "before", "--may-worsen", "25%")
    assert judged(1.0012, "allowed", *metric, *wide).code == 0
    without = judged(1.001, "without", "--baseline", "before")
    assert without.code == 10
    assert (changes(without)["metric"]["now"], changes(without)["metric"]["passed"]) == (
        None,
        False,
    )


def test_that_a_run_on_some_of_the_samples_is_refused_before_it_is_judged(fix, call):
    ended = fix(models.small())
    assert ended.code == 0
    words = ("verify", "model.onnx", "run/model.onnx", "--inputs", "model.npz")
    told = call(*words, "--baseline", "run")
    assert told.code == 7
    said = " ".join(told.err.split())
    some = len(ended.record["verdict"]["samples"])
    assert re.search(rf"its verdict is on {some} of these \d+ samples", said)
    assert "verify MODEL run/model.onnx --inputs DATA -o RUN" in said
    assert "--heldout DATA" in said
    assert "reference" not in told.err.splitlines()
    assert call(*words, "-o", "before").code == 0
    assert call(*words, "--baseline", "before").code == 0


def test_an_engine_may_not_become_slower(call, saved, fake_worker):
    model, inputs = saved(models.small())

    def built(out: str, pace: float, *options: object, version: str = "10.0.1") -> Ended:
        worker = fake_worker(version, pace={"fp32": pace, "low": pace})
        where = ("--target", "tensorrt", "--trt-command", shlex.join(worker))
        words = ("verify", model, model, "--inputs", inputs, "-o", out)
        ended: Ended = call(*words, *where, *options, folder=out)
        return ended

    assert built("before", 1.0).code == 0
    slower = built("slower", 1.1, "--baseline", "before")
    assert slower.code == 10
    assert not changes(slower)["time"]["passed"]
    assert built("allowed", 1.1, "--baseline", "before", "--may-worsen", "20%").code == 0
    other = built("other", 1.1, "--baseline", "before", version="11.4.0")
    assert other.code == 0
    assert changes(other)["time"]["now"] is None


def test_what_is_no_baseline_is_refused(judged, refused, tmp_path):
    assert judged(1.001, "before").code == 0
    alone = ("verify", "before.onnx", "before.onnx", "--inputs", "model.npz")
    assert "no run folder" in refused(7, *alone, "--baseline", "nowhere")
    assert "without --baseline" in refused(2, *alone, "--may-worsen", "5%")
    for wrong in ("lots", "error=5%", "-1", "nan", "inf%"):
        told = refused(2, *alone, "--baseline", "before", f"--may-worsen={wrong}")
        assert "expected a number or a percentage" in told
    np.savez(
        tmp_path / "fewer.npz", **{n: a[:5] for n, a in np.load(tmp_path / "model.npz").items()}
    )
    fewer = ("verify", "before.onnx", "before.onnx", "--inputs", "fewer.npz")
    assert "its verdict is on" in refused(7, *fewer, "--baseline", "before")
    record = json.loads((tmp_path / "before" / "run.json").read_text())
    record["verdict"]["level"] = "engine"
    (tmp_path / "before" / "run.json").write_text(json.dumps(record))
    assert "its verdict is engine" in refused(7, *alone, "--baseline", "before")
