"""Messages about types and shapes: FP16, weights, integers, constraints, profiles, inputs."""

from halfwise.tensorrt.log.findings import GUIDE, ISSUES, Message

_MIGRATION = f"{GUIDE}api/migration/tensorrt-10x-to-11x-python-api.html"
_KEEP = "`halfwise fix` measures which nodes need FP32, and why."

PRECISION = (
    Message(
        "layernorm-fp16",
        "warning",
        r"Detected layernorm nodes in FP16(?:: (?P<names>.+))?"
        r"|Running layernorm after self-attention (?:in|with) FP16",
        "A LayerNorm decomposed into single operators runs in FP16, where the square of its input "
        "can overflow.",
        "Keep these nodes in FP32, or export with opset 17 or later so that LayerNormalization is "
        f"one node. {_KEEP}",
        f"{ISSUES}3692",
    ),
    Message(
        "weights-subnormal",
        "warning",
        r"\b(?P<quantity>\d+) weights are affected by this issue: Detected subnormal "
        r"(?P<low>\w+) values",
        "Some weights are subnormal in {low}, which stores them with fewer digits "
        "(arrays: {quantity}).",
        "Mostly harmless: each is off by less than 3e−8 in FP16. `halfwise fix` measures whether "
        "it matters.",
        f"{ISSUES}2709",
    ),
    Message(
        "weights-vanish",
        "warning",
        r"\b(?P<quantity>\d+) weights are affected by this issue: Detected values less than "
        r"smallest positive (?P<low>\w+) subnormal",
        "Weights below the smallest positive {low} number are stored as that number "
        "(arrays: {quantity}).",
        "Mostly harmless, unless one is an eps that guards a division or a logarithm. " + _KEEP,
        f"{ISSUES}2709",
    ),
    Message(
        "weights-overflow",
        "warning",
        r"\b(?P<quantity>\d+) weights are affected by this issue: Detected finite FP32 values "
        r"which would overflow in (?P<low>\w+)",
        "Weights beyond the range of {low} are stored as its largest number (arrays: {quantity}).",
        "Fine for masks such as -1e9; for any other weight the result is wrong. " + _KEEP,
        f"{ISSUES}3101",
    ),
    Message(
        "weights-subnormal",
        "warning",
        r"^-? ?Subnormal (?P<low>\w+) values detected",
        "Some weights are subnormal in {low}, which stores them with fewer digits.",
        "Mostly harmless: each is off by less than 3e−8 in FP16. `halfwise fix` measures whether "
        "it matters.",
        f"{ISSUES}2232",
    ),
    Message(
        "weights-vanish",
        "warning",
        r"^-? ?Values less than smallest positive (?P<low>\w+) Subnormal value detected",
        "Weights below the smallest positive {low} number are stored as that number.",
        "Mostly harmless, unless one is an eps that guards a division or a logarithm. " + _KEEP,
        f"{ISSUES}2232",
    ),
    Message(
        "weights",
        "warning",
        r"encountered issues when converting weights between types"
        r"|If this is not the desired behavior, please modify the weights"
        r"|Check verbose logs for the list of affected weights"
        r"|^Weights \[name=(?P<layer>.+)\] had the following issues when converted to",
        "Some weights change when TensorRT converts them to another type.",
        "Build with --verbose: the log then lists which weights change, and how.",
        f"{ISSUES}2709",
    ),
    Message(
        "int64-clamped",
        "warning",
        r"One or more weights outside the range of INT32 was clamped",
        "64-bit integers beyond the 32-bit range were clamped to the largest or smallest 32-bit "
        "integer.",
        'Harmless if the number only means "to the end", as in a Slice. TensorRT 9 and later '
        "keep 64 bits.",
        f"{ISSUES}620",
    ),
    Message(
        "int64-narrowed",
        "info",
        r"INT64 weights, while TensorRT does not natively support INT64",
        "TensorRT before version 9 computes with 32-bit integers where the model has 64 bits.",
        "Nothing to do unless integers exceed 2147483647.",
        "https://github.com/onnx/onnx-tensorrt/blob/main/docs/Changelog.md",
    ),
    Message(
        "int64-binding",
        "info",
        r"Make sure (?:input|output) (?P<tensor>.+?) has Int64 binding",
        "TensorRT 9 and later take {tensor} as 64-bit integers; earlier versions took 32-bit ones.",
        "Pass 64-bit integers.",
        f"{ISSUES}4493",
    ),
    Message(
        "precision-ignored",
        "warning",
        r"No implementation of layer (?P<layer>.+?) obeys the requested constraints",
        "No kernel has the requested types, so TensorRT takes the fastest one, whatever its types.",
        "Constrain whole blocks rather than single layers, or build a strongly typed network.",
        f"{ISSUES}2407",
    ),
    Message(
        "constraints-empty",
        "warning",
        r"--precisionConstraints flag is set .* please add --layerPrecision",
        "TensorRT is told to obey precision constraints, but none are given.",
        "Name layers with --layerPrecisions and --layerOutputTypes.",
        f"{ISSUES}4587",
    ),
    Message(
        "cast-output-type",
        "error",
        r"castLayer\.cpp::validate",
        "The output type set on a Cast contradicts the type it casts to.",
        "Set no types on Cast layers: the model decides their output type.",
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
        "A type was set on a layer or tensor of a strongly typed network, which takes its types "
        "from the model alone.",
        "Set none; write the types into the ONNX file as Casts, as `halfwise fix` does.",
        "https://github.com/pytorch/TensorRT/pull/3563",
    ),
    Message(
        "strong-flag",
        "error",
        r"!config\.getFlag\(BuilderFlag::k(?P<flag>\w+)\)",
        "The builder flag {flag} is set for a strongly typed network, which takes its types from "
        "the model alone.",
        "Drop the flag, and write the types into the ONNX file, as `halfwise fix` does.",
        "https://github.com/NVIDIA/TensorRT-RTX/issues/2",
    ),
    Message(
        "flag-gone",
        "error",
        r"AttributeError: .*\b(?P<flag>FP16|BF16|INT8|OBEY_PRECISION_CONSTRAINTS"
        r"|PREFER_PRECISION_CONSTRAINTS|EXPLICIT_BATCH|STRICT_TYPES)\b"
        r"|Unknown option: --(?P<option>fp16|bf16|int8|best|precisionConstraints|layerPrecisions"
        r"|layerOutputTypes|explicitBatch|workspace)",
        "This version of TensorRT no longer has {flag}{option}: from 11 on, every network is "
        "strongly typed.",
        "Drop it, and write the types into the ONNX file, as `halfwise fix` does.",
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
        "A strongly typed network needs a Cast there; `halfwise fix` writes these Casts.",
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
        "fp32-fallback",
        "warning",
        r"(?i)fall(?:ing|s)?[ -]?back to (?:fp32|float32|kfloat|float\b)",
        "A layer runs in FP32 although FP16 was requested.",
        "`halfwise inspect` shows the type that each layer of the engine really computes in.",
        f"{ISSUES}4070",
    ),
    Message(
        "tf32",
        "info",
        r"TF32 is enabled by default|[Tt]urn(?:ed|ing)? on TF32 for better",
        "Matrix products and convolutions in FP32 may round their inputs to TF32's 11 bits.",
        "Build without TF32 (--noTF32) to see FP32's own error.",
        f"{ISSUES}4492",
    ),
    Message(
        "tf32-override",
        "warning",
        r"NVIDIA_TF32_OVERRIDE",
        "The environment variable NVIDIA_TF32_OVERRIDE overrides the builder's TF32 setting.",
        "Unset it, or mention it in the report.",
        "https://github.com/microsoft/onnxruntime/issues/6427",
    ),
)


_DYNAMIC = f"{GUIDE}_static/python-api/infer/Core/OptimizationProfile.html"
_SHAPES = "Give --minShapes, --optShapes and --maxShapes for every dynamic input."

SHAPES = (
    Message(
        "profile-missing",
        "error",
        r"has dynamic or shape inputs, but no optimization profile has been defined"
        r"|need profile|Called without an optimization profile",
        "The model has dynamic axes, but no profile gives their sizes.",
        _SHAPES,
        f"{ISSUES}1116",
    ),
    Message(
        "profile-input-missing",
        "error",
        r"(?<!\S)(?P<tensor>\S+): dynamic input is missing dimensions in profile (?P<number>\d+)",
        "Profile {number} has no shapes for the dynamic input {tensor}.",
        _SHAPES,
        f"{ISSUES}532",
    ),
    Message(
        "profile-order",
        "error",
        r"MIN ?<= ?OPT ?<= ?MAX|kMIN ?<= ?kOPT ?<= ?kMAX",
        "A profile has a min size above opt, or an opt size above max.",
        "Order the sizes of every axis: min ≤ opt ≤ max.",
        "https://github.com/NVIDIA/Stable-Diffusion-WebUI-TensorRT/pull/57",
    ),
    Message(
        "profile-static-axis",
        "error",
        r"(?<!\S)(?P<tensor>\S+): for dimension number (?P<axis>\d+) in profile (?P<number>\d+) "
        r"does not match network definition",
        "Profile {number} gives a different size for axis {axis} of {tensor} than the model, where "
        "it is fixed.",
        "Give the model's size, or export with this axis dynamic.",
        f"{ISSUES}939",
    ),
    Message(
        "profile-rank",
        "error",
        r"(?<!\S)(?P<tensor>\S+): number of dimensions is (?P<rank>\d+) but profile "
        r"(?P<number>\d+) has (?P<given>\d+)",
        "{tensor} has {rank} axes, but profile {number} gives sizes for {given}.",
        "Give a size for every axis, including the batch.",
        f"{ISSUES}939",
    ),
    Message(
        "shape-outside",
        "error",
        r"Supplied binding dimension (?P<shape>\[[^\]]*\]) for (?P<binding>\S+) exceed min ~ max"
        r"|does not satisfy any optimization profile",
        "An input's shape {shape} is outside every profile of the engine.",
        "Use shapes within a profile, or build with a profile that covers them.",
        f"{ISSUES}4011",
    ),
    Message(
        "profile-inconsistent",
        "error",
        r"values? for profile (?P<number>\d+) violate shape constraints"
        r"|Profile k\w+ values are not self-consistent"
        r"|M(?:in|ax) value of this profile is not valid",
        "The shapes of a profile are inconsistent with each other in the model.",
        "Inputs that share a dynamic axis need the same size for it; use the shapes of real "
        "samples.",
        f"{ISSUES}1947",
    ),
    Message(
        "shape-static",
        "error",
        r"Static dimension mismatch while setting input shape",
        "An input has a different size from the engine on a fixed axis.",
        "Use the engine's size, or export with this axis dynamic and rebuild.",
        _DYNAMIC,
    ),
    Message(
        "shape-default",
        "warning",
        r"Dynamic dimensions required for input: (?P<tensor>.+?), but no shapes were provided\. "
        r"Automatically overriding shape to: (?P<shape>\S+)"
        r"|Shape missing for input with dynamic shape: (?P<other>\S+?) ?Automatically setting "
        r"shape to: (?P<set>\S+)",
        "No shape was given for {tensor}{other}; trtexec chose {shape}{set}, and the engine runs "
        "only at that shape.",
        "Check the name of the input, and give --shapes, or --minShapes, --optShapes and "
        "--maxShapes.",
        f"{ISSUES}2208",
    ),
    Message(
        "shape-broadcast",
        "info",
        r"\b(?P<given>\w+Shapes) is being broadcasted to (?P<set>\w+Shapes) for tensor "
        r"(?P<tensor>.+)",
        "{set} of {tensor} are copied from {given}.",
        "",
        f"{ISSUES}3229",
    ),
    Message(
        "shape-unset",
        "error",
        r"all input dimensions (?:have not been|must be) specified|[Nn]ot all (?:input )?(?:shapes|"
        r"dimensions|bindings)[^.]*(?:specified|set)|Input shape.*not (?:been )?set",
        "The engine was run before all dynamic inputs had a shape.",
        "Set the shape of every dynamic input first.",
        _DYNAMIC,
    ),
    Message(
        "shape-output-type",
        "info",
        r"Output type must be INT32 for shape outputs",
        "A shape output of the model must be INT32.",
        "",
        f"{ISSUES}1516",
    ),
)
