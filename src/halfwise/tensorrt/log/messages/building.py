"""Messages of the builder about kernels, and about faults inside TensorRT."""

from halfwise.tensorrt.log.messages.message import GUIDE, ISSUES, Message

_FAULT = "A fault of TensorRT: try another version, FP32, or other shapes."

BUILDING = (
    Message(
        "no-kernel",
        "error",
        r"[Cc]ould not find any implementation for node (?P<layer>.+)",
        "TensorRT has no kernel for a block of these types.",
        "Constrain more of the block to FP32, or less; allow a larger workspace, or take a later "
        "version. `halfwise fix --target tensorrt` moves the border by itself.",
        f"{ISSUES}2035",
    ),
    Message(
        "tactic-cache",
        "warning",
        r"Cache result detected as invalid for node: (?P<layer>.+?), LayerImpl",
        "A kernel from the timing cache does not work for a layer, so its kernels are timed anew.",
        "Harmless; delete the timing cache if it comes again.",
        f"{ISSUES}3336",
    ),
    Message(
        "no-format",
        "error",
        r"(?<![^()])(?P<layer>[^()]+?): could not find any supported formats consistent with "
        r"input/output",
        "TensorRT finds no data types and layouts that fit all inputs and outputs of a layer.",
        "Free the types around it, or take another version; of a plugin, check the types that it "
        "declares.",
        f"{ISSUES}4217",
    ),
    Message(
        "myelin-shapes",
        "warning",
        r"Myelin graph with multiple dynamic values may have poor performance|\(# \d+ \(SHAPE ",
        "A fused block has several dynamic axes, for which it is not optimised.",
        "Make axes fixed that do not vary, or give a profile for each shape.",
        f"{ISSUES}2115",
    ),
    Message(
        "myelin-tactic",
        "warning",
        r"Skipping tactic ?\w* due to .*[Mm]yelin",
        "TensorRT's compiler for fused blocks (Myelin) failed on one way to build a block.",
        "Harmless where another way is found; otherwise an error follows.",
        f"{ISSUES}2232",
    ),
    Message(
        "myelin",
        "error",
        r"Error Code \d+: Myelin \(|Myelin internal error|MyelinCheckException"
        r"|\bmyelin\w*\.(?:cpp|h)|DCHECK\(|mha_fusion\.cpp",
        "TensorRT's compiler for fused blocks (Myelin) failed.",
        _FAULT,
        f"{ISSUES}2977",
    ),
    Message(
        "cask",
        "error",
        r"Error Code \d+: Cask|\bcask\w*\.(?:cpp|h)|Cask \w+ isConsistent|Cask Error",
        "TensorRT's library of convolutions and matrix products (Cask) failed.",
        _FAULT,
        f"{ISSUES}4641",
    ),
    Message(
        "tactic-failed",
        "warning",
        r"Skipping tactic ?\w* due to (?:exception|kernel)",
        "Kernels were passed over, because they failed when they were timed.",
        "Harmless where another kernel is found; otherwise an error follows.",
        f"{ISSUES}3748",
    ),
    Message(
        "reformatting",
        "warning",
        r"No implementation obeys reformatting-free rules",
        "The engine changes the layout or type of its inputs or outputs, which costs some time.",
        "Harmless for the result; other --inputIOFormats and --outputIOFormats may save it.",
        f"{ISSUES}2136",
    ),
    Message(
        "not-built",
        "error",
        r"[Ee]ngine could not be created|Building engine failed|Failed to create engine"
        r"|Engine set ?up failed|Engine creation failed|Build serialized network failed"
        r"|Invalid Engine\.|Assertion engine(?:Ptr)? != nullptr failed|^FAILED TensorRT"
        r"|Failed to build (?:serialized )?(?:network|engine)",
        "No engine came out of this build.",
        "The other errors say why; where there is none, build again with --verbose.",
        f"{GUIDE}reference/troubleshooting-error-messages.html",
    ),
    Message(
        "not-valid",
        "error",
        r"Network validation failed|(?<!\S)(?P<layer>\S+) failed validation",
        "The network contradicts itself.",
        "The errors before it say where.",
        f"{ISSUES}1516",
    ),
    Message(
        "assertion",
        "error",
        r"Error Code \d+: Internal Error \(Assertion |Unexpected exception"
        r"|Unexpected Internal Error"
        r"|(?i:^\S+: \S+:\d+: (?:.*: )?assertion\b.*failed)",
        "A check inside TensorRT failed.",
        _FAULT,
        f"{ISSUES}2453",
    ),
)
