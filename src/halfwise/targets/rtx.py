"""TensorRT for RTX: its parser and its builder, ahead of time, on a machine without a GPU.

What an engine computes in which type is read from the kernels that the builder logs.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Literal

import onnx
from msgspec import Struct
from onnx import TensorProto

from halfwise.graph.protobufs import graphs_in
from halfwise.scratch import scratch
from halfwise.targets.worker import Crashed, Worker

_WORKER = Path(__file__).with_name("rtx_worker.py")

Profile = tuple[Sequence[int], Sequence[int], Sequence[int]]
"""The least, the usual and the largest shape of an input; of a shape input, its values."""
_KERNEL = re.compile(
    r"Name: (?P<name>.*?), LayerType: (?P<kind>\w+), Inputs: (?P<inputs>.*?)"
    r"(?:, Constants: (?P<constants>.*?))?, Outputs: (?P<outputs>.*?)"
    r"(?:, TacticName: .*?)?(?:, StreamId: \d+)?, Metadata: (?P<metadata>.*)"
)
_TENSOR = re.compile(r"\{ Name: (.*?), Dimensions: \[([^\]]*)\].*?, Datatype: (\w+)")
_NODE = re.compile(
    r"\[ONNX Layer: (.*?)(?: \| .*? \((?:then_branch|else_branch|body)\) \| .*?)?\]"
    r"(?=\[ONNX|\s|$)"
)
"""Of a node in a body, the log has the graph and the node that holds it, too."""

PRODUCTS = ("MatMul", "Gemm", "Einsum", "Conv", "ConvTranspose")
"""Operators whose weights a builder may round; a list of its own, as judges share no rule."""
LOW = {"Half", "BFloat16"}
BYTES = {"Half": 2, "BFloat16": 2, "Int8": 1, "UInt8": 1, "Bool": 1, "FP8": 1, "Int64": 8}
"""Bytes per element of the builder's types; of all others, four."""
_COMPUTING = {"gemm", "correlation", "deconvolution", "runtime_fusion"}


class Tensor(Struct, frozen=True):
    """A tensor that a kernel reads or writes.

    Attributes:
        name: The builder's name.
        shape: Its dimensions, −1 where they depend on the inputs.
        dtype: The builder's name of its type, such as "Float", "Half", "BFloat16" or "Int8".
    """

    name: str
    shape: tuple[int, ...]
    dtype: str


class Kernel(Struct, frozen=True):
    """A kernel of an engine.

    Attributes:
        kind: The builder's kind, such as "gemm", "correlation" (convolutions), "kgen" (generated
            elementwise code) or "runtime_fusion".
        name: The builder's name, which lists what is fused in it.
        inputs: What it reads.
        constants: What it holds: weights, and the factors of a product's epilogue.
        outputs: What it writes.
        nodes: Names of the ONNX nodes in it.
    """

    kind: str
    name: str
    inputs: tuple[Tensor, ...]
    constants: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    nodes: tuple[str, ...]

    @property
    def multiplies(self) -> bool:
        """Whether it is of a kind that computes products."""
        return self.kind in _COMPUTING or "mha" in self.name

    @property
    def low(self) -> bool:
        """Whether a product in it has only FP16 or BF16 operands.

        Constants of less than two dimensions are biases and the scales of the epilogue, which stay
        FP32 beside FP16 weights.
        """
        operands = (*self.inputs, *(c for c in self.constants if len(c.shape) > 1))
        return {tensor.dtype for tensor in operands} <= LOW


class Refusal(Struct, frozen=True):
    """What the parser, the builder or the process said of a failure.

    Attributes:
        text: Its words.
        node: Name of the node; "" where none was named.
        operator: Its operator, "" likewise.
    """

    text: str
    node: str = ""
    operator: str = ""


class Build(Struct, frozen=True):
    """The outcome of a build.

    Attributes:
        parsed: Whether the parser took the model.
        engine: The serialised engine, None where none was built.
        errors: Why not, in the order in which they were told.
        warnings: What parser and builder warned of.
        kernels: The engine's kernels.
    """

    parsed: bool
    engine: bytes | None
    errors: tuple[Refusal, ...] = ()
    warnings: tuple[str, ...] = ()
    kernels: tuple[Kernel, ...] = ()

    @property
    def built(self) -> bool:
        """Whether there is an engine."""
        return self.engine is not None


class RtxBuilder(Worker):
    """Builds models with strong typing and without TF32, all in one process."""

    def __init__(self, command: Sequence[str]) -> None:
        """Take a command that starts a Python which has TensorRT for RTX."""
        super().__init__([*command, str(_WORKER)])

    def build(
        self,
        model: Path,
        sm: str = "SM86",
        shapes: Mapping[str, Profile] | None = None,
        *,
        seconds: float = 300,
    ) -> Build:
        """Return what becomes of a model.

        Args:
            model: An ONNX file; external weights lie beside it.
            sm: The compute capability to build for, SM75 to SM121.
            shapes: Shapes by input. An axis of another input that depends on the data is taken as
                1 to 8.
            seconds: A build that takes longer is given up, and has failed.
        """
        with scratch() as folder:
            log, engine = folder / "log", folder / "engine"
            request = {
                "model": str(model.resolve()),
                "sm": sm,
                "shapes": {name: list(map(list, s)) for name, s in (shapes or {}).items()},
                "log": str(log),
                "engine": str(engine),
            }
            try:
                answer = self.ask(request, seconds)
            except Crashed as crash:
                return Build(parsed=False, engine=None, errors=(Refusal(str(crash)),))
            return Build(
                parsed=answer["parsed"],
                engine=engine.read_bytes() if engine.exists() else None,
                errors=tuple(Refusal(**error) for error in answer["errors"]),
                warnings=tuple(answer["warnings"]),
                kernels=kernels(log.read_text(encoding="utf-8").splitlines()),
            )


def kernels(log: Iterable[str]) -> tuple[Kernel, ...]:
    """Return the kernels that a VERBOSE log lists under `Layers:`, in the engine's order.

    Needs `ProfilingVerbosity.DETAILED`; without it the log names no kernel.

    Raises:
        ValueError: A line of the list has another form.
    """
    return tuple(_kernel(line) for line in _listed(log))


def traffic(tensors: Iterable[Tensor]) -> dict[str, int]:
    """Return the bytes of tensors by the builder's type."""
    total = Counter[str]()
    for one in tensors:
        total[one.dtype] += prod(one.shape) * BYTES.get(one.dtype, 4)
    return dict(total)


def folded(kernels: Sequence[Kernel], model: onnx.ModelProto) -> tuple[str, ...]:
    """Return the products that a model has in FP32 and the engine computes from low operands.

    A builder may fold Cast → MatMul or Conv → Cast into one low kernel, whose weights it rounds:
    values beyond 65504 become infinite, small ones 0.

    Args:
        kernels: The kernels of the model's engine.
        model: The model that was built; every product has a name, also in bodies.

    Returns:
        Names of nodes with an FP32 output. A product that no kernel names is none of them: it was
        computed ahead.
    """
    graphs = [*graphs_in(onnx.shape_inference.infer_shapes(model).graph)]
    single = {
        value.name
        for graph in graphs
        for value in (*graph.value_info, *graph.output)
        if value.type.tensor_type.elem_type == TensorProto.FLOAT
    }
    nodes = (node for graph in graphs for node in graph.node)
    kept = [n.name for n in nodes if n.op_type in PRODUCTS and n.output[0] in single]
    return tuple(name for name in kept if _computed(kernels, name) == "low")


def _computed(kernels: Sequence[Kernel], node: str) -> Literal["low", "single", "ahead"]:
    named = [kernel for kernel in kernels if node in kernel.nodes]
    # Other kernels that name a product hold Casts and neighbours that were split from it.
    named = [kernel for kernel in named if kernel.multiplies] or named
    if not named:
        return "ahead"
    return "low" if all(kernel.low for kernel in named) else "single"


def _listed(log: Iterable[str]) -> Iterator[str]:
    inside = False
    for line in log:
        if line.strip() == "Layers:":
            inside = True
        elif line.startswith(("I/O Tensors", "Bindings")):
            inside = False
        elif inside and line.startswith("Name: "):
            yield line


def _kernel(line: str) -> Kernel:
    match = _KERNEL.match(line)
    if match is None:
        raise ValueError(f"no kernel: {line[:200]}")
    return Kernel(
        kind=match["kind"],
        name=match["name"],
        inputs=_tensors(match["inputs"]),
        constants=_tensors(match["constants"] or ""),
        outputs=_tensors(match["outputs"]),
        nodes=tuple(dict.fromkeys(_NODE.findall(match["metadata"]))),
    )


def _tensors(text: str) -> tuple[Tensor, ...]:
    return tuple(
        Tensor(name, tuple(int(d) for d in dimensions.split(",") if d.strip()), dtype)
        for name, dimensions, dtype in _TENSOR.findall(text)
    )
