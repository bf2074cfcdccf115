"""What fused operators of ONNX Runtime and ONNX compute inside is seen where it leaves FP16."""

from functools import partial

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnxruntime import InferenceSession
from onnxruntime.transformers.optimizer import optimize_model

from tests.models import fused
from tests.models.illness import Ill

SUM, SIMPLE = "SkipLayerNormalization", "SkipSimplifiedLayerNormalization"
ATTENTIONS = [
    (fused.multi_head, "MultiHeadAttention"),
    (fused.packed, "Attention"),
    (fused.grouped, "GroupQueryAttention"),
    (partial(fused.grouped, past=2), "GroupQueryAttention"),
]


@pytest.mark.parametrize(("make", "op"), ATTENTIONS)
def test_scores_beyond_the_range(fix, make, op):
    ended = fix(make(fused.BEYOND))
    assert ended.code == 0, ended.err
    # The emulation has them in FP32, as ONNX Runtime's kernels for the CPU and WebGPU.
    assert ended.kept == set()
    (guard,) = ended.record["guards"]
    assert (guard["kind"], guard["node"], guard["severity"] < 1) == ("overflow", "attention", True)
    assert guard["numbers"]["value"] == pytest.approx(fused.BEYOND**2 * 1.1 / 4, rel=0.1)
    assert "Inside attention the scores reach" in " ".join(ended.out.split())
    assert f"--keep-op {op}" in " ".join(ended.out.split())


@pytest.mark.parametrize("make", [make for make, _ in ATTENTIONS])
def test_scores_within_the_range(fix, make):
    ended = fix(make(fused.HELD))
    assert ended.code == 0, ended.err
    assert ended.record["guards"] == []
    assert "Inside attention" not in ended.out


def test_a_rule_that_keeps_such_scores_is_not_called_useless(fix):
    ended = fix(fused.multi_head(fused.BEYOND), "--keep-op", "MultiHeadAttention")
    assert ended.kept == {"attention"}
    assert "Inside attention" not in ended.out
    assert "buy nothing" not in ended.out


@pytest.mark.parametrize("op", [SUM, SIMPLE])
def test_squares_beyond_the_range(fix, op):
    ill = fused.skip_norm(3000.0, op=op)
    ended = fix(ill)
    assert ended.code == 0, ended.err
    assert ended.kept == set()
    (guard,) = ended.record["guards"]
    assert (guard["node"], guard["names"]["what"]) == ("skip", "mean squares")
    squares = np.mean((3000.0 * ill.inputs["x"].astype(np.float64)) ** 2, axis=-1).max()
    assert guard["numbers"]["value"] == pytest.approx(squares, rel=0.05)
    assert "Inside skip the mean squares reach" in " ".join(ended.out.split())
    assert f"--keep-op {op}" in " ".join(ended.out.split())


@pytest.mark.parametrize("op", [SUM, SIMPLE])
def test_squares_within_the_range(fix, op):
    ended = fix(fused.skip_norm(200.0, op=op))
    assert ended.code == 0, ended.err
    assert ended.record["guards"] == []


def test_a_sum_beyond_the_range(fix):
    found = fix(fused.skip_norm(70000.0)).record["guards"]
    inside = {g["names"].get("what"): g["numbers"]["value"] for g in found}
    assert inside["sums"] == pytest.approx(74000, rel=0.05)


@pytest.mark.parametrize(("factor", "kept"), [(fused.BEYOND, ["overflow"]), (fused.HELD, [])])
def test_where_the_file_itself_overflows_the_scores_say_why(fix, factor, kept):
    """ONNX Runtime's CPU has a kernel of ONNX's Attention that keeps scores in FP16."""
    ended = fix(fused.onnx_attention(factor))
    assert ended.code == 0, ended.err
    assert [one["guard"] for one in ended.record["plan"]["keep"]] == kept


def reference(proto, tensor):
    told = onnx.ModelProto()
    told.CopyFrom(proto)
    told.graph.output.append(helper.make_tensor_value_info(tensor, TensorProto.FLOAT, None))
    return InferenceSession(told.SerializeToString())


def fused_by_onnx_runtime(ill, tmp_path):
    onnx.save(ill.proto, tmp_path / "unfused.onnx")
    path = str(tmp_path / "unfused.onnx")
    optimised = optimize_model(path, "bert", num_heads=4, hidden_size=64, opt_level=0)
    optimised.save_model_to_file(str(tmp_path / "fused.onnx"))
    made = onnx.load(tmp_path / "fused.onnx")
    ops = {node.op_type for node in made.graph.node}
    assert {"Attention", SUM} <= ops
    assert "Softmax" not in ops
    return Ill(made, ill.inputs)


@pytest.mark.parametrize("factor", [100.0, 10.0])
def test_what_onnx_runtime_fuses_hides_nothing(fix, tmp_path, factor):
    ill = fused.bert(factor)
    ended = fix(fused_by_onnx_runtime(ill, tmp_path))
    assert ended.code == 0, ended.err
    assert ended.kept == set()
    found = [g for g in ended.record["guards"] if g["names"].get("what") == "scores"]
    session = reference(ill.proto, "scaled")
    largest = max(
        float(np.abs(session.run(["scaled"], {n: a[i] for n, a in ill.inputs.items()})[0]).max())
        for i in range(len(ill.inputs["ids"]))
    )
    assert [g["numbers"]["value"] for g in found] == (
        [pytest.approx(largest, rel=0.2)] if largest > 65520 else []
    )


def test_the_same_before_fusion(fix):
    ended = fix(fused.bert(100.0), "--no-repair")
    assert ended.code == 0, ended.err
    assert "overflow" in {one["guard"] for one in ended.record["plan"]["keep"]}
