import pytest

from tests.unit.tensorrt.log.wordings import kind_of

LINES = [
    ("layernorm-fp16", "[W] [TRT] Detected layernorm nodes in FP16: /n/Pow, /n/Sub"),
    (
        "layernorm-fp16",
        "[W] Running layernorm after self-attention in FP16 may cause overflow. Forcing layernorm "
        "layers to run in FP32 precision can help with preserving accuracy.",
    ),
    (
        "layernorm-fp16",
        "[05/05/2024-13:14:38] [TRT] [W] Running layernorm after self-attention in FP16 may cause "
        "overflow. Exporting the model to the latest available ONNX opset (later than opset 17)",
    ),
    (
        "layernorm-fp16",
        "WARNING:torch_tensorrt [TensorRT Conversion Context]:Running layernorm after "
        "self-attention with FP16 Reduce or Pow may cause overflow.",
    ),
    (
        "weights-subnormal",
        "[W] - 26 weights are affected by this issue: Detected subnormal FP16 values.",
    ),
    (
        "weights-vanish",
        "[TRT] [W] - 2 weights are affected by this issue: Detected values less than smallest "
        "positive FP16 subnormal value and converted them to the FP16 minimum subnormalized value.",
    ),
    (
        "weights-overflow",
        "[W] [TRT] - 1 weights are affected by this issue: Detected finite FP32 values which would "
        "overflow in FP16 and converted them to the closest finite FP16 value.",
    ),
    ("weights-subnormal", "[TRT] [W]  - Subnormal FP16 values detected. "),
    (
        "weights",
        "[TRT] [W] Weights [name=Conv_110.weight] had the following issues when converted to FP16:",
    ),
    (
        "weights",
        "[W] TensorRT encountered issues when converting weights between types and that could "
        "affect accuracy.",
    ),
    (
        "int64-narrowed",
        "[06/09/2023-10:44:46] [W] [TRT] onnx2trt_utils.cpp:198: Your ONNX model has been "
        "generated with INT64 weights, while TensorRT does not natively support INT64. "
        "Attempting to cast down to INT32.",
    ),
    (
        "int64-clamped",
        "[TensorRT] WARNING: onnx2trt_utils.cpp:243: One or more weights outside the range of "
        "INT32 was clamped",
    ),
    ("int64-binding", "[W] [TRT] ModelImporter.cpp:503: Make sure input ids has Int64 binding."),
    (
        "precision-ignored",
        "[2022-11-08 06:01:47 WARNING] No implementation of layer Conv_70[Conv] + Relu_71[Relu] "
        "obeys the requested constraints in strict mode. No conforming implementation was found",
    ),
    (
        "constraints-empty",
        '[09/28/2025-09:21:51] [W] When --precisionConstraints flag is set to "obey" or "prefer", '
        "please add --layerPrecision/--layerOutputTypes flags to set layer-wise precisions",
    ),
    (
        "cast-output-type",
        "[E] Error[2]: [castLayer.cpp::validate::33] Error Code 2: Internal Error (Assertion "
        "!mOutputTypes.at(0).hasValue() || mOutputTypes.at(0).value() == params.toType failed. )",
    ),
    (
        "integer-output-type",
        "[TensorRT] ERROR: Cast_35: cannot use precision Int32 for layer that computes boolean "
        "values",
    ),
    (
        "strong-type-set",
        "ILayer::setOutputType: Error Code 3: API Usage Error (Parameter check failed, condition: "
        "!mNetwork->usingStronglyTyped(). INetworkLayer::setOutputType cannot be called for a "
        "strongly typed network.)",
    ),
    (
        "strong-flag",
        "[06/12/2025-19:58:17] [TRT] [E] IBuilder::buildSerializedNetwork: Error Code 3: API Usage "
        "Error (Parameter check failed, condition: !config.getFlag(BuilderFlag::kFP16). )",
    ),
    (
        "flag-gone",
        "AttributeError: type object 'tensorrt_bindings.BuilderFlag' has no attribute 'FP16'",
    ),
    ("flag-gone", "[E] Unknown option: --fp16 "),
    (
        "types-differ",
        "[TRT] [W] IElementWiseLayer with inputs a/PROD_0 and b/SUM_0: first input has type Half "
        "but second input has type Float.",
    ),
    (
        "types-differ",
        "Input 0's element type (half) differs from input 1's element type (float).",
    ),
    (
        "fp16-slow",
        "[W] [TRT] Half2 support requested on hardware without native FP16 support, performance "
        "will be negatively affected.",
    ),
    ("fp32-fallback", "[W] Layer /a/Pow falling back to FP32."),
    (
        "tf32",
        "[I] TF32 is enabled by default. Add --noTF32 flag to further improve accuracy with some "
        "performance cost.",
    ),
    ("tf32-override", "[W] [TRT] TF32 is disabled by NVIDIA_TF32_OVERRIDE=0"),
]


@pytest.mark.parametrize(("kind", "line"), LINES)
def test_wordings(kind, line):
    assert kind_of(line)[0] == kind


def test_what_varies_is_told():
    assert kind_of(dict(LINES)["strong-flag"])[1].startswith("The builder flag FP16 is set")
    assert kind_of("Unknown option: --bf16")[1].startswith(
        "This version of TensorRT no longer has bf16"
    )
    assert "types, half and float." in kind_of(LINES[-5][1])[1]


LINES_shapes = [
    (
        "profile-missing",
        "[TensorRT] ERROR: Network has dynamic or shape inputs, but no optimization profile has "
        "been defined.",
    ),
    (
        "profile-input-missing",
        "[TensorRT] ERROR: input_image: dynamic input is missing dimensions in profile 0.",
    ),
    ("profile-order", "[E] 4: Specified optimization profiles must satisfy MIN<=OPT<=MAX."),
    (
        "profile-static-axis",
        "[E] input_1: for dimension number 1 in profile 0 does not match network definition (got "
        "min=100, opt=1024, max=4096), expected min=opt=max=1024)",
    ),
    ("profile-rank", "[E] input_1: number of dimensions is 4 but profile 0 has 3"),
    (
        "shape-outside",
        "[TRT] [E] 3: [executionContext.cpp::setBindingDimensions::945] Error Code 3: API Usage "
        "Error (Parameter check failed at: runtime/api/executionContext.cpp::setBindingDimensions::"
        "945, condition: profileMinDims.d[i] <= dimensions.d[i]. Supplied binding dimension "
        "[1,3,576,768] for bindings[0] exceed min ~ max range at index 2, maximum dimension",
    ),
    (
        "shape-outside",
        "[TRT] [E] 3: [executionContext.cpp::setInputShape::2288] Error Code 3: API Usage Error "
        "(Parameter check failed, condition: satisfyProfile Runtime dimension does not satisfy any "
        "optimization profile.)",
    ),
    (
        "profile-inconsistent",
        "[E] [TRT] 4: [memoryComputation.cpp::computeEngineAuxMemorySizes::203] Error Code 4: "
        "Internal Error (Profile kOPT values are not self-consistent. Assertion failed.)",
    ),
    ("shape-static", "[E] Static dimension mismatch while setting input shape."),
    (
        "shape-default",
        "[W] Dynamic dimensions required for input: x, but no shapes were provided. Automatically "
        "overriding shape to: 1x3x1x1",
    ),
    (
        "shape-default",
        "[W] Shape missing for input with dynamic shape: imagesAutomatically setting shape to: "
        "1x1x36x450",
    ),
    ("shape-broadcast", "[W] maxShapes is being broadcasted to optShapes for tensor timesteps"),
    ("shape-unset", "[E] all input dimensions have not been specified"),
    ("shape-output-type", "[W] [TRT] Output type must be INT32 for shape outputs"),
]


@pytest.mark.parametrize(("kind", "line"), LINES_shapes)
def test_wordings_shapes(kind, line):
    assert kind_of(line)[0] == kind


def test_names_and_shapes_are_told():
    told = dict(reversed([(kind, kind_of(line)[1]) for kind, line in LINES_shapes]))
    assert "for the dynamic input input_image" in told["profile-input-missing"]
    assert "shape [1,3,576,768] is outside" in told["shape-outside"]
    assert told["shape-default"].startswith("No shape was given for x; trtexec chose 1x3x1x1,")
