"""`--to bf16`: FP32's range with eight bits, so nothing overflows and much is inexact."""

import re

import onnx
import pytest

from tests import models
from tests.end_to_end.soundness import assert_minimal, assert_sound
from tests.unit.graph.sketch import Sketch

BF16 = ("--to", "bf16")


def convolution(opset: int) -> models.Ill:
    s = Sketch(opset)
    x = s.input("x", [1, 2, 8, 8])
    weight = models.weights(4, 2, 3, 3, seed=1, scale=0.2)
    c = s.op("Conv", x, weight, name="conv", pads=[1] * 4)
    y = s.op("GlobalAveragePool", s.op("Relu", c, name="relu"), name="pool")
    return models.Ill(s.proto(y), {"x": models.signals(1, 2, 8, 8, seed=4)})


@pytest.mark.parametrize(
    ("make", "guards"),
    [
        (models.rotary, {"angle"}),
        (models.arg_max, {"margin"}),
    ],
)
def test_what_eight_bits_cannot_tell_apart_is_kept(fix, call, make, guards):
    ill = make()
    ended = fix(ill, *BF16)
    assert ended.code == 0, ended.out + ended.err
    assert ended.kept == ill.kept
    assert {entry["guard"] for entry in ended.record["plan"]["keep"]} == guards
    assert_sound(ended, ill, call)


def test_positions_beyond_256_stay_in_fp32(fix):
    ended = fix(models.rotary(), *BF16)
    assert ended.record["plan"]["data_movement"] == ["count"]
    (integer,) = (g for g in ended.record["guards"] if g["kind"] == "integer")
    assert "every integer only up to 256" in integer["message"]


def test_cancellation(fix, call):
    ill = models.cancellation()
    ended = fix(ill, *BF16)
    assert ended.code == 0, ended.out + ended.err
    assert ended.kept == ill.kept
    assert_sound(ended, ill, call)


@pytest.mark.parametrize(
    "make",
    [
        *(models.layer_norm, models.logarithm, models.tiny_weights, models.huge_weights),
        *(models.batch_norm, models.near_the_edge, models.two_readers, models.saturating),
    ],
)
def test_what_leaves_the_range_of_fp16_stays_low(fix, call, make):
    ill = make()
    ended = fix(ill, *BF16)
    assert ended.code == 0, ended.out + ended.err
    assert ended.kept == set()
    ranges = {"overflow", "headroom", "square", "sum", "eps", "underflow", "mask"}
    found = {g["kind"] for g in ended.record["guards"]}
    assert found.isdisjoint(ranges | {"constant-range", "constant-subnormal"})
    assert_sound(ended, ill, call)


def test_an_overflow_needs_no_node_but_three_roundings_take_most_of_one_percent(fix, call):
    ill = models.conv_chain()
    ended = fix(ill, *BF16, "--rel-max", 0.02)
    assert ended.code == 0, ended.out + ended.err
    assert ended.kept == set()
    assert ended.record["guards"] == []
    assert_sound(ended, ill, call)


def test_a_mask_saturates_and_is_listed(fix, call):
    ill = models.mask()
    ended = fix(ill, *BF16)
    assert ended.code == 0
    assert ended.kept == set()
    assert ended.record["guards"] == []
    (constant,) = ended.record["plan"]["constants"]
    assert constant["name"] == "lowest"
    assert "BF16 range" in ended.out
    assert_sound(ended, ill, call)


def test_a_residual_stream_is_kept_where_it_loses_its_branches(fix, call):
    ill = models.residual()
    ended = fix(ill, *BF16)
    assert ended.code == 0, ended.out + ended.err
    assert not ended.record["baseline"]["passed"]
    assert ended.kept
    assert ended.kept <= {f"add_{i}" for i in range(12)}
    assert_sound(ended, ill, call)


def test_fp16_is_fine_enough_for_the_same_stream(fix):
    ended = fix(models.residual())
    assert ended.code == 0
    assert ended.kept == set()
    assert ended.record["guards"] == []


@pytest.mark.parametrize("opset", [13, 17])
def test_the_opset_is_raised_for_convolutions(fix, call, opset):
    ill = convolution(opset)
    ended = fix(ill, *BF16)
    assert ended.code == 0, ended.out + ended.err
    assert ended.record["plan"]["unsupported"] == []
    (raised,) = (r for r in ended.record["plan"]["remarks"] if r["kind"] == "opset-raised")
    assert (raised["numbers"]["opset"], raised["numbers"]["raised"]) == (opset, 22)
    assert "raised from" in ended.out
    written = onnx.load(ended.model)
    assert [o.version for o in written.opset_import] == [22]
    assert {n.name for n in written.graph.node} >= {"conv", "relu", "pool"}
    assert_sound(ended, ill, call)


def test_a_convolution_stays_where_the_opset_cannot_be_raised(fix, monkeypatch):
    def fail(*_):
        raise RuntimeError("no adapter")

    monkeypatch.setattr("onnx.version_converter.convert_version", fail)
    ill = convolution(17)
    ended = fix(ill, *BF16)
    assert ended.code == 0, ended.out + ended.err
    assert {u["node"] for u in ended.record["plan"]["unsupported"]} == {"conv", "pool"}
    (stays,) = (r for r in ended.record["plan"]["remarks"] if r["kind"] == "opset-stays")
    assert stays["numbers"]["opset"] == 17
    assert "no adapter" in stays["names"]["why"]
    assert_minimal(ended, ill)


def test_low_inputs_and_outputs_are_bf16(fix):
    ended = fix(models.small(), *BF16, "--io", "bf16")
    assert ended.code == 0, ended.out + ended.err
    graph = onnx.load(ended.model).graph
    types = {v.type.tensor_type.elem_type for v in (*graph.input, *graph.output)}
    assert types == {onnx.TensorProto.BFLOAT16}
    assert ended.record["io"] == ended.record["plan"]["low"] == "bf16"
    assert "inputs and outputs in BF16" in " ".join(ended.out.split())


def test_every_text_names_the_format(fix):
    for make in (models.rotary, models.mask, models.small):
        ended = fix(make(), *BF16)
        assert "FP16" not in ended.out + ended.err
        assert "fp16" not in ended.out + ended.err
        assert "FP16" not in (ended.folder / "run.json").read_text()
        for path in sorted(ended.folder.iterdir()):
            path.unlink()
        ended.folder.rmdir()


def test_ranges_are_observed_as_bf16_sees_them(call, saved):
    model, inputs = saved(models.conv_chain())
    low, high = (
        call("observe", model, "--inputs", inputs, "--limit", 1e5, *options)
        for options in ((), BF16)
    )
    assert low.code == high.code == 0
    assert set(re.findall(r"[\d.]+ %", low.out)) - {"0 %"}
    assert set(re.findall(r"[\d.]+ %", high.out)) == {"0 %"}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--io", "fp16"), "--io fp16 does not work with --to bf16"),
        (("--accumulate", "fp16"), "only in FP32"),
    ],
)
def test_options_for_fp16_alone_are_refused(refused, files, options, expected):
    arguments = ("fix", files[0], "--inputs", files[1], "-o", "run", *BF16, *options)
    assert expected in refused(2, *arguments)


def test_below_opset_13_the_model_is_raised_or_refused(saved, call, refused, monkeypatch):
    model, inputs = saved(convolution(11))
    assert call("observe", model, "--inputs", inputs, *BF16).code == 0
    ended = call("fix", model, "--inputs", inputs, "-o", "run", *BF16)
    assert ended.code == 0, ended.out + ended.err
    assert ended.kept == set()

    def fail(*_):
        raise RuntimeError("no adapter")

    monkeypatch.setattr("onnx.version_converter.convert_version", fail)
    arguments = ("fix", model, "--inputs", inputs, "-o", "again", *BF16)
    assert "BF16 needs opset 13" in refused(3, *arguments)
