"""`verify RUN --target`: a file that passed before other runtimes, versions and GPUs."""

import json
import shlex

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from halfwise.fixing.engines.measure import Measure
from halfwise.records import Failure, replace
from tests import models
from tests.end_to_end.test_judged import pooled
from tests.unit.graph.sketch import Sketch, f32

WEBGPU = ["WebGPU (not optimised)", "WebGPU"]
RTX = "TensorRT for RTX (SM86)"
BOTH = ("--target", "webgpu", "--target", "rtx")


def far_off() -> models.Ill:
    """Rows whose mean is ten thousand times their deviation: a variance in one pass is wrong."""
    s = Sketch(17)
    x = s.op("Relu", s.input("x", [4, 64]), name="before")
    y = s.op("LayerNormalization", x, f32(np.ones(64)), name="norm")
    y = s.op("MatMul", y, models.weights(64, 16, seed=1, scale=0.3), name="after")
    return models.Ill(s.proto(y), {"x": models.signals(4, 64, seed=2) + f32(1e4)})


def written_out(low: bool) -> onnx.ModelProto:
    """A LayerNorm in FP32 between FP16 nodes; ONNX Runtime fuses it to what it refuses."""
    s = Sketch(17)

    def cast(value, to):
        return s.op("Cast", value, to=to) if low else value

    x = cast(s.op("Relu", cast(s.input("x", [4, 64]), 10), name="before"), 1)
    apart = s.op("Sub", x, s.op("ReduceMean", x, axes=[-1], name="mean"), name="apart")
    power = s.op("Pow", apart, f32(2.0), name="power")
    variance = s.op("ReduceMean", power, axes=[-1], name="variance")
    root = s.op("Sqrt", s.op("Add", variance, f32(1e-5), name="eps"), name="root")
    gain = s.op("Mul", s.op("Div", apart, root, name="unit"), f32(np.ones(64)), name="gain")
    norm = cast(s.op("Add", gain, f32(np.zeros(64)), name="norm"), 10)
    if low:
        return s.proto(s.op("Cast", s.op("Relu", norm, name="last"), to=1, name="after"))
    return s.proto(s.op("Relu", norm, name="after"))


def held(ended):
    """Return outcome and first nodes by target."""
    return {one["target"]: (one["outcome"], one["first"]) for one in ended.record["held"]}


@pytest.fixture
def again(fix, call):
    """Fix a model, and verify the run with options."""

    def again(ill, *options, fixing=()):
        assert fix(ill, *fixing).code == 0
        return call("verify", "run", *options, "-o", "again", folder="again")

    return again


@pytest.mark.usefixtures("in_rtx", "on_webgpu")
def test_a_file_that_only_the_sums_of_a_target_break_is_fragile(again, call):
    ended = again(pooled(), *BOTH, fixing=("--no-repair",))
    assert ended.code == 10
    assert held(ended) == {
        **dict.fromkeys(WEBGPU, ("fragile", ["sum"])),
        RTX: ("built", []),
    }
    assert ended.record["accumulate"] == "fp32"
    assert (
        ended.record["verdict"]["samples"]
        == json.loads((ended.folder.parent / "run" / "run.json").read_bytes())["verdict"]["samples"]
    )
    (step,) = ended.record["next_step"]
    command = step["command"]
    assert command[:3] == ["halfwise", "fix", str(ended.folder.parent / "model.onnx")]
    repaired = call(*command[1:], folder=command[-1])
    assert repaired.code == 0, repaired.out
    last = call("verify", command[-1], *BOTH, "-o", "last", folder="last")
    assert last.code == 0, last.out
    assert {outcome for outcome, _ in held(last).values()} == {"same", "built"}


@pytest.mark.usefixtures("in_rtx", "on_webgpu")
def test_a_target_that_has_fp32_wrong_is_told_from_a_fragile_file(again):
    ended = again(far_off(), *BOTH)
    assert ended.code == 10
    assert held(ended) == {**dict.fromkeys(WEBGPU, ("fp32", ["norm"])), RTX: ("built", [])}
    assert ended.record["next_step"] == []
    assert "norm" in ended.out.splitlines()[1]


@pytest.mark.usefixtures("on_webgpu")
def test_a_run_names_the_version_that_ran_before(again, call, tmp_path):
    first = again(models.small(), "--target", "webgpu")
    assert first.code == 0
    assert {one["before"] for one in first.record["held"]} == {""}
    record = tmp_path / "again" / "run.json"
    record.write_text(record.read_text().replace('"1.30.0"', '"1.29.0"'))
    second = call("verify", "again", "--target", "webgpu", "-o", "second", folder="second")
    assert second.code == 0, second.out
    assert [one["before"] for one in second.record["held"]] == ["1.29.0"] * 2
    assert {outcome for outcome, _ in held(second).values()} == {"same"}
    assert "before: 1.29.0" in second.out
    assert second.record["verdict"]["samples"] == first.record["verdict"]["samples"]


@pytest.mark.usefixtures("on_webgpu")
@pytest.mark.parametrize(
    ("knobs", "code", "told"),
    [
        ({}, 0, ("same", [])),
        ({"lossy": {"matmul": 1.2}}, 10, ("fragile", ["matmul"])),
        ({"broken": {"matmul": 1.2}}, 10, ("fp32", ["matmul"])),
    ],
)
def test_an_engine_is_a_target_beside_others(again, fake_worker, knobs, code, told):
    worker = shlex.join(fake_worker("10.0.1", **knobs))
    engine = ("--target", "tensorrt", "--trt-command", worker)
    ended = again(models.small(), *engine, "--target", "webgpu")
    assert ended.code == code, ended.out
    assert held(ended) == {"TensorRT": told, **dict.fromkeys(WEBGPU, ("same", []))}
    assert ended.record["held"][0]["version"].startswith("10.0.1 on ")


@pytest.mark.parametrize(("wrong", "told"), [([1], "fragile"), ([1, 2], "fp32")])
def test_an_engine_that_fails_at_other_shapes_is_not_the_same(
    again, fake_worker, monkeypatch, wrong, told
):
    at_shapes, calls = Measure.at_shapes, []

    def failing(measure, engine, samples):
        calls.append(engine)
        why = (Failure(kind="no-sample"),)
        return [
            replace(one, verdict=replace(one.verdict, passed=False, failures=why))
            for one in at_shapes(measure, engine, samples)
            if one.verdict is not None and len(calls) in wrong
        ]

    monkeypatch.setattr(Measure, "at_shapes", failing)
    s = Sketch(17)
    ill = models.Ill(
        s.proto(s.op("Relu", s.op("MatMul", s.input("x", ["n", 8]), np.eye(8)), name="relu")),
        {"x": models.signals(1, 8, seed=1)},
    )
    worker = shlex.join(fake_worker("10.0.1"))
    ended = again(ill, "--target", "tensorrt", "--trt-command", worker)
    assert ended.code == 10, ended.out
    assert held(ended) == {"TensorRT": (told, [])}


@pytest.mark.usefixtures("in_rtx")
def test_what_the_builder_refuses_in_fp32_too(again):
    s = Sketch(17)
    x = s.op("Relu", s.input("x", [1, 4, 4]))
    y = s.op("Add", s.op("Det", x, name="determinant"), f32(1.0))
    ill = models.Ill(s.proto(y), {"x": models.signals(1, 4, 4, seed=1)})
    ended = again(ill, "--target", "rtx")
    assert ended.code == 10
    assert held(ended) == {RTX: ("fp32", [])}


@pytest.mark.usefixtures("on_webgpu")
def test_the_nodes_that_fail_where_a_file_does_not_run(call, tmp_path):
    onnx.save(written_out(False), tmp_path / "model.onnx")
    onnx.save(written_out(True), tmp_path / "mixed.onnx")
    np.savez(tmp_path / "x.npz", x=models.signals(4, 64, seed=2))
    words = ("verify", "model.onnx", "mixed.onnx", "--inputs", "x.npz", "--target", "webgpu")
    ended = call(*words, "-o", "run")
    assert ended.code == 10
    written, fused = (held(ended)[name] for name in WEBGPU)
    assert written == ("same", [])
    # ONNX Runtime makes one node of them, which its provider refuses.
    norm = ["mean", "apart", "power", "variance", "eps", "root", "unit", "gain", "norm"]
    assert (fused[0], [name for name in fused[1] if name in norm]) == ("fragile", norm)


@pytest.mark.usefixtures("on_webgpu")
def test_another_network_is_no_fragile_file(again, refused, tmp_path):
    ill = models.conv_chain()
    assert again(ill, "--target", "webgpu").code == 0
    other = onnx.load(tmp_path / "run" / "model.onnx")
    weights = next(w for w in other.graph.initializer if len(w.dims) > 1)
    array = onnx.numpy_helper.to_array(weights)
    weights.CopyFrom(onnx.numpy_helper.from_array(array[::-1].copy(), weights.name))
    onnx.save(other, tmp_path / "other.onnx")
    words = ("model.onnx", "other.onnx", "--inputs", "model.npz", "--target", "webgpu")
    assert "is another network" in refused(3, "verify", *words)
    onnx.save(other, tmp_path / "run" / "model.onnx")
    assert "is another network" in refused(3, "verify", "run", "--target", "webgpu")


@pytest.mark.usefixtures("on_webgpu")
@pytest.mark.parametrize("most", [np.inf, 1e4])
def test_weights_beyond_the_range_are_no_other_network(call, saved, tmp_path, most):
    model, inputs = saved(models.two_readers())
    low = onnx.load(model)
    (product,) = (node for node in low.graph.node if node.name == "enlarge")
    (weights,) = (w for w in low.graph.initializer if w.name == product.input[1])
    array = np.full((16, 16), 0, np.float16)
    np.fill_diagonal(array, most)
    weights.CopyFrom(onnx.numpy_helper.from_array(array, "low"))
    product.input[1] = "weights"
    cast = onnx.helper.make_node("Cast", ["low"], ["weights"], "cast", to=TensorProto.FLOAT)
    low.graph.node.insert(0, cast)
    onnx.save(low, tmp_path / "low.onnx")
    words = ("verify", model, "low.onnx", "--inputs", inputs, "--target", "webgpu")
    ended = call(*words, "-o", "run")
    assert ended.code == 10, ended.out + ended.err
    assert [one["outcome"] for one in ended.record["held"]] == ["fragile"] * 2


@pytest.mark.usefixtures("in_rtx")
def test_a_verified_run_is_verified_again(call, saved):
    model, inputs = saved(models.small())
    assert call("verify", model, model, "--inputs", inputs, "-o", "run").code == 0
    ended = call("verify", "run", "--target", "rtx", "-o", "again", folder="again")
    assert ended.code == 0, ended.out
    assert held(ended) == {RTX: ("built", [])}
    assert ended.record["compared"]["run"] == "run"


def test_what_cannot_be_verified_again(again, refused, tmp_path):
    ill = models.small()
    assert again(ill).code == 0
    assert "no candidate" in refused(2, "verify", "model.onnx", "--inputs", "model.npz")
    assert "--inputs is missing" in refused(2, "verify", "model.onnx", "model.onnx")
    assert "no run folder" in refused(7, "verify", "nowhere", "--target", "webgpu")
    (tmp_path / "run" / "model.onnx").rename(tmp_path / "kept.onnx")
    assert "is missing" in refused(7, "verify", "run", "--target", "webgpu")
    (tmp_path / "kept.onnx").rename(tmp_path / "run" / "model.onnx")
    np.savez(tmp_path / "model.npz", x=ill.inputs["x"] * 2)
    assert "no longer has the inputs" in refused(7, "verify", "run")
    np.savez(tmp_path / "model.npz", x=ill.inputs["x"])
    ill.proto.producer_name = "another"
    onnx.save(ill.proto, tmp_path / "model.onnx")
    assert "its hash differs" in refused(7, "verify", "run")
