"""`halfwise verify`: any typed model against the FP32 one, knowing nothing of a plan."""

import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

from halfwise.fixing.rewrite import save_checked
from halfwise.formats import FP16
from halfwise.graph.casts import rewrite
from halfwise.graph.loading import network_from_proto
from halfwise.graph.roles import float_io, roles_of
from tests import models
from tests.unit.graph.sketch import Sketch, f32


@pytest.fixture
def all_low(tmp_path):
    """Save a model with everything in FP16; return its path."""

    def all_low(ill, *, low_io=False):
        network = network_from_proto(ill.proto)
        ends = float_io(network) if low_io else frozenset()
        rewritten = rewrite(network, roles_of(network), frozenset(), FP16, low_io=ends)
        path = tmp_path / "all_low.onnx"
        save_checked(rewritten.model, path)
        return path

    return all_low


def test_a_model_against_itself(saved, call):
    model, inputs = saved(models.layer_norm())
    ended = call("verify", model, model, "--inputs", inputs, "-o", "run")
    assert ended.code == 0, ended.err
    verdict = ended.record["verdict"]
    assert verdict["samples"] == [f"model.npz[{i}]" for i in range(models.COUNT)]
    (output,) = verdict["outputs"].values()
    assert (output["max_abs"], output["snr_db"], output["cosine"]) == (0, "Infinity", 1)


@pytest.mark.parametrize("renamed", [False, True])
def test_a_file_that_decides_otherwise_as_it_runs_fails(saved, call, all_low, renamed):
    """Whoever made it: with each step rounded the bucket is right, and the file does not do so."""
    ill = models.position_bucket()
    model, inputs = saved(ill)
    candidate = all_low(ill)
    if renamed:
        proto = onnx.load(candidate)
        ends = {v.name for v in (*proto.graph.input, *proto.graph.output)}
        for node in proto.graph.node:
            for names in (node.input, node.output):
                names[:] = [n if n in ends or not n else f"{n}_there" for n in names]
        for constant in proto.graph.initializer:
            constant.name += "_there"
        del proto.graph.value_info[:]
        onnx.save(proto, candidate)
    ended = call("verify", model, candidate, "--inputs", inputs, "-o", "run")
    assert ended.code == 10, ended.err
    verdict = ended.record["verdict"]
    assert all(output["passed"] for output in verdict["outputs"].values())
    assert not verdict["as_file"][0]["passed"]
    assert verdict["failure_bound"]["failing"] > 0
    assert "ONNX Runtime runs the file" in ended.out
    assert any(failure["kind"] == "flip" for failure in verdict["failures"]) is not renamed


def test_plain_fp16_fails_where_fp16_breaks(saved, call, all_low):
    ill = models.layer_norm()
    model, inputs = saved(ill)
    ended = call("verify", model, all_low(ill), "--inputs", inputs, "-o", "run")
    assert ended.code == 10
    record = ended.record
    assert record["kind"] == "verify"
    assert record["plan"] is None
    assert record["verdict"]["level"] == "emulated"
    assert {t["tensor"] for t in record["verdict"]["intermediate_nonfinite"]} >= {"square_out"}
    assert "FAILED" in ended.out
    assert call("report", "run").out == ended.out


@pytest.mark.parametrize("low_io", [False, True])
def test_plain_fp16_gives_what_numpy_gives(saved, call, all_low, low_io):
    """y = relu(x·W + b), rounded wherever a tensor is stored."""
    ill = models.small()
    model, inputs = saved(ill)
    ended = call("verify", model, all_low(ill, low_io=low_io), "--inputs", inputs, "-o", "run")
    assert ended.code == 0, ended.err
    stored = {t.name: numpy_helper.to_array(t) for t in ill.proto.graph.initializer}
    weight, bias = stored.values()
    exact = np.maximum(ill.inputs["x"] @ weight + bias, 0)
    hidden = FP16.round(FP16.round(ill.inputs["x"]) @ FP16.round(weight))
    low = np.maximum(FP16.round(hidden + FP16.round(bias)), 0)
    (output,) = ended.record["verdict"]["outputs"].values()
    errors = np.abs(low.astype(np.float64) - exact)
    assert output["max_abs"] == pytest.approx(errors.max(), rel=1e-3)
    assert output["mean_abs"] == pytest.approx(errors.mean(), rel=1e-3)


def test_a_model_of_mixed_types_from_elsewhere(saved, call, tmp_path):
    """Casts as another tool places them: on inputs and outputs only, weights in FP16."""
    ill = models.small()
    model, inputs = saved(ill)
    sketch = Sketch()
    x = sketch.input("x", [1, 16])
    half = sketch.op("Cast", x, name="down", to=TensorProto.FLOAT16)
    weight, bias = (
        numpy_helper.to_array(t).astype(np.float16) for t in ill.proto.graph.initializer
    )
    hidden = sketch.op("MatMul", half, sketch.constant(weight), name="m")
    added = sketch.op("Add", hidden, sketch.constant(bias), name="b")
    sketch.op("Cast", sketch.op("Relu", added, name="r"), name="relu", to=TensorProto.FLOAT)
    onnx.save(sketch.proto("relu_out"), tmp_path / "peer.onnx")
    ended = call("verify", model, "peer.onnx", "--inputs", inputs, "-o", "run")
    assert ended.code == 0, ended.err
    (output,) = ended.record["verdict"]["outputs"].values()
    assert 0 < output["rel_max"] < 1e-3


def test_infinities_of_the_reference_are_not_counted(saved, call):
    """A mask of -inf is there in FP32 too: `fix` and `verify` both say nothing of it."""
    sketch = Sketch()
    scores = sketch.input("scores", [1, 8, 8])
    allowed = sketch.input("allowed", [1, 1, 8], TensorProto.BOOL)
    masked = sketch.op("Where", allowed, scores, f32(-np.inf), name="mask")
    y = sketch.op("Softmax", sketch.op("Mul", masked, f32(0.5), name="scale"), name="softmax")
    allowed_values = np.arange(8) < (1 + np.arange(8))[:, None]
    inputs = {
        "scores": models.signals(1, 8, 8, seed=8, peak=6),
        "allowed": allowed_values[:, None, None],
    }
    model, data = saved(models.Ill(sketch.proto(y), inputs))
    fixed = call("fix", model, "--inputs", data, "-o", "run")
    assert fixed.code == 0
    assert fixed.record["verdict"]["intermediate_nonfinite"] == []
    ended = call(*("verify", model, fixed.model, "--inputs", data, "-o", "again"), folder="again")
    assert ended.code == 0
    assert ended.record["verdict"]["intermediate_nonfinite"] == []


def test_json_without_a_folder(saved, call, tmp_path):
    model, inputs = saved(models.small())
    before = sorted(tmp_path.iterdir())
    ended = call("verify", model, model, "--inputs", inputs, "--json")
    assert ended.code == 0
    assert json.loads(ended.out)["kind"] == "verify"
    assert sorted(tmp_path.iterdir()) == before


def test_a_tolerance_decides(saved, call, all_low):
    ill = models.small()
    model, inputs = saved(ill)
    candidate = all_low(ill)
    for options, code in {
        ("--rel-max", "1e-3"): 0,
        ("--rel-max", "1e-6"): 10,
        ("--require", "snr-db=60"): 0,
        ("--require", "snr-db=100"): 10,
        ("--metric", "snr", "--metric-drop", "60"): 0,
    }.items():
        assert call("verify", model, candidate, "--inputs", inputs, *options).code == code


@pytest.mark.parametrize(
    ("other", "expected"), [(models.mask, "allowed"), (models.layer_norm, "gamma_out")]
)
def test_another_models_interface(saved, call, other, expected):
    model, inputs = saved(models.small())
    candidate, _ = saved(other(), "other")
    ended = call("verify", model, candidate, "--inputs", inputs)
    assert ended.code == 3
    assert expected in ended.err


def test_a_candidate_that_is_none(saved, call, tmp_path):
    model, inputs = saved(models.small())
    (tmp_path / "text.onnx").write_text("no model")
    ended = call("verify", model, "text.onnx", "--inputs", inputs)
    assert ended.code == 3
    assert "text.onnx is not an ONNX model" in ended.err


def test_random_inputs_are_not_real_data(saved, call):
    model, _ = saved(models.small())
    ended = call("verify", model, model, "--inputs", "random", "-o", "run")
    assert ended.code == 10
    assert "not real data" in ended.out
