import numpy as np
import pytest

from tests.faults import linted
from tests.unit.graph.sketch import Sketch
from tests.unit.linting.said import said


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("asymmetric", "its zero point is -128, not 0"),
        ("asymmetric_weight", "its zero point is 1, not 0"),
        ("unsigned", "it is UINT8: TensorRT reads INT8, so values above 127 saturate"),
        (
            "without_zero_point",
            "it is UINT8, the default without a zero point: TensorRT reads INT8",
        ),
        ("quantised_bias", "TensorRT does not dequantise INT32"),
        ("eight_bit_floats", "TensorRT 8.6 has no FP8"),
        ("no_scale", "its scale is not a positive number: 0"),
        (
            "data_of_16_bits",
            "its weights are quantised, but low_back_out is 16 bits wide, which no INT8 kernel "
            "takes",
        ),
        ("only_weights", "its weights are quantised, but x is not"),
        (
            "infinite_scale_of_a_channel",
            "1 of its 4 scales is not a positive number; the first is inf",
        ),
    ],
)
def test_what_is_said(fault, message, tmp_path):
    assert said(fault, tmp_path).startswith(message)


@pytest.mark.parametrize(
    ("scales", "message"),
    [
        ([np.nan], "its scale is not a positive number: NaN"),
        ([-0.5], "its scale is not a positive number: −0.5"),
        (
            [0.1, -np.inf, 0.0, np.nan],
            "3 of its 4 scales are not positive numbers; the first is −inf",
        ),
        ([1e-45, 3e38], ""),
    ],
)
def test_what_is_no_scale(scales, message, tmp_path):
    s = Sketch()
    given = np.asarray(scales, np.float32)
    scale = s.constant(given if given.size > 1 else given[0])
    zero = s.constant(np.zeros_like(given if given.size > 1 else given[0], np.int8))
    low = s.op("QuantizeLinear", s.input("x", [len(scales)]), scale, zero, axis=0)
    found = linted(s.proto(s.op("DequantizeLinear", low, scale, zero, axis=0)), tmp_path).findings
    assert [f.message for f in found if f.rule == "quantisation-scale"] == [message] * bool(message)
