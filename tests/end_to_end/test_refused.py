"""A plan that the builder refuses, through the command line: what is tried, stored and repeated."""

import json
import shlex

import numpy as np
import onnx
import pytest

from tests import models
from tests.fake_tensorrt.faults import Fault
from tests.fake_tensorrt.regions import Region
from tests.models import Ill
from tests.unit.graph.sketch import Sketch, f32

NO_GRU = Fault("build", "foreign", region=Region(ops=("GRU",)), when={"low": "fp16"})


def recurrence() -> Ill:
    s = Sketch()
    rng = np.random.default_rng(0)
    w, r = (s.constant(f32(rng.normal(size=(1, 12, 4)) / 2), k) for k in "wr")
    last = s.op("Mul", s.input("x", [3, 1, 4]), 1.5, name="before")
    last = s.op("GRU", last, w, r, name="rnn", hidden_size=4)
    for i in range(4):
        last = s.op("Tanh", last, name=f"after{i}")
    return Ill(s.proto(last), {"x": models.signals(3, 1, 4, seed=2, peak=2)})


@pytest.fixture
def refused(engines):
    """A run of a recurrence that has no FP16 kernel; FP32 takes a hundred times as long."""
    pace = {"fp32": 100.0, "low": 1.0, "border": 0.0}
    return engines(
        recurrence(), "--budget", "builds=8", "--keep", "after2", faults=[NO_GRU], pace=pace
    )


def test_what_is_written_out_is_built_stored_and_built_again(refused, call, fake_worker):
    assert refused.code == 0, refused.err
    found = refused.record["engines"]
    told = " ".join(refused.out.split())
    assert found["rung"] == "fp16"
    sha256 = found["delivered"]["sha256"]
    engines = [b for b in found["builds"] if b["engine"] is not None]
    (delivered,) = (b for b in engines if b["engine"]["sha256"] == sha256)
    assert delivered["config"]["rewritten"] == ["rnn"]
    assert "1 node in another form" in told
    moves = [r["move"]["kind"] for r in found["rounds"] if r["move"] is not None]
    assert moves[-1] == "written-out"
    refusals = found["refusals"]
    assert {r["kind"] for r in refusals} == {"no-kernel"}
    assert "What the builder refused" in refused.out
    assert f"Builds {refusals[0]['build']}, " in told
    assert "the builder has no kernel for 1 node" in told

    built = onnx.load(refused.folder / "model.built.onnx")
    assert "GRU" not in {n.op_type for n in built.graph.node}
    assert "GRU" in {n.op_type for n in onnx.load(refused.folder / "model.fp32.onnx").graph.node}
    recipe = json.loads(call("export", "run", "--as", "json").out)
    assert recipe["model"].endswith("run/model.built.onnx")
    assert {c["node"] for c in recipe["constraints"]} <= {n.name for n in built.graph.node}
    ended = call(
        *("verify", "run", "--target", "tensorrt", "--inputs", "model.npz", "--json"),
        *("--trt-command", shlex.join(fake_worker(faults=[NO_GRU]))),
    )
    assert ended.code == 0, ended.out
    rebuilt, _ = json.loads(ended.out)["rows"]
    assert rebuilt["build"]["config"]["rewritten"] == ["rnn"]
    assert call("report", "run").out == refused.out


def test_where_every_mixed_plan_is_refused_that_is_told_and_no_precision_is_blamed(engines):
    norm = models.layer_norm()
    nodes = tuple(n.name for n in norm.proto.graph.node)
    fault = Fault("build", "foreign", nodes=nodes, fails="any")
    ended = engines(norm, "--no-repair", "--budget", "builds=3", faults=[fault])
    found, told = ended.record["engines"], " ".join(ended.out.split())
    assert found["rung"] in ("fp32", "tf32")
    (cause,) = found["causes"]
    refused = [r["build"] for r in found["refusals"]]
    assert (cause["kind"], cause["builds"], cause["nodes"]) == ("refused", refused, list(nodes))
    assert cause["excess"] > 1
    assert found["rungs"][-1]["end"] == "refused"
    where = f"at {len(nodes)} nodes from {nodes[0]} to {nodes[-1]}"
    assert f"refused every FP16 plan that the emulation predicts to pass, {where}" in told
    assert "low precision explains it" not in told

    said = f"Could not find any implementation for node {{ForeignNode[{nodes[0]}...{nodes[-1]}]}}"
    assert f"Builds {', '.join(map(str, refused))}: the builder has no kernel for" in told
    # Once in the report; of each build while it runs.
    assert told.count(said) == 1
    assert "Failed builds" not in told
    assert "Assertion engine != nullptr" not in told + ended.err
    assert " ".join(ended.err.split()).count(said) == len(refused)
