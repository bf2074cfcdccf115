import pytest

from tests.unit.tensorrt.log.wordings import kind_of

LINES = [
    (
        "int8-fallback",
        "[W] [TRT] Missing scale and zero-point for tensor (Unnamed Layer* 78) "
        "[Convolution]_output, expect fall back to non-int8 implementation "
        "for any layer consuming or producing given tensor",
    ),
    (
        "int8-ranges",
        "[05/15/2023-22:56:54] [TRT] [W] Calibrator is not being used. Users must provide dynamic "
        "range for all tensors that are not Int32 or Bool.",
    ),
    (
        "int8-uncalibrated",
        "ERROR: Calibration failure occured with no scaling factors detected. This could be due to "
        "no int8 calibrator or insufficient custom scales for network layers.",
    ),
    (
        "int8-flag",
        "[2022-10-20 09:21:09   ERROR] 4: [network.cpp::validate::2891] Error Code 4: Internal "
        "Error (Int8 precision has been set for a layer or layer output, but int8 is not "
        "configured in the builder)",
    ),
    (
        "int8-hardware",
        "[E] [standardEngineBuilder.cpp::buildEngine::2072] Error Code 9: Internal Error (Networks "
        "with QuantizeLayer/DequantizeLayer layers require hardware with Int8 support.)",
    ),
    (
        "int8-constants",
        "[2022-05-16 10:39:03   ERROR] layer.fc2.bias_quantized: invalid weights type of Int8",
    ),
    (
        "quantised-asymmetric",
        "[E] [TRT] ModelImporter.cpp:141: ERROR: onnxOpImporters.cpp:1584 In function "
        "QuantDequantLinearHelper: [6] Assertion failed: shiftIsAllZeros(zeroPoint): Non-zero zero "
        "point is not supported. Please set kENABLE_UINT8_AND_ASYMMETRIC_QUANTIZATION_DLAto enable",
    ),
    (
        "quantised-uint8",
        "[W] [TRT] onnxOpImporters.cpp:1499: TensorRT doesn't support "
        "QuantizeLinear/DequantizeLinear with UINT8 zero_point. TensorRT will use INT8 instead.",
    ),
    (
        "quantised-bias",
        "[TRT] [E] ITensor::getDimensions: Error Code 3: API Usage Error "
        "(encoder.LayerNorm.bias_DequantizeLinear: only activation types allowed as input to this "
        "layer.)",
    ),
    (
        "quantised-scale",
        "[E] In function QuantDequantLinearHelper: [6] Assertion failed: scaleAllPositive && "
        '"Scale coefficients must all be positive"',
    ),
]


@pytest.mark.parametrize(("kind", "line"), LINES, ids=[kind for kind, _ in LINES])
def test_what_a_line_is_taken_for(kind, line):
    assert kind_of(line)[0] == kind
