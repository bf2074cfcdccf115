"""Messages about INT8: missing scales, and quantisation that the parser does not accept."""

from halfwise.tensorrt.log.findings import ISSUES, Message

_EXPLICIT = (
    "Quantise the model itself: `halfwise fix --to int8` writes QuantizeLinear and "
    "DequantizeLinear, with scales, where INT8 is accurate enough."
)

QUANTISATION = (
    Message(
        "int8-fallback",
        "warning",
        r"Missing scale and zero-point for tensor (?P<layer>.+?), expect fall back to non-int8",
        "These tensors have no scale, so the layers that write or read them do not run in INT8.",
        f"{_EXPLICIT} For an FP16 build, do not allow INT8.",
        f"{ISSUES}4058",
    ),
    Message(
        "int8-ranges",
        "warning",
        r"Calibrator is not being used\. Users must provide dynamic range",
        "INT8 is allowed, but neither a calibrator nor the model gives scales: layers without "
        "scales do not run in INT8.",
        _EXPLICIT,
        "https://github.com/microsoft/onnxruntime/issues/17235",
    ),
    Message(
        "int8-uncalibrated",
        "error",
        r"Calibration failure occur+ed with no scaling factors detected",
        "INT8 is allowed, but the builder has no scale for any tensor.",
        _EXPLICIT,
        "https://github.com/PKUZHOU/MTCNN_FaceDetection_TensorRT/issues/5",
    ),
    Message(
        "int8-flag",
        "error",
        r"Int8 precision has been set for a layer or layer output, but int8 is not configured",
        "The model has QuantizeLinear and DequantizeLinear, but the builder may not use INT8.",
        "Allow INT8 as well as FP16: trtexec --int8 --fp16, or BuilderFlag.INT8. `halfwise build` "
        "does so.",
        f"{ISSUES}4021",
    ),
    Message(
        "int8-hardware",
        "error",
        r"QuantizeLayer/DequantizeLayer layers require hardware with Int8 support",
        "This GPU has no INT8 arithmetic.",
        "Build the unquantised model in FP16.",
        f"{ISSUES}3157",
    ),
    Message(
        "int8-constants",
        "error",
        r"(?<!\S)(?P<layer>\S+): invalid weights type of Int8",
        "This version does not accept weights stored as integers.",
        "Store them as floats with a QuantizeLinear, as `halfwise build` does for versions before "
        "10, or use TensorRT 10 or later.",
        "https://github.com/microsoft/onnxruntime/issues/11535",
    ),
    Message(
        "quantised-asymmetric",
        "error",
        r"shiftIsAllZeros\(zeroPoint\)|only supports symmetric quantization"
        r"|Non-zero zero point is not supported",
        "A zero point is not 0; TensorRT supports only symmetric quantisation.",
        "Quantise again with ActivationSymmetric and WeightSymmetric, or with `halfwise fix --to "
        "int8`.",
        f"{ISSUES}4698",
    ),
    Message(
        "quantised-uint8",
        "warning",
        r"QuantizeLinear/DequantizeLinear with UINT8 zero_point|with UINT8 zero_point only on DLA",
        "UINT8 values are read as INT8: values above 127 saturate.",
        "Quantise to INT8: activation_type and weight_type QInt8 in onnxruntime.quantization.",
        "https://github.com/leimao/PyTorch-Eager-Mode-Quantization-TensorRT-Acceleration/issues/1",
    ),
    Message(
        "quantised-bias",
        "error",
        r"(?<![^\s(])(?P<layer>[^\s(]+): only activation types allowed as input to this layer"
        r"|A DequantizeLayer can only run in DataType::kINT8",
        "A layer reads integers that TensorRT does not accept as data, such as dequantised INT32 "
        "biases.",
        "Keep biases as floats: QuantizeBias=False in onnxruntime.quantization. `halfwise build` "
        "writes them as floats.",
        "https://github.com/microsoft/onnxruntime/issues/11535",
    ),
    Message(
        "quantised-scale",
        "error",
        r"Scale coefficients must all be positive|Cannot have scale with no coefficients",
        "A scale is 0 or negative, as calibration leaves it for a constant tensor.",
        "Calibrate on data that exercise every tensor; `halfwise lint` names the node.",
        f"{ISSUES}4021",
    ),
)
