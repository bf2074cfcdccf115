import numpy as np
import pytest

from tests.faults import linted
from tests.unit.graph.sketch import Sketch, f32
from tests.unit.linting.said import said


def test_numbers(tmp_path):
    assert said("huge_weights", tmp_path) == (
        "32 of the 32 values of constant_0 are beyond FP16's 65504, up to 100000"
    )
    assert said("loud_channels", tmp_path) == (
        "3 of the 3 values of constant_3 are beyond FP16's 65504, up to 1e9"
    )


@pytest.mark.parametrize(("value", "told"), [(-3.4e38, 1), (65519.0, 1), (65504.0, 0), (np.inf, 0)])
def test_finite_numbers_beyond_the_range_are_named(tmp_path, value, told):
    s = Sketch()
    scores = s.op("Add", s.input("x", [2, 4]), f32([value, 0, 0, 0]), name="mask")
    report = linted(s.proto(s.op("Softmax", scores, name="y", axis=-1)), tmp_path)
    assert [f.node for f in report.findings] == ["mask"] * told


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "layer_norm",
            "9 nodes, ReduceMean to Add, write out LayerNormalization; opset 13 has no ",
        ),
        ("layer_norm_of_a_late_opset", "; opset 18 has LayerNormalization"),
        ("instance_norm", "write out InstanceNormalization; opset 17 has InstanceNormalization"),
        ("rms_norm", "write out RMSNormalization; opset 17 has no RMSNormalization"),
    ],
)
def test_what_is_written_out(name, message, tmp_path):
    assert message in said(name, tmp_path)
