import numpy as np
import pytest

from tests.faults import linted
from tests.unit.graph.sketch import Sketch
from tests.unit.linting.said import said


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("asymmetric", "TensorRT 10.3 rejects it: the zero point is not 0"),
        ("asymmetric_weight", "TensorRT 11.0 rejects it: the zero point is not 0"),
        ("unsigned", "TensorRT 11.0 rejects it: the type is not one that it quantises to (UINT8"),
        ("without_zero_point", "TensorRT 8.6 rejects it: the type is not one"),
        ("quantised_bias", "TensorRT 11.0 rejects it: an INT32 constant is not dequantised"),
        ("eight_bit_floats", "TensorRT 8.6 rejects it: the type is not one"),
        ("no_scale", "TensorRT 11.0 rejects it: a scale is not a positive number"),
        ("infinite_scale_of_a_channel", "TensorRT 11.0 rejects it: a scale is not a positive"),
        ("scales_of_activations", "TensorRT 10.3 rejects it: a tensor other than a weight has"),
    ],
)
def test_what_is_said(fault, message, tmp_path):
    assert said(fault, tmp_path).startswith(message)


@pytest.mark.parametrize(
    ("scale", "positive"), [(np.nan, False), (-0.5, False), (0.0, False), (1e-45, True)]
)
def test_what_is_no_scale(scale, positive, tmp_path):
    s = Sketch()
    given, zero = s.constant(np.asarray(scale, np.float32)), s.constant(np.zeros((), np.int8))
    low = s.op("QuantizeLinear", s.input("x", [4]), given, zero)
    found = linted(s.proto(s.op("DequantizeLinear", low, given, zero)), tmp_path).findings
    assert [f.severity for f in found if f.rule == "quantisation-refused"] == ["error"] * (
        not positive
    )
