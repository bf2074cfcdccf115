"""Messages of the ONNX parser, of the builder (kernels, internal faults) and of the runtime."""

from halfwise.tensorrt.log.findings import GUIDE, ISSUES, Message

_ONNX = "https://github.com/onnx/onnx-tensorrt/issues/"
_OPERATORS = "https://github.com/onnx/onnx-tensorrt/blob/main/docs/operators.md"

PARSING = (
    Message(
        "plugin-missing",
        "error",
        r"getPluginCreator(?:\(\))? could not find [Pp]lugin:? (?P<op>\S+)"
        r"|Plugin not found, are the plugin name, version, and namespace correct",
        "The parser does not support the operator {op}, and no plugin of that name is registered.",
        "Load the plugin's library (trtexec: --plugins), or rewrite the operator.",
        f"{_ONNX}800",
    ),
    Message(
        "operator-plugin",
        "info",
        r"No importer registered for op: (?P<op>\w+)",
        "The parser does not know the operator {op} and looks for a plugin of that name.",
        "",
        f"{ISSUES}2625",
    ),
    Message(
        "branch-shapes",
        "error",
        r"(?<!\S)(?P<layer>\S+?)(?:_OutputLayer)?: IIfConditionalOutputLayer inputs must have "
        r"the same shape",
        "The two branches of an If return different shapes, which this version of TensorRT "
        "rejects.",
        "Fold the condition (`polygraphy surgeon sanitize --fold-constants`), or use TensorRT 9 "
        "or later.",
        f"{ISSUES}1731",
    ),
    Message(
        "plugin-unregistered",
        "error",
        r"IPluginCreator not found in Plugin Registry",
        "The engine uses a plugin that this process has not loaded.",
        "Load the plugin's library or TensorRT's own plugins (init_libnvinfer_plugins) before "
        "the engine.",
        f"{ISSUES}1913",
    ),
    Message(
        "plugin-twice",
        "warning",
        r"plugin creator of (?P<op>\S+) exists already",
        "Two libraries register a plugin for {op}.",
        "Load only one of them, or do not serialise it with the engine.",
        "https://github.com/laugh12321/TensorRT-YOLO/issues/100",
    ),
    Message(
        "shape-tensor-rank",
        "error",
        r"(?<![^\s(])(?P<layer>[^\s(]+): IShuffleLayer applied to shape tensor must have",
        "A shape is computed as a tensor of more than one axis, as exporters do for Pad.",
        "Fold constants (`polygraphy surgeon sanitize --fold-constants`), export with fixed "
        "padding, or use TensorRT 9 or later.",
        f"{ISSUES}2618",
    ),
    Message(
        "constant-input",
        "error",
        r"only supports (?:input )?(?P<what>.+?) as an initializer"
        r"|\b(?P<input>\w+) must be an initializer",
        "This version of TensorRT needs {what}{input} of an operator to be a constant.",
        "Fold constants (`polygraphy surgeon sanitize --fold-constants`), or use a later version.",
        _OPERATORS,
    ),
    Message(
        "broadcast",
        "error",
        r"broadcast dimensions must be conformable|broadcast with incompatible dimensions",
        "The shapes of an operator's two inputs cannot be broadcast together.",
        "Infer shapes (`polygraphy surgeon sanitize --toposort --fold-constants`), and export with "
        "the shapes you use.",
        f"{ISSUES}1677",
    ),
    Message(
        "large-model",
        "info",
        r"Reading dangerously large protocol message|The total number of bytes read was \d+",
        "The model is large.",
        "",
        f"{ISSUES}3734",
    ),
    Message(
        "file-missing",
        "error",
        r"Could not open file (?P<file>\S.*)",
        "The file {file} does not exist or cannot be read.",
        "Check the path and, in a container, that it is mounted.",
        "https://github.com/linghu8812/tensorrt_inference/issues/163",
    ),
    Message(
        "newer-onnx",
        "warning",
        r"ONNX model has a newer ir_version \((?P<version>[\d.]+)\)",
        "The model's IR version {version} is newer than this parser.",
        "If parsing fails, use a later TensorRT, or export with an older onnx.",
        f"{ISSUES}203",
    ),
    Message(
        "weights-unreadable",
        "error",
        r"convert_?[oO]nnx_?[wW]eights\(",
        "The parser cannot read a constant of the model.",
        "This version may lack its type, or its external data may be missing: keep those files "
        "next to the model.",
        f"{_ONNX}633",
    ),
    Message(
        "plugin-found",
        "info",
        r"Successfully created plugin: (?P<op>\S+)|Searching for plugin: (?P<searched>[^,\s]+)",
        "The parser uses a plugin for the operator {op}{searched}.",
        "",
        "https://github.com/open-mmlab/mmdeploy/issues/1305",
    ),
    Message(
        "not-parsed",
        "error",
        r"Failed to parse (?:the )?(?:onnx|ONNX)|Parsing model failed"
        r"|Could not parse ONNX correctly|Network must have at least one output"
        r"|Fail(?:ed|ure)? (?:while )?pars(?:ing|e) (?:the )?(?:ONNX|onnx|\S+\.onnx)",
        "Parsing failed, so there is no network to build.",
        "The parser's errors name the node and the reason.",
        f"{ISSUES}814",
    ),
)


_FAULT = "This is a bug in TensorRT: try another version, FP32, or other shapes."

BUILDING = (
    Message(
        "no-kernel",
        "error",
        r"[Cc]ould not find any implementation for node (?P<layer>.+)",
        "TensorRT has no kernel for a block with these types.",
        "Constrain more of the block to FP32, or less; allow a larger workspace; or use a later "
        "version. `halfwise fix --target tensorrt` moves the boundary automatically.",
        f"{ISSUES}2035",
    ),
    Message(
        "tactic-cache",
        "warning",
        r"Cache result detected as invalid for node: (?P<layer>.+?), LayerImpl",
        "A kernel from the timing cache does not work for a layer, so its kernels are timed again.",
        "Harmless. If it recurs, delete the timing cache.",
        f"{ISSUES}3336",
    ),
    Message(
        "no-format",
        "error",
        r"(?<![^()])(?P<layer>[^()]+?): could not find any supported formats consistent with "
        r"input/output",
        "TensorRT finds no data types and layouts that fit all inputs and outputs of a layer.",
        "Remove type constraints around it, or use another version. If it is a plugin, check the "
        "types it declares.",
        f"{ISSUES}4217",
    ),
    Message(
        "myelin-shapes",
        "warning",
        r"Myelin graph with multiple dynamic values may have poor performance|\(# \d+ \(SHAPE ",
        "A fused block has several dynamic axes and is not optimised for them.",
        "Fix the axes that do not vary, or give a profile for each shape.",
        f"{ISSUES}2115",
    ),
    Message(
        "myelin-tactic",
        "warning",
        r"Skipping tactic ?\w* due to .*[Mm]yelin",
        "TensorRT's compiler for fused blocks (Myelin) failed with one tactic for a block.",
        "Harmless if another tactic works; otherwise an error follows.",
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
        "Kernels were skipped because they failed while being timed.",
        "Harmless if another kernel works; otherwise an error follows.",
        f"{ISSUES}3748",
    ),
    Message(
        "reformatting",
        "warning",
        r"No implementation obeys reformatting-free rules",
        "The engine converts the layout or type of its inputs or outputs, which costs some time.",
        "The result is unaffected; other --inputIOFormats and --outputIOFormats may avoid it.",
        f"{ISSUES}2136",
    ),
    Message(
        "not-built",
        "error",
        r"[Ee]ngine could not be created|Building engine failed|Failed to create engine"
        r"|Engine set ?up failed|Engine creation failed|Build serialized network failed"
        r"|Invalid Engine\.|Assertion engine(?:Ptr)? != nullptr failed|^FAILED TensorRT"
        r"|Failed to build (?:serialized )?(?:network|engine)",
        "The build produced no engine.",
        "The other errors say why; if there are none, build again with --verbose.",
        f"{GUIDE}reference/troubleshooting-error-messages.html",
    ),
    Message(
        "not-valid",
        "error",
        r"Network validation failed|(?<!\S)(?P<layer>\S+) failed validation",
        "The network is not valid.",
        "The errors before this one say where.",
        f"{ISSUES}1516",
    ),
    Message(
        "assertion",
        "error",
        r"Error Code \d+: Internal Error \(Assertion |Unexpected exception"
        r"|Unexpected Internal Error"
        r"|(?i:^\S+: \S+:\d+: (?:.*: )?assertion\b.*failed)",
        "An internal check of TensorRT failed.",
        _FAULT,
        f"{ISSUES}2453",
    ),
)


_REBUILD = "Rebuild the engine with the TensorRT version that runs it."

ENGINES = (
    Message(
        "engine-damaged",
        "error",
        r"expecting library version \S+ got 0\.0\.0"
        r"|Size specified in header does not match archive size"
        r"|Mismatch between allocated memory size and expected size of serialized engine"
        r"|plan->header\.size|blobSize > numericCast",
        "The engine file is damaged or truncated, or is not an engine.",
        "Compare its size and hash with the original (copied in text mode?), or rebuild it.",
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
        "loaded library.",
        f"{ISSUES}2041",
    ),
    Message(
        "engine-gpu",
        "error",
        r"incompatible device, expecting compute (?P<expected>[\d.]+\d) got compute "
        r"(?P<got>[\d.]+\d)",
        "The engine was built for compute capability {got}; this GPU has {expected}.",
        "Build on the GPU that runs the engine.",
        f"{ISSUES}2176",
    ),
    Message(
        "engine-other-gpu",
        "warning",
        r"Using an engine plan file across different models of devices is not recommended",
        "The engine was built on another GPU model: it may be slower here, and its errors may "
        "differ from those that were judged.",
        "Build on the GPU that runs the engine.",
        f"{ISSUES}2900",
    ),
    Message(
        "file-damaged",
        "error",
        r"[Mm]agic ?[Tt]ag(?:Read)?|kMAGIC_TAG|Failed to read header from the stream",
        "The header of an engine or a timing cache is not the one this TensorRT writes: the file "
        "is damaged, truncated, empty, or from another version or system.",
        "Delete the timing cache, or rebuild the engine with the TensorRT version that runs it.",
        f"{ISSUES}3566",
    ),
    Message(
        "timing-cache",
        "warning",
        r"(?i)timing ?cache (?:will not be used|.*(?:mismatch|invalid|incompatible|different))"
        r"|invalid timing cache|myelinCache\.h::deserializeFromBuffer",
        "The timing cache does not match this GPU or version, so kernels are timed again.",
        "Use a separate timing cache for each GPU and version.",
        f"{ISSUES}1413",
    ),
    Message(
        "timing-cache-kept",
        "warning",
        r"did not take the timing cache .*\bIt is (?P<aside>.+) now",
        "The given timing cache was not used: it was renamed to {aside}, and a new one was "
        "written in its place.",
        "Use a separate timing cache for each GPU and version.",
        f"{ISSUES}1413",
    ),
    Message(
        "timing-cache-local",
        "info",
        r"Local timing cache in use|Global timing cache in use",
        "Kernel timings are kept for this build only, unless a timing cache is given.",
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
