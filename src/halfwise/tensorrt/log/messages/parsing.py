"""Messages of the ONNX parser."""

from halfwise.tensorrt.log.messages.message import ISSUES, Message

_ONNX = "https://github.com/onnx/onnx-tensorrt/issues/"
_OPERATORS = "https://github.com/onnx/onnx-tensorrt/blob/main/docs/operators.md"

PARSING = (
    Message(
        "plugin-missing",
        "error",
        r"getPluginCreator(?:\(\))? could not find [Pp]lugin:? (?P<op>\S+)"
        r"|Plugin not found, are the plugin name, version, and namespace correct",
        "The parser has no operator {op}, and no plugin of that name is registered.",
        "Load the library with the plugin (--plugins with trtexec), or rewrite the operator.",
        f"{_ONNX}800",
    ),
    Message(
        "operator-plugin",
        "info",
        r"No importer registered for op: (?P<op>\w+)",
        "The parser does not know the operator {op}, and looks for a plugin of that name.",
        "",
        f"{ISSUES}2625",
    ),
    Message(
        "branch-shapes",
        "error",
        r"(?<!\S)(?P<layer>\S+?)(?:_OutputLayer)?: IIfConditionalOutputLayer inputs must have "
        r"the same shape",
        "The two branches of an If give different shapes, which this version of TensorRT refuses.",
        "Fold the condition (`polygraphy surgeon sanitize --fold-constants`), or take TensorRT 9 "
        "or later.",
        f"{ISSUES}1731",
    ),
    Message(
        "plugin-unregistered",
        "error",
        r"IPluginCreator not found in Plugin Registry",
        "The engine uses a plugin that this process has not loaded.",
        "Load the plugin's library, or TensorRT's own plugins (init_libnvinfer_plugins), before "
        "the engine.",
        f"{ISSUES}1913",
    ),
    Message(
        "plugin-twice",
        "warning",
        r"plugin creator of (?P<op>\S+) exists already",
        "Two libraries register a plugin for {op}.",
        "Load one of them, or leave it out of those that are serialised with the engine.",
        "https://github.com/laugh12321/TensorRT-YOLO/issues/100",
    ),
    Message(
        "shape-tensor-rank",
        "error",
        r"(?<![^\s(])(?P<layer>[^\s(]+): IShuffleLayer applied to shape tensor must have",
        "A shape is computed with more than one axis, as exporters do for Pad.",
        "Fold constants (`polygraphy surgeon sanitize --fold-constants`), export with fixed "
        "padding, or take TensorRT 9 or later.",
        f"{ISSUES}2618",
    ),
    Message(
        "constant-input",
        "error",
        r"only supports (?:input )?(?P<what>.+?) as an initializer"
        r"|\b(?P<input>\w+) must be an initializer",
        "This version of TensorRT needs {what}{input} of an operator to be a constant.",
        "Fold constants (`polygraphy surgeon sanitize --fold-constants`), or take a later version.",
        _OPERATORS,
    ),
    Message(
        "broadcast",
        "error",
        r"broadcast dimensions must be conformable|broadcast with incompatible dimensions",
        "Two inputs of an operator have shapes that do not fit each other.",
        "Infer shapes (`polygraphy surgeon sanitize --toposort --fold-constants`), and export with "
        "the shapes that you use.",
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
        "There is no file {file}, or it may not be read.",
        "Check the path; in a container, that it is mounted.",
        "https://github.com/linghu8812/tensorrt_inference/issues/163",
    ),
    Message(
        "newer-onnx",
        "warning",
        r"ONNX model has a newer ir_version \((?P<version>[\d.]+)\)",
        "The model's format {version} is newer than this parser.",
        "If it fails to parse, take a later TensorRT, or export with an older onnx.",
        f"{ISSUES}203",
    ),
    Message(
        "weights-unreadable",
        "error",
        r"convert_?[oO]nnx_?[wW]eights\(",
        "The parser cannot read a constant of the model.",
        "Its type may be one that this version lacks, or its external data may be missing: keep "
        "those files beside the model.",
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
        "The model was not parsed, so there is no network to build.",
        "The parser's errors name the node and say why.",
        f"{ISSUES}814",
    ),
)
