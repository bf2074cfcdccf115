import onnx
import pytest

from halfwise.graph.loading import read_unchecked
from halfwise.linting import Subject, examine
from tests.faults import FAULTS, linted
from tests.unit.graph.sketch import Sketch, f32
from tests.unit.linting.said import said


def test_what_an_eps_becomes(tmp_path):
    assert said("logarithm", tmp_path) == (
        "the eps 1e−10 before Log becomes zero in FP16 after plain conversion (halfwise fix "
        "stores 5.96e−8)"
    )
    assert said("clipped_divisor", tmp_path).startswith(
        "the eps 1e−12 before Div becomes zero in FP16 after plain conversion"
    )


def test_how_many_bits_are_left(tmp_path):
    expected = "the eps 1e−5 before Sqrt is subnormal in FP16: 8 of 11 bits"
    assert said("root", tmp_path) == expected


def test_masks_by_their_size(tmp_path):
    start = "the mask constant_0 = "
    assert said("lowest_mask", tmp_path).startswith(f"{start}−3.4e38 is -inf or -65504 in FP16")
    assert said("mask_at_the_edge", tmp_path).startswith(f"{start}−65504 is −65504 in FP16")
    assert said("mask_at_the_edge", tmp_path).endswith(
        "-inf once a score of −16 or below is added before Softmax"
    )
    assert "NaN in any precision" in said("infinite_mask", tmp_path)


@pytest.mark.parametrize(("between", "told"), [(8, 1), (9, 0)])
def test_a_mask_is_near_its_softmax(tmp_path, between, told):
    sketch = Sketch()
    scores = sketch.op("Add", sketch.input("x", [2, 4]), f32([-3.4e38, 0, 0, 0]))
    for _ in range(between - 1):
        scores = sketch.op("Mul", scores, 0.5)
    onnx.save(sketch.proto(sketch.op("Softmax", scores, name="y", axis=-1)), tmp_path / "m.onnx")
    findings, *_ = examine(Subject(read_unchecked(tmp_path / "m.onnx")))
    assert [f.rule for f in findings].count("mask-constant") == told


@pytest.mark.parametrize(("value", "told"), [(-3.4e38, 1), (-30000.0, 0)])
def test_where_a_mask_takes_the_place_of_scores_none_is_added(tmp_path, value, told):
    sketch = Sketch()
    scores, seen = sketch.input("x", [2, 4]), sketch.input("seen", [2, 4], onnx.TensorProto.BOOL)
    masked = sketch.op("Where", seen, scores, value, name="masked")
    onnx.save(sketch.proto(sketch.op("Softmax", masked, name="y", axis=-1)), tmp_path / "m.onnx")
    found = [
        f
        for f in examine(Subject(read_unchecked(tmp_path / "m.onnx")))[0]
        if f.rule == "mask-constant"
    ]
    assert len(found) == told
    assert all(f.message.endswith("a fully masked row is NaN after Softmax") for f in found)


def test_numbers(tmp_path):
    assert said("huge_weights", tmp_path) == (
        "32 of the 32 values of constant_0 are beyond FP16's 65504, up to 100000"
    )
    assert said("tiny_weights", tmp_path).startswith(
        "20 of the 32 non-zero values of constant_0 are below FP16's smallest normal number, "
    )
    assert said("loud_channels", tmp_path) == (
        "3 of the 3 values of constant_3 are beyond FP16's 65504, up to 1e9"
    )


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "layer_norm",
            "9 nodes, ReduceMean to Add, write out LayerNormalization; opset 13 has no ",
        ),
        ("layer_norm_of_a_late_opset", "; opset 18 has LayerNormalization"),
        ("layer_norm_over_channels", " over axis 1, which is not the last; opset 17 has "),
        ("instance_norm", "write out InstanceNormalization; opset 17 has InstanceNormalization"),
        ("gelu_by_tanh", "8 nodes, Pow to Mul, write out Gelu; opset 17 has no Gelu"),
    ],
)
def test_what_is_written_out(name, message, tmp_path):
    assert message in said(name, tmp_path)


def test_channels_have_a_fix_of_their_own(tmp_path):
    fault = next(f for f in FAULTS if f.name == "layer_norm_over_channels")
    (finding,) = linted(fault.make(True), tmp_path).findings
    assert "put a Transpose before and after it" in finding.fix


def test_types(tmp_path):
    assert said("double", tmp_path) == "it writes double_out in FP64, which becomes FP32"
