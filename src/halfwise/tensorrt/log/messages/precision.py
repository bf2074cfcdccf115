"""Messages about types: FP16, weights, integers, constraints, strong typing, TF32."""

from halfwise.tensorrt.log.messages.message import GUIDE, ISSUES, Message

_MIGRATION = f"{GUIDE}api/migration/tensorrt-10x-to-11x-python-api.html"
_KEEP = "`halfwise fix` measures which nodes need FP32, and why."

PRECISION = (
    Message(
        "layernorm-fp16",
        "warning",
        r"Detected layernorm nodes in FP16(?:: (?P<names>.+))?"
        r"|Running layernorm after self-attention (?:in|with) FP16",
        "A LayerNorm that is written out as single operators runs in FP16, where the square of its "
        "input can overflow.",
        "Keep these nodes in FP32, or export with opset 17 or later so that LayerNormalization is "
        f"one node. {_KEEP}",
        f"{ISSUES}3692",
    ),
    Message(
        "weights-subnormal",
        "warning",
        r"\b(?P<quantity>\d+) weights are affected by this issue: Detected subnormal "
        r"(?P<low>\w+) values",
        "Weights hold values so small that {low} stores them with fewer digits "
        "(arrays: {quantity}).",
        "Mostly harmless: each is wrong by less than 3e-8 in FP16. `halfwise fix` measures whether "
        "any of it matters.",
        f"{ISSUES}2709",
    ),
    Message(
        "weights-vanish",
        "warning",
        r"\b(?P<quantity>\d+) weights are affected by this issue: Detected values less than "
        r"smallest positive (?P<low>\w+) subnormal",
        "Weights below the smallest number of {low} are stored as that number "
        "(arrays: {quantity}).",
        "Mostly harmless, unless it is an eps that guards a division or a logarithm. " + _KEEP,
        f"{ISSUES}2709",
    ),
    Message(
        "weights-overflow",
        "warning",
        r"\b(?P<quantity>\d+) weights are affected by this issue: Detected finite FP32 values "
        r"which would overflow in (?P<low>\w+)",
        "Weights beyond the range of {low} are stored as its largest number (arrays: {quantity}).",
        "Masks of -1e9 and the like are meant so; of any other weight the result is wrong. "
        + _KEEP,
        f"{ISSUES}3101",
    ),
    Message(
        "weights-subnormal",
        "warning",
        r"^-? ?Subnormal (?P<low>\w+) values detected",
        "Weights hold values so small that {low} stores them with fewer digits.",
        "Mostly harmless: each is wrong by less than 3e-8 in FP16. `halfwise fix` measures whether "
        "any of it matters.",
        f"{ISSUES}2232",
    ),
    Message(
        "weights-vanish",
        "warning",
        r"^-? ?Values less than smallest positive (?P<low>\w+) Subnormal value detected",
        "Weights below the smallest number of {low} are stored as that number.",
        "Mostly harmless, unless it is an eps that guards a division or a logarithm. " + _KEEP,
        f"{ISSUES}2232",
    ),
    Message(
        "weights",
        "warning",
        r"encountered issues when converting weights between types"
        r"|If this is not the desired behavior, please modify the weights"
        r"|Check verbose logs for the list of affected weights"
        r"|^Weights \[name=(?P<layer>.+)\] had the following issues when converted to",
        "Weights change when TensorRT stores them in another type.",
        "Build with --verbose: the log then lists which weights, and how.",
        f"{ISSUES}2709",
    ),
    Message(
        "int64-clamped",
        "warning",
        r"One or more weights outside the range of INT32 was clamped",
        "64-bit integers beyond the range of 32 bits became the largest or smallest 32-bit "
        "integer.",
        'Harmless where the number only means "to the end", as in a Slice. TensorRT 9 and later '
        "keep 64 bits.",
        f"{ISSUES}620",
    ),
    Message(
        "int64-narrowed",
        "info",
        r"INT64 weights, while TensorRT does not natively support INT64",
        "TensorRT before version 9 computes with 32-bit integers where the model has 64 bits.",
        "Nothing to do, unless integers exceed 2147483647.",
        "https://github.com/onnx/onnx-tensorrt/blob/main/docs/Changelog.md",
    ),
    Message(
        "int64-binding",
        "info",
        r"Make sure (?:input|output) (?P<tensor>.+?) has Int64 binding",
        "TensorRT 9 and later take {tensor} as 64-bit integers, where earlier versions took 32 "
        "bits.",
        "Give it 64-bit integers.",
        f"{ISSUES}4493",
    ),
    Message(
        "precision-ignored",
        "warning",
        r"No implementation of layer (?P<layer>.+?) obeys the requested constraints",
        "No kernel has the types that were asked for, so the fastest one is taken, whatever its "
        "types.",
        "Constrain whole blocks rather than single layers, or build a strongly typed network.",
        f"{ISSUES}2407",
    ),
    Message(
        "constraints-empty",
        "warning",
        r"--precisionConstraints flag is set .* please add --layerPrecision",
        "Precision constraints are to be obeyed, but none is given.",
        "Name layers with --layerPrecisions and --layerOutputTypes.",
        f"{ISSUES}4587",
    ),
    Message(
        "cast-output-type",
        "error",
        r"castLayer\.cpp::validate",
        "An output type was set on a Cast that contradicts the type to which it casts.",
        "Set no types on Cast layers: what they make is what the model says.",
        f"{ISSUES}3618",
    ),
    Message(
        "integer-output-type",
        "error",
        r"shapeLayer\.h::setOutputType"
        r"|(?:^|\] ?)(?P<layer>[^:\]]+): cannot use precision \w+ for layer that computes",
        "A floating-point type was set on a layer that computes integers, Booleans or shapes.",
        "Set types only on layers with floating-point outputs.",
        f"{ISSUES}1516",
    ),
    Message(
        "strong-type-set",
        "error",
        r"cannot be (?:called|used|set) (?:for|on|in) a strongly typed network|usingStronglyTyped",
        "A type was set on a layer or tensor of a strongly typed network, where types come from "
        "the model alone.",
        "Write the types into the ONNX file as Casts, as `halfwise fix` does, and set none.",
        "https://github.com/pytorch/TensorRT/pull/3563",
    ),
    Message(
        "strong-flag",
        "error",
        r"!config\.getFlag\(BuilderFlag::k(?P<flag>\w+)\)",
        "The builder flag {flag} is set for a strongly typed network, which takes its types from "
        "the model alone.",
        "Leave the flag out, and write the types into the ONNX file, as `halfwise fix` does.",
        "https://github.com/NVIDIA/TensorRT-RTX/issues/2",
    ),
    Message(
        "flag-gone",
        "error",
        r"AttributeError: .*\b(?P<flag>FP16|BF16|INT8|OBEY_PRECISION_CONSTRAINTS"
        r"|PREFER_PRECISION_CONSTRAINTS|EXPLICIT_BATCH|STRICT_TYPES)\b"
        r"|Unknown option: --(?P<option>fp16|bf16|int8|best|precisionConstraints|layerPrecisions"
        r"|layerOutputTypes|explicitBatch|workspace)",
        "This version of TensorRT has no {flag}{option} any more: from 11 on every network is "
        "strongly typed.",
        "Write the types into the ONNX file, as `halfwise fix` does, and build without it.",
        _MIGRATION,
    ),
    Message(
        "types-differ",
        "warning",
        r"IElementWiseLayer with inputs (?P<first>\S+) and (?P<second>\S+): first input has type "
        r"(?P<one>\w+) but second input has type (?P<other>\w+)"
        r"|Input 0's element type \((?P<left>\w+)\) differs from input 1's element type "
        r"\((?P<right>\w+)\)",
        "An operator has inputs of two types, {one}{left} and {other}{right}.",
        "A strongly typed network needs a Cast there; `halfwise fix` writes such Casts.",
        "https://github.com/NVIDIA/TensorRT-LLM/issues/1077",
    ),
    Message(
        "fp16-slow",
        "warning",
        r"Half2 support requested on hardware without native FP16"
        r"|platform does not have native FP16",
        "This GPU has no fast FP16 arithmetic.",
        "Build in FP32: FP16 is no faster here.",
        f"{ISSUES}218",
    ),
    Message(
        "int8-fallback",
        "warning",
        r"Missing scale and zero-point for tensor (?P<layer>.+?), expect fall back to non-int8",
        "Without a scale for these tensors, the layers that make or read them do not run in INT8.",
        "Calibrate them or quantise them in the model; in an FP16 build, leave INT8 out.",
        f"{ISSUES}4058",
    ),
    Message(
        "fp32-fallback",
        "warning",
        r"(?i)fall(?:ing|s)?[ -]?back to (?:fp32|float32|kfloat|float\b)",
        "A layer for which FP16 was asked runs in FP32.",
        "`halfwise inspect` tells what each layer of the engine really computes in.",
        f"{ISSUES}4070",
    ),
    Message(
        "tf32",
        "info",
        r"TF32 is enabled by default|[Tt]urn(?:ed|ing)? on TF32 for better",
        "Matrix products and convolutions in FP32 may round their inputs to TF32's 11 bits.",
        "Build without TF32 (--noTF32) to see the error of FP32 itself.",
        f"{ISSUES}4492",
    ),
    Message(
        "tf32-override",
        "warning",
        r"NVIDIA_TF32_OVERRIDE",
        "The environment variable NVIDIA_TF32_OVERRIDE decides about TF32, whatever the builder is "
        "told.",
        "Unset it, or say in the report that it was set.",
        "https://github.com/microsoft/onnxruntime/issues/6427",
    ),
)
