"""Messages about engine files and timing caches."""

from halfwise.tensorrt.log.messages.message import GUIDE, ISSUES, Message

_REBUILD = "Build the engine again with the TensorRT that runs it."

ENGINES = (
    Message(
        "engine-damaged",
        "error",
        r"expecting library version \S+ got 0\.0\.0"
        r"|Size specified in header does not match archive size"
        r"|Mismatch between allocated memory size and expected size of serialized engine"
        r"|plan->header\.size|blobSize > numericCast",
        "The engine file is damaged or cut short, or is no engine.",
        "Compare its size and hash with the original (copied in text mode?), or build it again.",
        f"{ISSUES}1736",
    ),
    Message(
        "engine-version",
        "error",
        r"expecting library version (?P<expected>[\d.]+\d) got (?P<got>[\d.]+\d)",
        "The engine was built by TensorRT {got}; this is TensorRT {expected}.",
        _REBUILD,
        "https://github.com/NVIDIA/retinanet-examples/issues/314",
    ),
    Message(
        "engine-version",
        "error",
        r"Version tag does not match(?:.*Current Version: (?P<expected>\d+), Serialized Engine "
        r"Version: (?P<got>\d+))?",
        "The engine was built by another version of TensorRT.",
        f"{_REBUILD} Two versions may be installed: compare `tensorrt.__version__` with the "
        "library that is loaded.",
        f"{ISSUES}2041",
    ),
    Message(
        "engine-gpu",
        "error",
        r"incompatible device, expecting compute (?P<expected>[\d.]+\d) got compute "
        r"(?P<got>[\d.]+\d)",
        "The engine was built for compute capability {got}; this GPU has {expected}.",
        "Build it on the GPU that runs it.",
        f"{ISSUES}2176",
    ),
    Message(
        "engine-other-gpu",
        "warning",
        r"Using an engine plan file across different models of devices is not recommended",
        "The engine was built on another model of GPU: it may be slower here, and its errors are "
        "not those that were judged.",
        "Build it on the GPU that runs it.",
        f"{ISSUES}2900",
    ),
    Message(
        "file-damaged",
        "error",
        r"[Mm]agic ?[Tt]ag(?:Read)?|kMAGIC_TAG|Failed to read header from the stream",
        "An engine or a timing cache does not begin as this TensorRT writes them: it is damaged, "
        "cut short, empty, or of another version or system.",
        "Delete a timing cache; build an engine again with the TensorRT that runs it.",
        f"{ISSUES}3566",
    ),
    Message(
        "timing-cache",
        "warning",
        r"(?i)timing ?cache (?:will not be used|.*(?:mismatch|invalid|incompatible|different))"
        r"|invalid timing cache|myelinCache\.h::deserializeFromBuffer",
        "The timing cache does not fit this GPU or version, so kernels are timed anew.",
        "Give it a file of its own for each GPU and version.",
        f"{ISSUES}1413",
    ),
    Message(
        "timing-cache-kept",
        "warning",
        r"did not take the timing cache .*\bIt is (?P<aside>.+) now",
        "The timing cache that was given was not taken: it is {aside} now, and a new one was "
        "written in its place.",
        "Give it a file of its own for each GPU and version.",
        f"{ISSUES}1413",
    ),
    Message(
        "timing-cache-local",
        "info",
        r"Local timing cache in use|Global timing cache in use",
        "How kernels were timed is kept for this build only, unless a timing cache is given.",
        "",
        f"{ISSUES}2503",
    ),
    Message(
        "engine-refused",
        "error",
        r"Engine deserialization failed|Could not deserialize engine|Deserialize the cuda engine "
        r"failed|Serialization assertion|Serialization Error",
        "The engine was not loaded.",
        _REBUILD,
        f"{GUIDE}reference/troubleshooting-error-messages.html",
    ),
)
