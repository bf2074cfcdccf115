"""The judges themselves: what they say of files whose fate is known, and of their own crash."""

import shlex
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from halfwise.errors import RunFailed
from halfwise.targets.worker import Crashed, Worker
from tests.judges import folded
from tests.unit.graph.sketch import Sketch

WEIGHTS = np.linspace(-1, 1, 64 * 48, dtype=np.float32).reshape(64, 48)


def between_casts(op: str, weights: np.ndarray, path: Path, *, activation: str = "") -> Path:
    """Save a model with a product in FP32 after FP16, and before it if nothing follows in FP32."""
    s = Sketch(17)
    x = s.input("x", [32, 64] if op == "MatMul" else [1, weights.shape[1], 16, 16])
    low = s.op("Relu", s.op("Cast", x, to=TensorProto.FLOAT16))
    y = s.op(op, s.op("Cast", low, to=TensorProto.FLOAT), weights, name="kept")
    if activation:
        y = s.op(activation, y, name="neighbour")
    y = s.op("Relu", s.op("Cast", y, to=TensorProto.FLOAT16))
    onnx.save(s.proto(s.op("Cast", y, to=TensorProto.FLOAT)), path)
    return path


@pytest.mark.parametrize("op", ["MatMul", "Conv"])
def test_a_product_between_casts_is_folded_and_its_weights_are_rounded(rtx, tmp_path, op):
    weights = WEIGHTS if op == "MatMul" else WEIGHTS.reshape(48, 64, 1, 1)
    model = between_casts(op, weights, tmp_path / "m.onnx")
    build = rtx.build(model)
    assert build.built
    assert folded(build.kernels, onnx.load(model)) == ("kept",)
    assert WEIGHTS.tobytes()[:64] not in build.engine


@pytest.mark.parametrize("holder", ["Loop", "If"])
def test_a_product_in_a_body_is_folded_too(rtx, tmp_path, holder):
    half = TensorProto.FLOAT16
    nodes = (
        helper.make_node("Relu", ["state"], ["low"], "relu"),
        helper.make_node("Cast", ["low"], ["wide"], "widen", to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["wide", "w"], ["product"], "kept"),
        helper.make_node("Cast", ["product"], ["next"], "narrow", to=half),
    )
    s = Sketch(17)
    x, _ = s.input("x", [32, 64], half), s.constant(WEIGHTS @ WEIGHTS.T, "w")
    end = helper.make_tensor_value_info("next", half, [32, 64])
    if holder == "Loop":
        flags = [helper.make_tensor_value_info(n, TensorProto.BOOL, []) for n in ("go", "on")]
        own = [helper.make_tensor_value_info("step", TensorProto.INT64, []), flags[0]]
        own.append(helper.make_tensor_value_info("state", half, [32, 64]))
        on = helper.make_node("Identity", ["go"], ["on"], "on")
        body = helper.make_graph([on, *nodes], "body", own, [flags[1], end])
        y = s.op("Loop", np.array(3), np.array(True), x, body=body)
    else:
        nodes[0].input[0] = x
        other = helper.make_tensor_value_info("other", half, [32, 64])
        idle = helper.make_graph([helper.make_node("Abs", [x], ["other"], "abs")], "e", [], [other])
        flag, then = s.input("flag", [], TensorProto.BOOL), helper.make_graph(nodes, "t", [], [end])
        y = s.op("If", flag, then_branch=then, else_branch=idle)
    onnx.save(s.proto(y), tmp_path / "m.onnx")
    build = rtx.build(tmp_path / "m.onnx")
    assert build.built
    assert folded(build.kernels, onnx.load(tmp_path / "m.onnx")) == ("kept",)


def test_a_product_beside_an_activation_in_fp32_is_not_folded(rtx, tmp_path):
    model = between_casts("MatMul", WEIGHTS, tmp_path / "m.onnx", activation="Sigmoid")
    build = rtx.build(model)
    (kernel,) = [k for k in build.kernels if "kept" in k.nodes]
    assert "neighbour" in kernel.nodes
    assert {c.dtype for c in kernel.constants} == {"Float"}
    assert (64, 48) in {c.shape for c in kernel.constants}
    assert folded(build.kernels, onnx.load(model)) == ()
    assert WEIGHTS.tobytes()[:64] in build.engine


def test_builds_repeat(rtx, tmp_path):
    model = between_casts("MatMul", WEIGHTS, tmp_path / "m.onnx")
    assert rtx.build(model).kernels == rtx.build(model).kernels


def test_a_refusal_names_the_node(rtx, tmp_path):
    s = Sketch(17)
    x = s.input("x", [4])
    onnx.save(s.proto(s.op("Det", x, name="determinant")), tmp_path / "m.onnx")
    build = rtx.build(tmp_path / "m.onnx")
    assert not build.parsed
    assert not build.built
    assert [(e.node, e.operator) for e in build.errors] == [("determinant", "Det")]


def test_shapes_bound_free_axes(rtx, tmp_path):
    s = Sketch(17)
    x = s.input("x", ["n", 4])
    onnx.save(s.proto(s.op("Relu", x)), tmp_path / "m.onnx")
    assert rtx.build(tmp_path / "m.onnx").built
    (kernel,) = rtx.build(tmp_path / "m.onnx", shapes={"x": ([2, 4], [2, 4], [2, 4])}).kernels
    assert kernel.inputs[0].shape == (2, 4)


def test_what_the_builder_has_no_kernel_for_is_an_error(rtx, tmp_path):
    # For this GPU there are no FP32 products beside FP16.
    model = between_casts("MatMul", WEIGHTS, tmp_path / "m.onnx", activation="Sigmoid")
    build = rtx.build(model, sm="SM75")
    assert build.parsed
    assert not build.built
    assert build.errors
    assert build.kernels == ()


def test_webgpu_sums_in_fp16(webgpu, tmp_path):
    s = Sketch(17)
    x = s.input("x", [1, 4096])
    low = s.op("Cast", x, to=TensorProto.FLOAT16)
    onnx.save(s.proto(s.op("ReduceSum", low, np.array([1]), name="y")), tmp_path / "m.onnx")
    samples = [{"x": np.full((1, 4096), value, np.float32)} for value in (1, 32)]
    ran = webgpu.run(tmp_path / "m.onnx", samples)
    (small,), (large,) = ([*outputs.values()] for outputs in ran)
    assert small.dtype == np.float16
    assert small.shape == (1, 1)
    assert small == 4096
    assert np.isinf(large)


@pytest.mark.parametrize("dtype", ["float16", "float32", "int32", "int64", "uint8", "bool"])
def test_webgpu_takes_and_gives_each_type_and_shape(webgpu, tmp_path, dtype):
    s = Sketch(17)
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    x, scalar = s.input("x", ["n", 3], kind), s.input("scalar", [], kind)
    model = s.proto(s.op("Identity", x, name="y"), s.op("Identity", scalar, name="z"))
    onnx.save(model, tmp_path / "m.onnx")
    samples = [
        {"x": np.arange(3 * n).reshape(n, 3).astype(dtype), "scalar": np.array(1, dtype)}
        for n in (2, 1)
    ]
    ran = webgpu.run(tmp_path / "m.onnx", samples)
    for sample, outputs in zip(samples, ran, strict=True):
        for array, output in zip(sample.values(), outputs.values(), strict=True):
            assert output.dtype == dtype
            np.testing.assert_array_equal(output, array, strict=True)


def test_webgpu_takes_and_gives_strings(webgpu, tmp_path):
    s = Sketch(17)
    x = s.input("x", ["n"], TensorProto.STRING)
    onnx.save(s.proto(s.op("Identity", x, name="y")), tmp_path / "m.onnx")
    samples = [{"x": np.array(words, object)} for words in (["a", "ä\n"], [])]
    ran = webgpu.run(tmp_path / "m.onnx", samples)
    assert [outputs["y_out"].tolist() for outputs in ran] == [["a", "ä\n"], []]


def test_what_webgpu_cannot_run_is_an_error(webgpu, tmp_path):
    (tmp_path / "m.onnx").write_bytes(b"no model")
    with pytest.raises(RunFailed):
        webgpu.run(tmp_path / "m.onnx", [])


ECHO = (
    sys.executable,
    "-c",
    """
import sys
from halfwise.tensorrt.worker import pack, read_frame
while frame := read_frame(sys.stdin.buffer):
    sys.stdout.buffer.write(pack({**frame[0], "kind": "result"}))
    sys.stdout.buffer.flush()
""",
)


@pytest.fixture
def worker():
    workers = []

    def worker(*command):
        workers.append(Worker(command))
        return workers[-1]

    yield worker
    for started in workers:
        started.close()


def test_a_worker_answers_each_request(worker):
    echo = worker(*ECHO)
    large = {"text": "x" * 10**6}
    assert echo.ask({"number": 1}, 60)["number"] == 1
    assert echo.ask(large, 60)["text"] == large["text"]


def test_a_crash_is_told_with_the_last_words_and_another_process_is_started(worker, tmp_path):
    # It answers where the file is there, and crashes where it is not.
    file = tmp_path / "there"
    gone = f"test -e {file} || {{ echo gone >&2; kill -9 $$; }}; exec {shlex.join(ECHO)}"
    crashing = worker("sh", "-c", gone)
    with pytest.raises(Crashed, match="ended by SIGKILL: gone"):
        crashing.ask({}, 60)
    file.touch()
    assert crashing.ask({"number": 2}, 60)["number"] == 2


def test_a_worker_that_takes_too_long_is_ended(worker):
    with pytest.raises(Crashed, match=r"within 0\.1 s"):
        worker("sleep", "600").ask({}, 0.1)
