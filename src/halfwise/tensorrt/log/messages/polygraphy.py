"""What Polygraphy says when it compares runners."""

from halfwise.tensorrt.log.messages.message import ISSUES, Message

_DEBUG = "https://github.com/NVIDIA/TensorRT/blob/main/tools/Polygraphy/how-to/debug_accuracy.md"
_JUDGE = (
    "Polygraphy allows 1e-5 by default, which FP16 cannot hold, and makes up random inputs unless "
    "it is given some. Judge on real inputs, by what your task allows: `halfwise verify`; "
    "`halfwise diagnose` finds the first cause."
)

POLYGRAPHY = (
    Message(
        "comparison-output",
        "error",
        r"FAILED \| Output: '(?P<tensor>[^']+)' \| Difference exceeds tolerance "
        r"\((?P<allowed>[^)]*)\)",
        "The runners' values of {tensor} differ by more than was allowed ({allowed}).",
        _JUDGE,
        _DEBUG,
    ),
    Message(
        "comparison",
        "error",
        r"FAILED \| (?:Mismatched outputs|Difference exceeds tolerance)"
        r"|Accuracy Summary .*Passed: (?P<passed>\d+)/(?!(?P=passed)\b)\d+",
        "The runners' outputs differ by more than was allowed.",
        _JUDGE,
        _DEBUG,
    ),
    Message(
        "tolerance-needed",
        "info",
        r"Minimum Required Tolerance: .*\[abs=(?P<abs>[^\]]+)\] OR \[rel=(?P<rel>[^\]]+)\]",
        "The outputs would count as equal with an absolute tolerance of {abs}, or a relative one "
        "of {rel}.",
        "",
        _DEBUG,
    ),
    Message(
        "shape-default",
        "warning",
        r"Input tensor: (?P<tensor>\S+) .*No shapes provided; Will use shape: "
        r"(?P<shape>\[[^\]]*\])",
        "No shape was given for {tensor}; Polygraphy took {shape}, and the engine runs at no "
        "other.",
        "Give --trt-min-shapes, --trt-opt-shapes and --trt-max-shapes, and real inputs "
        "(--load-inputs).",
        f"{ISSUES}2208",
    ),
)
