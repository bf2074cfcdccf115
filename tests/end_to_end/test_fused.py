"""What fused operators of ONNX Runtime and ONNX compute inside is seen where it leaves FP16."""

from functools import partial

import numpy as np
import pytest

from tests.models import fused

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
    assert f"Inside attention ({op}) the scores reach" in " ".join(ended.out.split())


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
    assert f"Inside skip ({op}) the mean squares reach" in " ".join(ended.out.split())


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
