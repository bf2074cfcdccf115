"""Repaired plans in engines, and in what reads a run, on the stand-in for TensorRT."""

import hashlib
from pathlib import Path

import onnx
import pytest

from halfwise.fixing.repair import making
from tests.unit.fixing.repair.sluices import WIDE, Sluice, sluiced


@pytest.fixture(autouse=True)
def one_rule(monkeypatch):
    monkeypatch.setattr(making, "RULES", (Sluice(),))


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def told(ended) -> str:
    return " ".join(ended.out.split())


def factor(path: Path) -> float:
    """Return what the first node multiplies by: 6e4 in the user's model."""
    model = onnx.load(path)
    up = next(node for node in model.graph.node if node.name == "up_0")
    weights = {
        tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer
    }
    return float(next(weights[name] for name in up.input if name in weights))


@pytest.fixture
def fixed(call, saved, named):
    """A run on a worker with weak typing and one with strong, and their options."""
    model, inputs = saved(sluiced())
    workers = named(weak={}, strong={"version": "10.16.1.11"})
    line = ("fix", model, "--inputs", inputs, "-o", "run", "--target", "tensorrt")
    ended = call(*line, "--engine", "repeat=1", "--budget", "builds=1", *workers)
    assert ended.code == 0, ended.err
    return ended, workers


def test_both_typings_build_the_repaired_model_and_what_reads_the_run_knows_it(fixed, call):
    ended, workers = fixed
    folder, record = ended.folder, ended.record
    files = {name: folder / f"model{name}.onnx" for name in ("", ".fp32", ".built")}
    assert [factor(path) for path in files.values()] == [6e4 / 2**10, 6e4, 6e4 / 2**10]
    (repair,) = record["plan"]["repairs"]
    assert record["plan"]["keep"] == []
    assert repair["identity"] == "(x·s)·W/s = x·W"
    for engines, planned in zip(
        (record["engines"], *record["further"]), (files[".built"], files[""]), strict=True
    ):
        assert engines["rung"] == "fp16"
        built = [build["config"]["model_sha256"] for build in engines["builds"]]
        assert built == [sha256(files[".fp32"])] * 2 + [sha256(planned)]
        for row in engines["results"]:
            assert row["verdict"]["passed"]
            assert [n["node"] for n in row["proof"]["nodes"]] == ["up_0", "wide_0", "down_0"]
    assert "All 3 compute nodes in FP16; 1 repair" in ended.out
    assert call("report", "run").out == ended.out
    itself = ("verify", "model.onnx", "run/model.onnx", "--inputs", "model.npz", "-o", "judged")
    judged = call(*itself, "--target", "tensorrt", *workers[-2:], folder="judged")
    assert judged.code == 0, judged.err
    assert judged.record["given_engine"]["proof"]["node_share"] == {"fp16": 1.0}
    for name, file in (("weak", "model.built.onnx"), ("strong", "model.onnx")):
        exported = call("export", "run", "--as", "python", "--trt-worker", name)
        assert file in exported.out, exported.err


def test_without_engines_what_reads_the_run_makes_its_repairs_again(call, saved, monkeypatch):
    model, inputs = saved(sluiced())
    ended = call("fix", model, "--inputs", inputs, "-o", "run")
    assert (ended.code, ended.record["plan"]["keep"]) == (0, []), ended.err
    eight = ("--as", "trtexec", "--trt-version", "8.6")
    assert call("export", "run", *eight).code == 3
    assert call("export", "run", *eight, "-o", "recipe").code == 0
    assert factor(ended.folder.parent / "recipe" / "model.built.onnx") == 6e4 / 2**10
    from_it = ("fix", model, "--inputs", inputs, "--start-from", "run")
    repairs = ended.record["plan"]["repairs"]
    assert call(*from_it, "-o", "same", folder="same").record["plan"]["repairs"] == repairs
    without = call(*from_it, "-o", "other", "--no-repair", folder="other").record["plan"]
    assert (without["repairs"], bool(without["keep"])) == ([], True)
    # No rule is asked once more.
    monkeypatch.setattr(Sluice, "propose", lambda *_: ())
    chosen = call("choose", "run", "-o", "chosen", "--worth", 1, folder="chosen")
    assert chosen.code == 0, chosen.err
    assert chosen.record["plan"]["repairs"] == repairs
    assert sha256(chosen.model) == sha256(ended.model)


def test_the_plan_that_is_known_without_repairs_is_built_beside(engines, call):
    # The one build of the budget leaves out the first half, in which the fault is.
    ended = engines(sluiced(WIDE, 2.0), lossy={"wide_0": 1.2, "up_0": 1.2})
    assert ended.code == 0, ended.err
    record, engine = ended.record, ended.record["engines"]
    kept = ["up_0", "wide_0", "down_0"]
    assert (record["plan"]["repairs"], [k["node"] for k in record["plan"]["keep"]]) == ([], kept)
    assert (engine["rung"], engine["keep"]) == ("fp16", kept)
    own, plain = (sha256(ended.folder / f"model{name}.onnx") for name in ("", ".fp32"))
    assert engine["builds"][-1]["config"]["model_sha256"] == plain
    assert not (ended.folder / "model.built.onnx").exists()
    assert {n["asked"] for n in engine["results"][-1]["proof"]["nodes"]} == {"fp32", None}
    assert "The best engine that passed is without the 1 repair" in told(ended)
    worth = record["worth"]["cost"]
    chosen = call("choose", "run", "-o", "chosen", "--worth", worth, folder="chosen")
    assert chosen.code == 0, chosen.err
    assert sha256(chosen.model) == own


def test_a_repaired_plan_that_is_slower_than_fp32_leaves_one_without_repairs(engines):
    """Low layers of the stand-in take longer than FP32's here, so fewer of them are faster."""
    pace = {"fp32": 1.0, "low": 1.2, "border": -0.8}
    ended = engines(sluiced(1.0, WIDE, 1.0), "--budget", "builds=2", pace=pace)
    assert ended.code == 0, ended.err
    record, engine = ended.record, ended.record["engines"]
    assert record["plan"]["repairs"] == []
    assert [k["node"] for k in record["plan"]["keep"]] == ["up_1", "wide_1", "down_1"]
    assert (engine["rung"], len(engine["keep"])) == ("fp16", 3)
    last = engine["builds"][-1]
    assert last["config"]["model_sha256"] == sha256(ended.folder / "model.fp32.onnx")
