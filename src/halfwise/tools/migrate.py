"""`migrate`: from TensorRT 10's FP16 flag and layer constraints to a typed model.

TensorRT 11 and TensorRT for RTX have neither. A trtexec command, a log that begins with one, or a
Python script that builds with `tensorrt` says which layers are FP32; the model is written with
these nodes in FP32 and the others in FP16, and is judged.

Of a script, only loops that set precisions run, on stand-ins for the layers; names of its constants
and functions are known there, and any other name stands for the network.
"""

import ast
import builtins
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import combinations
from pathlib import Path
from typing import Any, Self, Unpack

from msgspec import Struct

from halfwise.declarations import Inputs, Options
from halfwise.errors import CaseError, UsageError
from halfwise.files import no_file
from halfwise.fixing.command import assigned
from halfwise.fixing.result import Result
from halfwise.fixing.rewrite import save_checked
from halfwise.graph.conversion import upcast
from halfwise.graph.model import Network, node_name
from halfwise.options.loading import load_model
from halfwise.progress import Silent, Watcher
from halfwise.records import NodeName
from halfwise.store import MODEL_FILE, new_folder
from halfwise.tensorrt.trtexec import constraints_of, split
from halfwise.tools.verify.command import verify

_WEAK = re.compile(
    r"--(onnx|fp16|bf16|int8|fp8|best|stronglyTyped|calib|precisionConstraints|layerPrecisions|"
    r"layerOutputTypes|explicitBatch|workspace|minTiming|avgTiming|buildOnly)(=|$)"
)
"""Options that say precision, or that trtexec 10 or 11 lacks."""
_OTHER = re.compile(r"--(bf16|int8|fp8|best|calib)(=|$)")
"""Those of them that ask for other types than FP16."""
_GIVE = "Give it: --model MODEL.onnx."
_LOGGED = re.compile(r"^&&&& RUNNING TensorRT\.trtexec.* # (.+)$", re.MULTILINE)
_KINDS = {
    "CONVOLUTION": "Conv", "DECONVOLUTION": "ConvTranspose", "MATRIX_MULTIPLY": "MatMul Gemm",
    "ELEMENTWISE": "Add Sub Mul Div Pow Max Min And Or Equal Less Greater", "SOFTMAX": "Softmax",
    "REDUCE": "ReduceMean ReduceSum ReduceMax ReduceMin ReduceProd ReduceL2 GlobalAveragePool",
    "UNARY": "Exp Log Sqrt Reciprocal Abs Neg Sin Cos Tan Ceil Floor Erf Not Round",
    "ACTIVATION": "Relu Sigmoid Tanh LeakyRelu Elu Selu Softplus Softsign Clip HardSigmoid Gelu",
    "NORMALIZATION": "LayerNormalization InstanceNormalization GroupNormalization",
    "SCALE": "BatchNormalization", "POOLING": "MaxPool AveragePool", "RESIZE": "Resize Upsample",
    "SHUFFLE": "Reshape Transpose Flatten Squeeze Unsqueeze", "CONCATENATION": "Concat Split",
    "GATHER": "Gather GatherND GatherElements", "SLICE": "Slice", "TOPK": "TopK ArgMax ArgMin",
    "SHAPE": "Shape Size", "CAST": "Cast", "CONSTANT": "Constant", "SELECT": "Where",
    "EINSUM": "Einsum", "IDENTITY": "Identity", "PADDING": "Pad",
}  # fmt: skip
"""The operators of which the parser makes a kind of layer, mainly."""
_TYPE_OF = {op: kind for kind, ops in _KINDS.items() for op in ops.split()}
_FP32 = ("float32", "FLOAT", "fp32")


class Migrated(Struct, frozen=True):
    """What became of a command or a script.

    Attributes:
        fp32: The nodes that it keeps in FP32, in graph order.
        command: The trtexec command that builds the typed model, with its other options.
        dropped: What of the source the model does not have, and why: sentences.
        result: The verdict on the typed model.
    """

    fp32: tuple[NodeName, ...]
    command: tuple[str, ...]
    dropped: tuple[str, ...]
    result: Result


def migrate(
    source: str | Path | Sequence[str],
    inputs: Inputs,
    *,
    out: str | Path,
    model: str | Path | None = None,
    watcher: Watcher | None = None,
    **options: Unpack[Options],
) -> Migrated:
    """Write the typed model that a weakly typed build meant, and judge it.

    Args:
        source: Words of a trtexec command, or a file: a log of trtexec, a shell script, or a Python
            script, which ends in .py.
        inputs: Samples, as for `verify`.
        out: Folder to create, with the model and the run of `verify`.
        model: The ONNX file; None for the one that the source names.
        watcher: Receives progress.
        options: Options of `verify`.

    Raises:
        HalfwiseError: the source names no model or no FP16, or see `verify`.
    """
    words, text = _read(source)
    named = next((word[7:] for word in words if word.startswith("--onnx=")), None)
    path = model or named or next(iter(re.findall(r"[\"']([^\"'\s]+\.onnx)[\"']", text)), None)
    if path is None:
        raise UsageError("SOURCE, a build command or script, names no ONNX file.", _GIVE)
    if model is None and not Path(path).is_file():
        raise CaseError(no_file(path), _GIVE)
    if not re.search(r"--fp16|--best|BuilderFlag\.FP16", " ".join((*words, text))):
        raise UsageError(
            "SOURCE, a build command or script, does not build in FP16.",
            "Only builds with the FP16 flag need this.",
        )
    network, _ = upcast(load_model(path, watcher or Silent()))
    chosen = _scripted(text, network) if text else _constrained(words, network)
    fp32 = tuple(name for name in map(node_name, network.nodes()) if name in chosen)
    out = Path(out)
    with new_folder(out) as folder:
        save_checked(assigned(network, fp32), folder / MODEL_FILE)
    result = verify(path, out / MODEL_FILE, inputs, out=out / "run", watcher=watcher, **options)
    rest = [word for word in words if word.startswith("--") and not _WEAK.match(word)]
    command = ("trtexec", f"--onnx={out / MODEL_FILE}", "--stronglyTyped", *rest)
    return Migrated(fp32, command, tuple(_dropped(words, network)), result)


def _read(source: str | Path | Sequence[str]) -> tuple[list[str], str]:
    """Return the words of a command, and the text of a Python script; one of both is empty."""
    words = [str(source)] if isinstance(source, str | Path) else list(source)
    file = Path(words[0])
    if len(words) > 1 or not file.is_file():
        return split(words), ""
    text = file.read_text(encoding="utf-8", errors="replace")
    if file.suffix == ".py":
        return [], text
    logged = _LOGGED.search(text)
    return split([logged[1] if logged else text]), ""


def _dropped(words: Sequence[str], network: Network) -> Iterator[str]:
    """Yield what of a command the typed model does not have."""
    for word in filter(_OTHER.match, words):
        yield f"{word} is not carried over: the typed model has only FP32 and FP16."
    names = list(_names(network).values())
    for item in constraints_of(words):
        if not any(_matches(item.name, name) for name in names):
            close = get_close_matches(item.name, names, 1)
            meant = f"; did you mean {close[0]}?" if close else "."
            yield f"{item.text} in {item.option} reaches no node{meant}"
        elif not set(item.types or ("",)) <= {"fp32", "fp16"}:
            yield f"{item.text} in {item.option} is neither fp32 nor fp16: its nodes are in FP16."


def _constrained(words: Sequence[str], network: Network) -> set[NodeName]:
    """Return the nodes that a command's constraints make FP32; names go before patterns.

    Raises:
        UsageError: an option gives a node two types. Which counts is chance in trtexec, as it
            looks patterns up in a hash table (sampleEngines.cpp, `findPlausible`).
    """
    items, chosen = constraints_of(words), set[NodeName]()
    for name, file_name in _names(network).items():
        reaching = [item for item in items if item.name == file_name]
        reaching = reaching or [item for item in items if _matches(item.name, file_name)]
        for one, other in combinations(reaching, 2):
            if one.option == other.option and one.types != other.types:
                raise UsageError(
                    f"Node {name} gets two types in {one.option}: {one.text} and {other.text}.",
                    "Leave one of them out.",
                )
        if reaching and set(reaching[-1].types or ()) == {"fp32"}:
            chosen.add(name)
    return chosen


def _matches(pattern: str, name: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), name) is not None


def _names(network: Network) -> dict[NodeName, str]:
    """Return each node's name, and the one in its file."""
    names = map(node_name, network.nodes())
    return {name: network.original_names.get(name, name) for name in names}


class _Word(str):
    """A name of the bindings, such as `trt.LayerType.SOFTMAX`: equal to its last part."""

    __slots__ = ()

    def __getattr__(self, name: str) -> "_Word":
        return _Word(name)

    def __call__(self, *_: object) -> "_Word":
        return self


@dataclass
class _Layer:
    """A stand-in for the layer of a node; it keeps the precision that a script gives it."""

    name: str
    type: _Word
    precision: object = ""
    num_outputs: int = 1
    outputs: list[object] = field(default_factory=list)

    def set_output_type(self, _: int, kind: object) -> None:
        self.outputs.append(kind)

    def get_output(self, _: int) -> "_Layer":
        return self

    dtype = _Word("float32")
    is_shape_tensor = is_execution_tensor = False

    @property
    def is_fp32(self) -> bool:
        return self.precision in _FP32 or any(kind in _FP32 for kind in self.outputs)


class _Layers:
    """A stand-in for the network, and for whatever holds it."""

    def __init__(self, layers: Sequence[_Layer]) -> None:
        self._layers, self.num_layers = layers, len(layers)

    def __getattr__(self, _: str) -> Self:
        return self

    def __iter__(self) -> Iterator[_Layer]:
        return iter(self._layers)

    def __getitem__(self, index: int) -> _Layer:
        return self._layers[index]

    get_layer = __getitem__


class _Scope(dict[str, Any]):
    """The names of a script: those that it defines; any other stands for the network."""

    def __init__(self, layers: _Layers) -> None:
        super().__init__()
        self._layers = layers
        self.defined: dict[str, Any] = {}

    def __missing__(self, name: str) -> object:
        if name in self.defined or name in vars(builtins):
            raise KeyError(name)
        return self._layers

    def run(self, part: ast.stmt, *names: Any) -> None:
        """Run a statement of the script with its definitions, and perhaps further names."""
        exec(compile(ast.Module([part], []), "script", "exec"), self.defined, *names)  # noqa: S102


def _scripted(text: str, network: Network) -> set[NodeName]:
    """Return the nodes that the loops of a Python script make FP32.

    Raises:
        CaseError: the script cannot be read, or a loop needs more than stand-ins have.
    """
    names = _names(network)
    types = {node_name(n): _Word(_TYPE_OF.get(n.op_type, n.op_type)) for n in network.nodes()}
    layers = {name: _Layer(names[name], types[name]) for name in names}
    scope, line = _Scope(_Layers(list(layers.values()))), 0
    try:
        statements = [part for part in ast.walk(ast.parse(text)) if isinstance(part, ast.stmt)]
        for part in filter(_defines, statements):
            line = part.lineno
            scope.run(part)
        aliases = (
            name for part in statements if isinstance(part, ast.Import) for name in part.names
        )
        bindings = (a for a in aliases if a.name == "tensorrt")
        scope.defined |= {a.asname or a.name: _Word(a.name) for a in bindings}
        for part in statements:
            if isinstance(part, ast.For) and _SETS.search(ast.unparse(part)):
                line = part.lineno
                scope.run(part, scope)
    except Exception as error:
        raise CaseError(
            f"The script cannot be followed, near line {line}: {type(error).__name__}: {error}.",
            "Give the nodes yourself: halfwise fix MODEL --inputs DATA --keep NODE -o RUN.",
        ) from error
    return {name for name, layer in layers.items() if layer.is_fp32}


_SETS = re.compile(r"\.precision =|set_output_type")
_LITERAL = (ast.Constant, ast.List, ast.Tuple, ast.Set, ast.Dict, ast.expr_context)


def _defines(part: ast.stmt) -> bool:
    """Return whether a statement defines what loops may need: a literal, a function, a module."""
    if isinstance(part, ast.Import):
        return {name.name for name in part.names} <= {"re", "fnmatch"}
    is_literal = isinstance(part, ast.Assign) and all(
        isinstance(inner, _LITERAL) for inner in ast.walk(part.value)
    )
    return is_literal or isinstance(part, ast.FunctionDef)
