import pytest

from tests.unit.linting.said import said


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("quantised", "the model is quantised: 1 QuantizeLinear, 1 DequantizeLinear"),
        ("asymmetric", "its zero point is not 0 but -128"),
        ("asymmetric_weight", "its zero point is not 0 but 1"),
        ("unsigned", "it is of UINT8: TensorRT reads INT8, and above 127 saturates"),
        ("without_zero_point", "it is of UINT8, which no zero point means: TensorRT reads INT8"),
        ("quantised_bias", "TensorRT dequantises no INT32"),
        ("eight_bit_floats", "TensorRT 8.6 has no FP8"),
        ("no_scale", "its scale is no positive number but 0.0"),
        ("infinite_scale_of_a_channel", "1 of 4 scales are no positive number but inf"),
    ],
)
def test_what_is_said(fault, message, tmp_path):
    assert said(fault, tmp_path).startswith(message)
