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
        (
            "one_scale",
            "1 of the 4 channels of its weights are over 100 times smaller than the largest, up to "
            "1000 times, and all have one scale",
        ),
        ("one_scale_of_stored_weights", "1 of the 4 channels of its weights are over 100 times"),
        (
            "data_of_16_bits",
            "its weights are quantised, and low_back_out is of 16 bits, which no INT8 kernel takes",
        ),
        ("only_weights", "its weights are quantised, and x is not"),
        (
            "bias_outside",
            "Add bias would go into the kernel of this MatMul, and is kept out by between_back",
        ),
        ("residual", "beside_out is not quantised, and is added to the INT8 MatMul product"),
        ("infinite_scale_of_a_channel", "1 of 4 scales are no positive number but inf"),
    ],
)
def test_what_is_said(fault, message, tmp_path):
    assert said(fault, tmp_path).startswith(message)
