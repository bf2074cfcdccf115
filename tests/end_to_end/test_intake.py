"""Files that ONNX Runtime runs although the tools of ONNX refuse them: each gets a verdict."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests import models
from tests.end_to_end.conftest import fixing

F32, I64 = TensorProto.FLOAT, TensorProto.INT64
RNG = np.random.default_rng(7)
X = RNG.standard_normal((6, 4, 4)).astype(np.float32)
WEIGHTS = RNG.standard_normal((4, 4)).astype(np.float32)


def info(name, shape, dtype=F32):
    return helper.make_tensor_value_info(name, dtype, shape)


def made(nodes, constants=(), *, output=(4, 4), more=(), opset=17, **rest):
    """Return a model from x (f32[4, 4]), and more inputs, to y."""
    graph = helper.make_graph(
        nodes, "g", [info("x", (4, 4)), *more], [info("y", output)], list(constants), **rest
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def product():
    return [helper.make_node("MatMul", ["x", "w"], ["y"], name="product")]


def nameless():
    proto = made(product(), [numpy_helper.from_array(WEIGHTS, "w")], output=None)
    proto.graph.name = ""
    return proto, {}


def unsorted():
    nodes = [*product(), helper.make_node("Abs", ["w0"], ["w"])]
    return made(nodes, [numpy_helper.from_array(WEIGHTS, "w0")]), {}


def too_small():
    """Declares fewer elements than it computes, where ONNX cannot tell how many there are."""
    nodes = [
        helper.make_node("Mul", ["x", "x"], ["squares"], name="square"),
        helper.make_node("Reshape", ["squares", "to"], ["turned"], name="turn"),
        helper.make_node("Sqrt", ["turned"], ["y"], name="root"),
    ]
    proto = made(nodes, output=(1, 4), more=[info("to", (2,), I64)], value_info=[])
    proto.graph.value_info.append(info("turned", (1, 4)))
    return proto, {"to": np.tile(np.array([8, 2]), (6, 1))}


def misdeclared():
    nodes = [helper.make_node("Abs", ["x"], ["h"]), helper.make_node("Sqrt", ["h"], ["y"])]
    return made(nodes, output=(1, 4)), {}


def unranked():
    proto = made(product(), [numpy_helper.from_array(WEIGHTS, "w")], output=None)
    proto.graph.input[0].type.tensor_type.ClearField("shape")
    return proto, {}


def dropped():
    nodes = [
        helper.make_node("Unsqueeze", ["x"], ["image"], axes=[0, 1]),
        helper.make_node("ImageScaler", ["image"], ["scaled"], name="scale", scale=2.0, bias=[1.0]),
        helper.make_node("Crop", ["scaled"], ["cropped"], name="crop", border=[1, 1, 1, 1]),
        helper.make_node("Affine", ["cropped"], ["moved"], name="move", alpha=2.0, beta=1.0),
        helper.make_node("Sigmoid", ["moved"], ["y"], name="squash"),
    ]
    return made(nodes, output=(1, 1, 2, 2), opset=7), {}


FILES = (nameless, unsorted, too_small, misdeclared, dropped)


@pytest.mark.parametrize("file", FILES)
def test_what_onnx_runtime_runs_gets_a_verdict(file, call, tmp_path):
    proto, more = file()
    (tmp_path / "model.onnx").write_bytes(proto.SerializeToString())
    np.savez(tmp_path / "model.npz", x=X, **more)
    ended = call(*fixing("model.onnx"))
    assert ended.code == 0, ended.err
    assert ended.record["plan"]["unsupported"] == []
    written = onnx.load(ended.model)
    assert written.graph.name
    onnx.checker.check_model(written)


@pytest.mark.parametrize(
    "command",
    [
        ("verify", "model.onnx", "model.onnx", "-o", "out"),
        ("compare", "model.onnx", "--b", "emulation"),
        ("diagnose", "model.onnx", "-o", "out"),
        ("observe", "model.onnx"),
    ],
    ids=lambda command: command[0],
)
@pytest.mark.parametrize("file", [*FILES, unranked])
def test_so_do_other_commands(file, command, call, tmp_path):
    proto, more = file()
    (tmp_path / "model.onnx").write_bytes(proto.SerializeToString())
    np.savez(tmp_path / "model.npz", x=X, **more)
    ended = call(*command, "--inputs", "model.npz")
    assert ended.code in (0, 10), ended.err


@pytest.mark.parametrize("file", [*FILES, unranked])
def test_the_linter_reads_them(file, call, tmp_path):
    (tmp_path / "model.onnx").write_bytes(file()[0].SerializeToString())
    ended = call("lint", "model.onnx")
    assert ended.code in (0, 10), ended.err
    assert "could not infer" not in ended.out


def test_the_rank_of_an_input_is_that_of_the_data_where_the_model_tells_none(call, tmp_path):
    proto, _ = unranked()
    (tmp_path / "model.onnx").write_bytes(proto.SerializeToString())
    (tmp_path / "model").mkdir()
    for number, sample in enumerate(X):
        np.save(tmp_path / "model" / f"{number}.npy", sample)
    ended = call(*fixing("model.onnx", "model"))
    assert ended.code == 0, ended.err
    assert len(onnx.load(ended.model).graph.input[0].type.tensor_type.shape.dim) == 2
    made = call("export", "run", "--as", "trtexec")
    assert made.code == 0, made.err
    assert "--optShapes=x:4x4" in made.out


def test_without_data_a_missing_rank_is_the_reason(call, tmp_path):
    (tmp_path / "model.onnx").write_bytes(unranked()[0].SerializeToString())
    ended = call(*fixing("model.onnx", "random"))
    assert ended.code == 3
    assert "declares no rank for input" in ended.err


@pytest.mark.parametrize(
    "options", [("--no-repair",), ("--keep", "square", "--keep", "energy", "--keep", "norm")]
)
def test_a_detector_whose_fp16_finds_nothing_is_fixed(options, fix):
    ended = fix(models.detector(), *options)
    assert ended.code == 0, ended.err
    assert ended.kept == {"square", "energy", "norm"}
    assert [r["node"] for r in ended.record["baseline"]["failed_runs"]] == ["rows"] * 2


def test_a_candidate_that_cannot_be_run_has_failed(fix, call, tmp_path):
    assert fix(models.detector(), "--no-repair", "--lower", "norm", "--budget", "time=5").code == 10
    ended = call("verify", "model.onnx", "run/model.onnx", "--inputs", "model.npz", "-o", "out")
    assert ended.code == 10, ended.err
    assert "node rows fails" in " ".join(ended.out.split())
    for command in (("compare", "--b", "emulation"), ("diagnose", "-o", "out2")):
        ended = call(command[0], tmp_path / "model.onnx", "--inputs", "model.npz", *command[1:])
        assert ended.code == 10, ended.err
        assert "node rows fails" in " ".join(ended.out.split())


def test_a_reference_that_cannot_be_run_stays_an_error(saved, refused):
    ill = models.detector()
    model, _ = saved(models.Ill(ill.proto, {"x": np.zeros_like(ill.inputs["x"])}))
    assert "failed while running the model" in refused(6, *fixing(model))
