"""What reports say of causes is what was measured."""

import re

import numpy as np

from tests import models
from tests.unit.graph.sketch import Sketch, f32


def words(ended) -> str:
    """Return the report without its line breaks."""
    return " ".join(ended.out.split())


def rotations(s: Sketch, value: str, count: int, seed: int) -> str:
    generator = np.random.default_rng(seed)
    for i in range(count):
        rotation, _ = np.linalg.qr(generator.normal(size=(16, 16)))
        value = s.op("MatMul", value, f32(rotation), name=f"rotate_{i}")
    return value


def near_zero() -> models.Ill:
    """Ten rotations, and a mean near zero that adds a millionth of itself to what comes out."""
    s = Sketch()
    x = s.input("x", [1, 8, 16])
    mean = s.op("ReduceMean", x, name="mean", axes=[-1])
    y = s.op("Add", rotations(s, x, 10, 7), s.op("Mul", mean, 1e-3, name="little"), name="join")
    data = models.signals(1, 8, 16, seed=8)
    data -= data.mean(axis=-1, keepdims=True)
    return models.Ill(s.proto(y), {"x": data})


def test_a_mean_near_zero_is_not_called_the_cause(fix):
    ended = fix(near_zero(), "--rel-max", "5e-4")
    steps = {step["node"]: step["error"] for step in ended.record["growth"]}
    assert steps["mean"] > 10
    assert "its cause is unknown" in words(ended)
    unexplained = [k for k in ended.record["plan"]["keep"] if k["guard"] is None]
    assert unexplained
    assert all(k["reason"].startswith("No known cause") for k in unexplained)
    assert all("what the search allows." in k["reason"] for k in unexplained)


def test_error_that_accumulates_is_said_to_with_what_was_low(fix):
    ended = fix(models.deep(), "--rel-max", "5e-4")
    assert "With everything in FP16, the error is" in words(ended)
    assert "it grows with depth (relative RMS:" in words(ended)


def test_what_the_time_budget_left_is_one_row(fix):
    ended = fix(models.deep(layers=20), "--rel-max", "5e-4", "--budget", "time=0")
    assert len(ended.record["plan"]["keep"]) == 20
    assert all(k["unknown"] for k in ended.record["plan"]["keep"])
    assert words(ended).count("Not lowered before the search ended") == 1
    assert ended.record["followed"] is None
    assert ended.record["growth"] == []
    assert "The time budget of 0 s was spent: operators and tensors" in words(ended)
    assert "the error that no guard explains was not traced" in words(ended)
    assert "Not shown to be minimal: the time budget of 0 s was spent." in words(ended)


def test_everything_low_means_everything(fix):
    s = Sketch()
    x = s.input("x", [1, 4, 8])
    steps = s.op("Range", f32(0), f32(8), f32(1), name="steps")
    square = s.op("Mul", s.op("Add", x, steps, name="add"), f32(1e4), name="enlarge")
    y = s.op("Mul", square, f32(1e-4), name="reduce")
    ended = fix(models.Ill(s.proto(y), {"x": models.signals(1, 4, 8, seed=9, peak=4)}))
    assert ended.code == 0, ended.out
    assert [u["node"] for u in ended.record["plan"]["unsupported"]] == ["steps"]
    assert "With everything in FP16 except 1 node that must be FP32" in words(ended)
    assert "all FP16" not in words(ended)


def test_what_fails_only_at_the_headroom_is_said_to(fix):
    ended = fix(models.near_the_edge())
    reasons = [k["reason"] for k in ended.record["plan"]["keep"]]
    assert all(
        "low, with values 2 × those seen, it gives NaN or infinite outputs" in r for r in reasons
    )
    assert all(r.startswith("Suspected: ") for r in reasons)


def test_a_supposed_fault_of_tf32_does_not_hide_an_overflow(saved, call):
    """Rounded toward zero, the products of positive numbers are off by up to 1e-3 each."""
    s = Sketch()
    weights = np.random.default_rng(11).uniform(0.5, 1, (32, 32))
    product = s.op("MatMul", s.input("x", [1, 32]), f32(weights), name="product")
    large = s.op("Mul", product, f32(5e4), name="enlarge")
    y = s.op("Mul", large, f32(1e-5), name="reduce")
    data = f32(np.random.default_rng(12).uniform(0.5, 1, (8, 1, 32)))
    saved(models.Ill(s.proto(y), {"x": data}))
    ended = call(
        *("diagnose", "model.onnx", "--inputs", "model.npz", "-o", "run", "--rel-max", "5e-4")
    )
    assert ended.code == 10, ended.err
    assert ended.out.startswith("FP16 breaks")
    tf32, precision = ended.record["diagnosis"][-2:]
    assert (tf32["name"], tf32["passed"], tf32["how"]) == ("tf32", None, "emulated")
    assert precision["advice"][0]["command"][:5] == [
        *("halfwise", "fix", "model.onnx", "--inputs", "model.npz"),
    ]
    assert {"enlarge", "reduce"} <= set(precision["nodes"])
    assert "suspected (emulated)" in words(ended)
    assert "Build without TF32" in words(ended)
    assert "TF32 alone puts the outputs" in words(ended)


def test_a_mask_that_becomes_infinite_is_not_told_as_the_cause(fix):
    """Added twice, -65504 is -inf: before a Softmax that has other scores, that does nothing."""
    s = Sketch()
    x = s.input("x", [1, 8, 8])
    mask = f32(np.triu(np.full((8, 8), -1e9), 1))
    once = s.op("Add", x, mask, name="once")
    twice = s.op("Add", once, mask, name="twice")
    soft = s.op("Softmax", twice, name="softmax", axis=-1)
    values = s.op("MatMul", soft, x, name="values")
    large = s.op("Mul", values, f32(5e5), name="enlarge")
    y = s.op("Mul", large, f32(1e-5), name="reduce")
    ended = fix(
        models.Ill(s.proto(y), {"x": models.signals(1, 8, 8, seed=13, peak=6)}), "--no-repair"
    )
    assert ended.code == 0, ended.out
    inside = {
        t["producer"]: t["harmless"] for t in ended.record["baseline"]["intermediate_nonfinite"]
    }
    assert inside["twice"] is True
    assert inside["enlarge"] is False
    assert "first of those that may do harm enlarge_out (node enlarge)" in words(ended)
    assert "of them do no harm" in words(ended) or "of them does no harm" in words(ended)
    assert ended.kept == {"enlarge", "reduce"}


def test_a_rule_that_breaks_the_outputs_is_named_in_place_of_the_tolerance(fix):
    ended = fix(models.conv_chain(), "--no-repair", "--lower", "conv_b")
    assert ended.code == 10
    assert "it forces 1 node low, and low precision harms conv_b." in words(ended)
    assert "tolerance fits" not in words(ended)


def test_an_overflow_that_a_node_reads_is_its_reason_ahead_of_small_weights(fix):
    """Read as infinity, 5e5 makes 5 of 2.5: finite, but much more than small weights explain."""
    s = Sketch()
    large = s.op("Mul", s.input("x", [1, 8, 16]), f32(1e5), name="enlarge")
    little = s.op("MatMul", large, f32(np.full((16, 4), 4e-7)), name="weigh")
    y = s.op("Clip", little, f32(0), f32(5), name="clip")
    data = np.random.default_rng(14).uniform(1, 5, (24, 1, 8, 16)).astype(np.float32)
    ended = fix(models.Ill(s.proto(y), {"x": data}), "--no-repair")
    assert ended.code == 0, ended.out
    kinds = {g["kind"] for g in ended.record["guards"] if g["node"] == "weigh"}
    assert "constant-subnormal" in kinds
    (weigh,) = (k for k in ended.record["plan"]["keep"] if k["node"] == "weigh")
    assert weigh["guard"] == "overflow"
    overflow = r"enlarge_out reaches \d{6}, beyond FP16's 65504"
    assert re.match(f"It reads what may overflow: {overflow}", weigh["reason"])
    assert re.search(overflow, words(ended))
    assert "smallest normal number" not in words(ended)
    assert "scale it by a power of two, and the result" not in words(ended)
