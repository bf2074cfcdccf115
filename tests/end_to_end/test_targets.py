"""`--target webgpu` and `--target rtx`: files before the runtimes that a user names."""

import json
import shlex
import shutil
import sys

import numpy as np
import onnx
import pytest
from onnx import TensorProto, compose

from tests import models
from tests.end_to_end.test_gate import far_off
from tests.end_to_end.test_judged import cumulative, pooled
from tests.judges import WebGpu
from tests.models.accumulation import global_mean, long_product, long_sum, mean_beside_products
from tests.models.attention import query_key
from tests.models.cancelling import cancellation
from tests.models.exponentials import softmax
from tests.models.positions import patch_columns, rotary
from tests.models.selection import arg_max, non_max_suppression, top_k
from tests.unit.fixing.int8.products import residual
from tests.unit.graph.sketch import Sketch, f32

WEBGPU = ("--target", "webgpu")
ON_WEBGPU = ["WebGPU (not optimised)", "WebGPU"]


def as_files(ended):
    """Return what each runner made of the file, by its name."""
    return {run["runner"]: run for run in ended.record["verdict"]["as_file"]}


@pytest.mark.usefixtures("in_rtx", "on_webgpu")
@pytest.mark.parametrize("make", [models.layer_norm, global_mean, pooled, cumulative])
def test_one_run_with_both_targets(fix, make):
    ended = fix(make(), "--target", "webgpu", "--target", "rtx")
    assert ended.code == 0, ended.out
    assert ended.out.startswith("PASSED in emulation and on WebGPU, built by TensorRT for RTX")
    assert ended.record["accumulate"] == "fp16"
    files = as_files(ended)
    assert list(files) == ["ONNX Runtime", *ON_WEBGPU, "TensorRT for RTX (SM86)"]
    assert all(files[name]["passed"] for name in ON_WEBGPU)
    built = files["TensorRT for RTX (SM86)"]
    assert (built["built"], built["folded"], built["passed"]) == (True, [], None)
    assert all(run["version"] for run in files.values())


@pytest.mark.usefixtures("on_webgpu")
def test_strings_are_judged_where_they_run(fix, call):
    """No TensorRT takes them, so nothing is said of engines."""
    s = Sketch(17)
    y = s.op("Relu", s.input("x", [4, 8]), name="relu")
    names = np.array([*"abcdefgh"], object)
    named = s.op("Gather", names, s.op("ArgMax", y, axis=1, keepdims=0), name="named")
    ill = models.Ill(s.proto(y, named), {"x": models.signals(4, 8, seed=1)})
    assert fix(ill, *WEBGPU).code == 0
    judged = call("verify", "run", *WEBGPU, "-o", "again", folder="again")
    assert judged.code == 0, judged.out
    assert [one["outcome"] for one in judged.record["held"]] == ["same"] * 2
    words = ("verify", "model.onnx", "run/model.onnx", "--inputs", "model.npz")
    emulated = call(*words, "-o", "emulated", folder="emulated")
    assert emulated.record["next_step"] == judged.record["next_step"] == []


@pytest.mark.usefixtures("on_webgpu")
def test_plans_have_to_pass_where_a_target_is_wrong(fix):
    # The emulation alone, with sums in FP32, passes with no node kept: see test_judged.
    options = ("--no-repair", "--accumulate", "fp32", "--target", "webgpu")
    ended = fix(mean_beside_products(16), *options)
    assert ended.code == 0, ended.out
    assert ended.kept
    assert all(as_files(ended)[name]["passed"] for name in ON_WEBGPU)


@pytest.mark.usefixtures("on_webgpu")
def test_sums_in_fp16_at_an_opset_that_cannot_write_them(fix, call):
    s = Sketch(11)
    x = s.input("x", [2, 3, 16, 16])
    c = s.op("Conv", x, models.weights(8, 3, 3, 3, seed=1, scale=0.2), name="conv")
    y = s.op("ReduceMean", c, name="mean", axes=[2, 3])
    ended = fix(models.Ill(s.proto(y), {"x": models.signals(2, 3, 16, 16, seed=4)}), *WEBGPU)
    assert ended.code == 0, ended.out
    assert onnx.load(ended.model).opset_import[0].version == 13
    judged = call("verify", "model.onnx", ended.model, "--inputs", "model.npz", *WEBGPU)
    assert judged.code == 0, judged.out + judged.err


@pytest.mark.usefixtures("on_webgpu")
def test_a_file_that_is_wrong_on_webgpu_fails(fix, call):
    ended = fix(pooled(), "--no-repair")
    assert ended.code == 0
    arguments = ("verify", "model.onnx", ended.model, "--inputs", "model.npz", "-o", "again")
    options = ("--accumulate", "fp32", "--target", "webgpu")
    judged = call(*arguments, *options, folder="again")
    assert judged.code == 10
    failures = judged.record["verdict"]["failures"]
    assert {failure["under"]["file"] for failure in failures} == set(ON_WEBGPU)
    assert as_files(judged)["ONNX Runtime"]["passed"]


@pytest.mark.usefixtures("in_rtx")
def test_products_that_the_builder_folds_fail(call, tmp_path):
    weights, half = models.weights(64, 48, seed=1, scale=0.1), TensorProto.FLOAT16
    s = Sketch(17)
    product = s.op("MatMul", s.op("Relu", s.input("x", [32, 64])), weights, name="kept")
    onnx.save(s.proto(s.op("Relu", product, name="y")), tmp_path / "a.onnx")
    s = Sketch(17)
    y = s.op("Cast", s.op("Relu", s.op("Cast", s.input("x", [32, 64]), to=half)), to=1)
    y = s.op("Relu", s.op("Cast", s.op("MatMul", y, weights, name="kept"), to=half))
    onnx.save(s.proto(s.op("Cast", y, to=TensorProto.FLOAT, name="y")), tmp_path / "b.onnx")
    np.savez(tmp_path / "x.npz", x=models.signals(32, 64, seed=2))
    ended = call("verify", "a.onnx", "b.onnx", "--inputs", "x.npz", "-o", "run", "--target", "rtx")
    assert ended.code == 10, ended.out
    (failure,) = ended.record["verdict"]["failures"]
    assert (failure["kind"], failure["names"]["nodes"]) == ("folded", "kept")


@pytest.mark.usefixtures("in_rtx")
def test_what_the_builder_refuses_fails(fix):
    s = Sketch(17)
    x = s.op("Relu", s.input("x", [1, 4, 4]))
    y = s.op("Add", s.op("Det", x, name="determinant"), f32(1.0))
    ended = fix(models.Ill(s.proto(y), {"x": models.signals(1, 4, 4, seed=1)}), "--target", "rtx")
    assert ended.code == 10, ended.out
    (failure,) = ended.record["verdict"]["failures"]
    assert failure["kind"] == "refused"
    assert "determinant" in failure["names"]["why"]


@pytest.mark.usefixtures("on_webgpu")
def test_a_target_that_has_fp32_wrong_is_said_to(fix):
    ended = fix(far_off(), "--target", "webgpu", "--no-repair")
    assert ended.code == 10, ended.out
    assert [one["outcome"] for one in ended.record["held"]] == ["fp32"] * 2
    assert "FP32 is not right either" in ended.out


def beside_far_off() -> models.Ill:
    """A decision that a CPU's file makes otherwise, beside a norm that WebGPU has wrong in FP32."""
    ill, other = models.position_bucket(), far_off()
    one, two = (compose.add_prefix(i.proto, p) for i, p in ((ill, "a_"), (other, "b_")))
    two.ir_version = one.ir_version
    del one.opset_import[:], two.opset_import[:]
    for part in (one, two):
        part.opset_import.add(version=17)
    inputs = {"a_x": ill.inputs["x"], "b_x": other.inputs["x"]}
    return models.Ill(compose.merge_models(one, two, []), inputs)


@pytest.mark.usefixtures("on_webgpu")
def test_a_target_that_has_fp32_wrong_demands_nothing_of_plans(fix):
    options = ("--target", "webgpu", "--no-repair", "--accumulate", "fp32")
    ended = fix(beside_far_off(), *options)
    assert ended.code == 10, ended.out
    files = as_files(ended)
    assert files["ONNX Runtime"]["passed"]
    assert [files[name]["fp32"] for name in ON_WEBGPU] == [False, False]
    # What a CPU needs, and no more.
    assert any(kept.startswith("a_") for kept in ended.kept)
    assert "b_after" not in ended.kept


@pytest.mark.usefixtures("in_rtx")
def test_the_builder_prices_the_last_plans(fix):
    ended = fix(models.two_readers(), "--target", "rtx", "--no-repair")
    assert ended.code == 0, ended.out
    assert as_files(ended)["TensorRT for RTX (SM86)"]["traffic"] > 0


@pytest.mark.usefixtures("in_rtx")
def test_int8_that_the_builder_prices_above_fp16_is_not_delivered(fix):
    options = ("--require", "snr-db=25", "--to", "int8", "--allow", "random")
    ended = fix(residual(), *options, "--target", "rtx")
    assert ended.code == 0, ended.out
    assert not ended.record["plan"]["int8"]


@pytest.mark.parametrize(("target", "what"), [("webgpu", "WEBGPU"), ("rtx", "RTX")])
def test_a_target_that_is_not_installed(fix, call, monkeypatch, target, what):
    monkeypatch.setenv(f"HALFWISE_{what}_COMMAND", "/no/such/program")
    verify = ("verify", "model.onnx", "model.onnx", "--inputs", "model.npz", "--target", target)
    for ended in fix(models.small(), "--target", target), call(*verify):
        assert ended.code == 4
        assert f"--target {target} cannot be asked" in ended.err
        # Told before data is loaded.
        assert "8 samples" not in ended.err


@pytest.mark.parametrize("target", ["webgpu", "rtx"])
def test_a_program_without_its_package(fix, monkeypatch, target):
    command = {"webgpu": "env NODE_PATH= node", "rtx": f"{sys.executable} -S"}[target]
    if shutil.which(shlex.split(command)[0]) is None:
        pytest.skip("There is no Node.js.")
    monkeypatch.setenv(f"HALFWISE_{target.upper()}_COMMAND", command)
    ended = fix(models.small(), "--target", target)
    assert ended.code == 4
    named = {"webgpu": "onnxruntime-node", "rtx": "tensorrt_rtx"}[target]
    message, _ = ended.err.splitlines()[-2:]
    assert f"--target {target} cannot be asked" in message
    assert named in message


@pytest.mark.usefixtures("on_webgpu")
def test_webgpu_without_an_adapter_cannot_be_asked(fix, call, monkeypatch):
    drivers = ["VK_ICD_FILENAMES=/none.json", "VK_DRIVER_FILES=/none.json", "node"]
    monkeypatch.setenv("HALFWISE_WEBGPU_COMMAND", shlex.join([*WebGpu.command()[:-1], *drivers]))
    ended = fix(models.small(), "--target", "webgpu")
    assert ended.code == 4
    message, hint = ended.err.splitlines()[-2:]
    assert "adapter" in message
    assert ".cc" not in message
    assert "Vulkan" in hint
    listed = call("doctor").out
    assert "adapter" in listed


@pytest.mark.parametrize(
    "options",
    [
        ("--target", "webgpu", "--to", "bf16"),
        ("--target", "rtx", "--sm", "8.6"),
        ("--sm", "SM86"),
        ("--target", "openvino"),
    ],
)
def test_targets_that_make_no_sense(fix, options):
    assert fix(models.small(), *options).code == 2


@pytest.mark.usefixtures("on_webgpu")
def test_an_engine_and_another_target(engines):
    ended = engines(models.conv_chain(), "--target", "webgpu")
    assert ended.code == 0, ended.out
    assert ended.record["verdict"]["level"] == "engine"
    assert ended.out.startswith("PASSED in the engine and on WebGPU")
    assert all(as_files(ended)[name]["passed"] for name in ON_WEBGPU)


@pytest.mark.usefixtures("on_webgpu")
def test_an_engine_and_a_target_that_has_fp32_wrong(engines):
    ill = far_off()
    # The stand-in has the norm right there.
    near = models.Ill(ill.proto, {"x": ill.inputs["x"] - f32(7e3)})
    ended = engines(near, "--target", "webgpu", "--no-repair")
    assert ended.code == 10, ended.out
    assert [one["outcome"] for one in ended.record["held"]] == ["fp32"] * 2


@pytest.mark.parametrize("make", [models.layer_norm, models.conv_chain, models.two_readers])
def test_nothing_is_kept_where_fp16_alone_is_asked_for(fix, make):
    ended = fix(make(), "--only", "fp16")
    assert ended.code == 0, ended.out
    assert ended.kept == set()
    assert ended.record["accumulate"] == "fp16"
    assert ended.record["plan"]["repairs"]


def test_a_repair_stays_that_brings_fp16_alone_near(fix):
    """Without it the output is infinite: what nearly suffices is better than nothing."""
    near = fix(models.conv_chain(), "--only", "fp16", "--rel-max", "5e-4")
    assert near.record["plan"]["repairs"]
    assert near.record["verdict"]["outputs"]["conv_c_out"]["rel_max"] < 1e-3


IMPOSSIBLE = {
    "deep": "rotate_6",
    "grid_sample": "count: ",
    "log_mel": "real: ",
    "lstm_surplus": "surplus: ",
    "tiny_weights": "matmul: ",
    "warp": "move: ",
}


@pytest.mark.parametrize(
    "make", [m for m in models.CLASSES if m.__name__ in IMPOSSIBLE], ids=lambda m: m.__name__
)
def test_where_fp16_alone_is_impossible_its_nodes_are_named(fix, make):
    ill = make()
    ended = fix(ill, "--only", "fp16", *ill.options)
    assert ended.code == 10
    why = ended.out.partition("Why it failed")[2].partition("\nNext")[0]
    assert IMPOSSIBLE[make.__name__] in why
    plan = ended.record["plan"]
    forced = (
        s["numbers"]["lowered"] for s in ended.record["next_step"] if s["kind"] == "leave-lower"
    )
    assert {len(plan["lowered"]), *forced} == {plan["candidates"]}


def exponentials() -> models.Ill:
    """z.exp() / z.exp().sum(-1, keepdim=True), where e^z is beyond FP16's range."""
    s = Sketch(17)
    z = s.op("MatMul", s.input("x", [4, 32]), f32(np.eye(32) * 20), name="scores")
    total = s.op("ReduceSum", s.op("Exp", z, name="again"), s.constant(np.array([-1])), name="sum")
    y = s.op("Div", s.op("Exp", z, name="exp"), total, name="share")
    return models.Ill(s.proto(y), {"x": models.signals(4, 32, seed=6)})


@pytest.mark.usefixtures("on_webgpu")
@pytest.mark.parametrize(
    ("make", "rules"),
    [
        (query_key, {"scale"}),
        (softmax, {"scale", "split"}),
        *((make, {"split"}) for make in (long_product, long_sum)),
        *((make, {"shift"}) for make in (arg_max, cancellation, patch_columns, rotary)),
        (exponentials, {"scale"}),
    ],
)
def test_sums_softmaxes_and_choices_are_repaired_where_fp16_alone_is_asked_for(fix, make, rules):
    ended = fix(make(), "--only", "fp16", "--target", "webgpu")
    assert ended.code == 0, ended.out
    assert ended.kept == set()
    assert {repair["rule"] for repair in ended.record["plan"]["repairs"]} == rules
    assert all(as_files(ended)[name]["passed"] for name in ON_WEBGPU)


@pytest.mark.parametrize("make", [top_k, non_max_suppression])
def test_further_choices_are_repaired_where_fp16_alone_is_asked_for(fix, make):
    ended = fix(make(), "--only", "fp16")
    assert ended.code == 0, ended.out
    assert ended.kept == set()
    assert {repair["rule"] for repair in ended.record["plan"]["repairs"]} == {"shift"}


def kept_product(activation_too: bool) -> onnx.ModelProto:
    """A product in FP32 between FP16 nodes, beyond FP16's range."""
    s = Sketch(17)
    x = s.op(
        "Cast", s.op("Relu", s.op("Cast", s.input("x", [32, 64]), to=TensorProto.FLOAT16)), to=1
    )
    y = s.op("MatMul", x, models.weights(64, 48, seed=1, scale=0.1), name="kept")
    y = s.op("Sigmoid", y) if activation_too else y
    y = s.op("Relu", s.op("Cast", y, to=TensorProto.FLOAT16))
    return s.proto(s.op("Cast", y, to=TensorProto.FLOAT, name="y"))


@pytest.mark.usefixtures("in_rtx")
def test_an_engine_is_built_ahead_of_time(call, tmp_path):
    onnx.save(kept_product(True), tmp_path / "a.onnx")
    made = call("build", "a.onnx", "-o", "a.engine", "--target", "rtx", "--sm", "SM89")
    assert made.code == 0, made.err
    assert made.out.startswith("Builds; typed as asked; not run")
    assert "SM89" in made.out
    assert (tmp_path / "a.engine").stat().st_size > 1000


@pytest.mark.usefixtures("in_rtx")
def test_an_engine_of_free_sizes_needs_them(call, tmp_path):
    s = Sketch(17)
    free = s.op("Relu", s.input("x", ["batch", 3, "height", "width"]))
    onnx.save(s.proto(free), tmp_path / "d.onnx")
    words = ("build", "d.onnx", "-o", "d.engine", "--target", "rtx")
    refused = call(*words)
    assert refused.code == 2
    assert "'x'" in refused.err
    assert "--inputs" in refused.err
    assert call(*words, "--engine", "maxShapes=x:4x3x32x32").code == 0


@pytest.mark.usefixtures("in_rtx")
def test_lint_names_what_a_build_ahead_of_time_folds(call, tmp_path):
    onnx.save(kept_product(False), tmp_path / "b.onnx")
    built = call("build", "b.onnx", "-o", "b.engine", "--target", "rtx", "--json")
    assert built.code == 10
    assert json.loads(built.out)["folded"] == ["kept"]
    found = call("lint", "b.onnx", "--target", "rtx", "--json", "--fail-on", "warning")
    assert found.code == 10
    report = json.loads(found.out)
    assert (report["target"], report["version"]) == ("TensorRT for RTX", "1.7")
    assert [(f["rule"], f["node"]) for f in report["findings"]] == [("product-folded", "kept")]


@pytest.mark.usefixtures("in_rtx")
def test_what_does_not_build_ahead_of_time(call, tmp_path):
    s = Sketch(17)
    onnx.save(s.proto(s.op("Det", s.input("x", [4, 4]), name="determinant")), tmp_path / "c.onnx")
    ended = call("build", "c.onnx", "-o", "c.engine", "--target", "rtx")
    assert ended.code == 5
    assert "determinant" in ended.err
    assert not (tmp_path / "c.engine").exists()
    assert call("lint", "c.onnx", "--target", "rtx").code == 10


@pytest.mark.parametrize(
    "words",
    [
        ("build", "-o", "e", "--target", "rtx", "--to", "fp16"),
        ("build", "-o", "e", "--target", "rtx", "--typing", "weak"),
        ("build", "-o", "e", "--target", "rtx", "--sm", "8.6"),
        ("build", "-o", "e", "--sm", "SM86"),
        ("lint", "--target", "rtx", "--trt-version", "10.0"),
    ],
)
def test_options_that_a_target_does_not_have(refused, saved, words):
    model, _ = saved(models.small())
    assert refused(2, words[0], model, *words[1:])
