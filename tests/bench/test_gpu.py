"""The GPU benches as far as they go without a GPU: models, options, what records tell."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper

from bench.figures import reported
from bench.gpu import basic_pitch, engines, models
from bench.gpu.figures import measure
from bench.gpu.jobs import JOBS, Host
from bench.gpu.pipe import Pipe, Refused, shape_profile
from bench.gpu.polygraphy_bisect import Bisected, bisect, command
from bench.gpu.resnet import FACTOR, PLANTED, resnet
from examples.digits import vit
from halfwise.records import (
    BuildConfig,
    BuildOutcome,
    EngineFile,
    EngineResult,
    EngineRound,
    EngineRung,
    Engines,
    Latency,
    NodeName,
    TensorName,
    WorkerInfo,
    replace,
)
from tests.unit.reporting.runs import verdict

Keep = tuple[NodeName, ...]
A, B, C = ((NodeName(n),) for n in "abc")
AB = A + B
HOST = Host("/somewhere/python", "EDGE_MASK_CONVOLUTIONS,JIT_CONVOLUTIONS", None)


def run(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> np.ndarray:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, feeds)[0])


# --- models -----------------------------------------------------------------------------------


def test_the_scaled_ffn_changes_no_logit() -> None:
    plain, scaled = models.digits(), models.digits_ffn()
    for sample in plain.heldout["images"]:
        wanted, found = (run(m.model, {"images": sample}) for m in (plain, scaled))
        np.testing.assert_allclose(found, wanted, atol=1e-4)
    assert plain.inputs["images"].shape == (3, 16, 1, 8, 8)
    assert plain.heldout["images"].shape == (4, 16, 1, 8, 8)


def test_layer_norms_become_one_node_each() -> None:
    sizes = {"dim": 8, "depth": 1, "classes": 3, "channels": 1}
    shape: dict[str, Any] = {"heads": 2, "patch": 2, "image": 4}
    weights = vit.random_weights(0, **sizes, **shape)
    written_out = vit.build_vit(weights, opset=17, **shape)
    fused = vit.build_vit(weights, opset=17, **shape)
    models._fuse_layer_norms(fused)
    onnx.checker.check_model(fused, full_check=True)
    kinds = [n.op_type for n in fused.graph.node]
    assert kinds.count("LayerNormalization") == 3
    assert "ReduceMean" not in kinds
    images = np.random.default_rng(0).standard_normal((2, 1, 4, 4)).astype(np.float32)
    wanted, found = (run(m, {"images": images}) for m in (written_out, fused))
    np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_the_planted_bottleneck_overflows_and_changes_no_logit() -> None:
    model = resnet()
    onnx.checker.check_model(model, full_check=True)
    images = models.resnet50().heldout["images"][0]
    inner = onnx.helper.make_empty_tensor_value_info(f"{PLANTED}.conv1.y")
    wanted = run(model, {"images": images})
    constants = {t.name: t for t in model.graph.initializer}
    for name, factor in (
        ("conv1.weight", 1 / FACTOR),
        *((f"conv{i}.bias", 1 / FACTOR) for i in (1, 2)),
        ("conv3.weight", FACTOR),
    ):
        tensor = constants[f"{PLANTED}.{name}"]
        array = (numpy_helper.to_array(tensor) * factor).astype(np.float32)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    model.graph.output.insert(0, inner)
    assert np.abs(run(model, {"images": images})).max() * FACTOR > 65504
    del model.graph.output[0]
    np.testing.assert_array_equal(run(model, {"images": images}), wanted)


def test_the_small_net_of_the_probe_is_valid() -> None:
    made = models.small_conv()
    onnx.checker.check_model(made.model, full_check=True)
    assert run(made.model, {"images": made.heldout["images"][0]}).shape == (4, 16, 1, 1)


# --- commands ---------------------------------------------------------------------------------


def test_a_host_without_tactic_sources_leaves_tensorrt_its_default() -> None:
    assert HOST.options()[-2:] == ["--engine", f"tactic-sources={HOST.tactic_sources}"]
    plain = Host("python", "", None)
    assert "--engine" not in plain.options()
    assert plain.sources() is None


def test_polygraphy_gets_profiles_and_the_check_last() -> None:
    words = command(HOST, Path("model.onnx"), {"x": (4, 1, 8)}, ("python", "check.py"))
    assert words[words.index("--trt-min-shapes") + 1] == "x:[1,1,8]"
    assert words[words.index("--trt-max-shapes") + 1] == "x:[4,1,8]"
    assert words[words.index("--tactic-sources") + 1 :][:2] == HOST.sources()
    assert words[-4:] == ["model.onnx", "--check", "python", "check.py"]


STAND_IN = """\
#!{python}
# Stands in for a Python with Polygraphy: says what `debug precision` says, and checks as it does.
import json, pathlib, sys
if "import polygraphy" in sys.argv[-1]:
    print("0.53.6")
    sys.exit()
print("[I] Selecting first 9 layer(s) to run in higher precision")
print("[W] Failed to create network or engine, continuing to the next iteration.")
for layers, error in ((5, "nan"), (7, "0.01")):
    print(f"[I] Selecting first {{layers}} layer(s) to run in higher precision")
    with open("checks.jsonl", "a") as file:
        file.write(json.dumps({{"error": error}}) + "\\n")
good = pathlib.Path("artifacts/good"); good.mkdir(parents=True)
(good / "polygraphy_debug_iter_2.engine").write_bytes(b"engine")
print("[I] To achieve acceptable accuracy, try running the first 7 layer(s) in higher precision")
"""


def bisected(tmp_path: Path) -> Bisected:
    python = tmp_path / "python"
    python.write_text(STAND_IN.format(python=sys.executable), encoding="utf-8")
    python.chmod(0o755)
    x = np.zeros((2, 3), np.float32)
    host, folder = Host(str(python), "", None), tmp_path / "work"
    return bisect(host, tmp_path / "model.onnx", ({"x": x}, {"y": x}), 0.05, folder, 60)


def test_polygraphys_answer_is_read_from_its_log(tmp_path: Path) -> None:
    found = bisected(tmp_path)
    assert (found.ended, found.layers, found.version) == ("answer", 7, "0.53.6")
    assert (found.builds, found.failed_builds, found.tried) == (3, 1, (9, 5, 7))
    assert math.isnan(found.errors[0])
    assert found.errors[1] == 0.01
    assert found.engine is not None
    assert found.engine.read_bytes() == b"engine"
    json.dumps(found.told(), allow_nan=False)


# --- records ----------------------------------------------------------------------------------


def build(number: int, *, low: bool, keep: Keep = (), tf32: bool = False) -> BuildOutcome:
    config = BuildConfig(
        model_sha256="m", typing="weak", low="fp16" if low else None, keep=keep, tf32=tf32
    )
    file = EngineFile(sha256=str(number), bytes=1, side="here", path="engine")
    return BuildOutcome(
        number=number, purpose="", status="built", config=config, seconds=2.0, engine=file
    )


def result(outcome: BuildOutcome, milliseconds: float) -> EngineResult:
    latency = Latency(
        shapes={TensorName("x"): (32, 3)},
        iterations=1,
        median_ms=milliseconds,
        p99_ms=milliseconds,
        device_bytes=1,
    )
    return EngineResult(name="", build=outcome, latency=latency)


def told(*rounds: EngineRound, keep: Keep) -> Engines:
    builds = (
        build(1, low=False),
        build(2, low=True, keep=AB),
        build(3, low=True),
        build(4, low=False, tf32=True),
    )
    return Engines(
        worker=WorkerInfo(name="w", command=("python",)),
        typing="weak",
        profiles=(),
        results=tuple(result(b, b.number) for b in builds),
        rounds=rounds,
        builds=builds,
        keep=keep,
        delivered=builds[1].engine,
    )


def step(number: int, keep: Keep, *, passed: bool) -> EngineRound:
    return EngineRound(step="s", build=number, keep=keep, passed=passed, predicted=0.5)


def test_the_proving_build_is_the_first_that_passed() -> None:
    rounds = (step(2, A, passed=False), step(3, AB, passed=True))
    assert engines.proving_build(told(*rounds, keep=AB)) == 3
    assert engines.proving_build(told(keep=())) == math.inf


def test_the_time_of_the_proving_build_is_read_from_the_output() -> None:
    found = told(step(2, A, passed=False), step(3, AB, passed=True), keep=AB)
    log = (
        "$ halfwise fix\n    9.7   build 2 keeps 1: error 9\n   13.4   build 3 keeps 2: error 0.1\n"
    )
    assert engines.seconds_until(engines.proving_build(found), "keeps", log) == 13.4
    assert math.isnan(engines.seconds_until(3, "keeps", "nothing"))


def test_a_kept_node_is_needed_where_an_engine_with_all_others_failed() -> None:
    assert engines.unproven(told(step(3, B, passed=False), keep=AB)) == ["b"]
    assert engines.unproven(told(step(3, B + C, passed=False), keep=AB)) == ["b"]
    assert engines.unproven(told(step(3, (), passed=False), keep=AB)) == ["a", "b"]
    assert engines.unproven(told(step(3, (), passed=False), keep=A)) == []
    assert engines.unproven(told(keep=())) == []


def test_polygraphy_is_compared_by_time_until_an_engine_passed(tmp_path: Path) -> None:
    found = told(step(2, AB, passed=True), keep=AB)
    rows = tuple(
        replace(row, verdict=verdict(level="engine", passed=row.build.number == 4))
        for row in found.results
    )
    found = replace(found, results=rows)
    other = replace(bisected(tmp_path), seconds=40.0)
    log = "  10.0   build 2 keeps 2:\n   8.0   build 4 is proven on held-out data, FP32\n"
    figures = list(engines.comparison("m", found, log, other, None))
    assert [figure.measured for figure in figures[-2:]] == [4.0, 5.0]
    assert figures[-1].reached
    assert engines.first_build(found) == 4
    assert engines.first_build(told(keep=())) == math.inf
    assert "first 7 layers" in figures[0].note
    failed = replace(other, ended="failed")
    assert not next(iter(engines.comparison("m", found, "", failed, None))).reached


def test_latencies_are_compared_by_how_engines_were_built() -> None:
    found = {f.what: f for f in engines.latencies("m", told(keep=AB))}
    assert found["m: latency of mixed / fp16"].measured == pytest.approx(2 / 3)
    assert found["m: latency of mixed / tf32"].measured == 0.5
    assert found["m: median latency of fp32 (ms)"].measured == 1.0
    assert "32×3" in found["m: median latency of fp32 (ms)"].note
    nothing_kept = {f.what: f for f in engines.latencies("m", told(keep=()))}
    assert nothing_kept["m: latency of mixed / fp16"].measured == 1.0


def test_the_delivered_engine_is_compared_with_tf32_of_the_same_run() -> None:
    found = told(keep=())
    rungs: tuple[EngineRung, ...] = ("fp32", "fp16", "fp16", "tf32")
    rows = tuple(replace(r, rung=rung) for r, rung in zip(found.results, rungs, strict=True))
    tf32 = replace(found, results=rows, delivered=rows[-1].build.engine, rung="tf32")
    outputs = {"y": SimpleNamespace(rel_max=0.0075)}
    run: Any = SimpleNamespace(engines=tf32, verdict=SimpleNamespace(outputs=outputs))
    figures = {f.what: f for f in engines.against_tf32("m", run)}
    assert figures["m: rung"].measured == "tf32"
    assert figures["m: latency of the delivered engine / TF32"].measured == 1.0
    assert figures["m: latency of the delivered engine / TF32"].reached
    assert figures["m: largest error over the largest value"].measured == 0.0075
    run.engines = replace(tf32, delivered=rows[0].build.engine, results=rows[:3])
    assert not list(engines.against_tf32("m", run))[-1].reached
    judged: Any = SimpleNamespace(passed=False)
    wrong = replace(rows[3], verdict=judged)
    run.engines = replace(tf32, delivered=rows[0].build.engine, results=(*rows[:3], wrong))
    told_only = list(engines.against_tf32("m", run))[-1]
    assert told_only.reach is None
    assert "out of tolerance" in told_only.note


def test_windows_of_audio_are_whole_and_do_not_overlap() -> None:
    sound = np.arange(basic_pitch.WINDOW + 3, dtype=np.float32)
    first, last = basic_pitch.windows(sound)
    assert first.shape == last.shape == (basic_pitch.WINDOW, 1)
    assert (first[:, 0] == sound[: basic_pitch.WINDOW]).all()
    assert not last[3:].any()
    made = basic_pitch.music(0)
    assert made.dtype == np.float32
    assert np.abs(made).max() == np.float32(0.7)
    assert (made != basic_pitch.music(1)).any()


def test_rounds_are_json_even_where_errors_are_infinite() -> None:
    worst = replace(step(2, A, passed=False), measured=math.inf)
    (found,) = engines.rounds(told(worst, keep=()))
    assert found["measured"] == "inf"
    json.dumps(found, allow_nan=False)


def test_predictions_stand_beside_measurements() -> None:
    (figure,) = engines.predictions("m", told(step(2, A, passed=False), keep=()))
    assert figure == reported(
        "m: build 2, 1 kept: measured error / tolerance", "no engine", "s; predicted 0.5"
    )


# --- the pipe to a worker ---------------------------------------------------------------------


def test_bytes_reach_a_worker_and_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HALFWISE_CACHE", str(tmp_path))
    data = bytes(range(256)) * 5000
    with Pipe([sys.executable], None) as pipe:
        hello = pipe.ask("hello").header
        assert hello["protocol"] == 1
        assert pipe.get(pipe.put(data)) == data
        profile = shape_profile({"x": [(1, 2), (2, 2), (4, 2)]})
        assert profile["shapes"]["x"]["max"] == [4, 2]
        with pytest.raises(Refused) as refused:
            pipe.build(b"model", profiles=[profile])
        assert refused.value.answer["code"] in ("tensorrt-missing", "gpu-missing", "parse")


def test_a_published_model_that_is_not_there_is_skipped(tmp_path: Path) -> None:
    assert JOBS["magika"].make is None
    found = measure("magika", HOST, tmp_path)
    assert found.figures == []
    assert found.skipped == "magika: not in the models folder"
