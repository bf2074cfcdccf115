"""What runtimes compute inside their operators: as measured, and how to measure it.

A probe is a small model of one operator in FP16. Its FP32 original in ONNX Runtime, rounded to FP16
once at the end, is what sums in FP32 give; sums in FP16 round on the way, and give something else.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray
from onnx import parser

from halfwise.case import Built, FileRunner, Sample, Samples
from halfwise.emulation.runner import OnnxRuntime
from halfwise.errors import CaseError, RunFailed, UsageError
from halfwise.tensorrt.workers import configuration

Array = NDArray[Any]

_FILE = "profiles.json"
SHARE = 0.9
"""Least share of equal values: FP32 sums in another order differ in few roundings to FP16, and sums
of 1,024 values in FP16 are equal in less than half."""

_ROW = "T[64,1024] x"
_OPERATORS: Mapping[str, tuple[str, str]] = {
    "MatMul": ("T[16,1024] x, T[1024,16] w", "y = MatMul(x, w)"),
    "Gemm": ("T[16,1024] x, T[1024,16] w", "y = Gemm(x, w)"),
    "Conv": ("T[1,256,8,8] x, T[16,256,3,3] w", "y = Conv(x, w)"),
    "AveragePool": ("T[1,16,32,32] x", "y = AveragePool<kernel_shape = [32, 32]>(x)"),
    "GlobalAveragePool": ("T[1,64,32,32] x", "y = GlobalAveragePool(x)"),
    "ReduceSum": (_ROW, "a = Constant<value_ints = [1]>() y = ReduceSum(x, a)"),
    "ReduceMean": (_ROW, "y = ReduceMean<axes = [1]>(x)"),
    "ReduceL2": (_ROW, "y = ReduceL2<axes = [1]>(x)"),
    "Softmax": (_ROW, "y = Softmax(x)"),
    "LayerNormalization": ("T[64,1024] x, T[1024] w", "y = LayerNormalization(x, w)"),
}
"""Inputs and nodes; T is the type."""
KEPT = {
    "kept product": "y = Cast<to = 10>(p)",
    "kept product and activation": "s = Sigmoid(p) y = Cast<to = 10>(s)",
}
"""What follows a product in FP32 whose weights FP16 cannot hold, between FP16 nodes."""
_SUBNORMALS = "subnormals"
WEIGHTS = np.random.default_rng(1).uniform(1e5, 2e5, (32, 16)).astype(np.float32)
"""Beyond FP16's range."""


@dataclass(frozen=True)
class Profile:
    """What a runtime was seen to do.

    Attributes:
        version: Of its software.
        date: Of the measurement, ISO 8601.
        facts: By operator, whether sums inside are in FP32; by `KEPT`, whether the product is
            computed in FP32; "subnormals", whether they are kept. Those that it refuses lack.
    """

    version: str
    date: str
    facts: Mapping[str, bool]

    @property
    def sums(self) -> Literal["fp32", "fp16"]:
        """The lowest format of sums."""
        low = (not self.facts[name] for name in self.facts.keys() & _OPERATORS)
        return "fp16" if any(low) else "fp32"


def _read(path: Path) -> dict[str, Profile]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return {name: Profile(**one) for name, one in content.items()}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise UsageError(
            f"{path} cannot be read: {error}.",
            "Delete it; doctor --probe makes it anew.",
        ) from error


def profiles() -> dict[str, Profile]:
    """Return the profiles by the name of the runner; the user's own replace those of halfwise.

    Raises:
        UsageError: the user's cannot be read.
    """
    found: dict[str, Profile] = {}
    for path in (Path(__file__).with_name(_FILE), configuration().with_name(_FILE)):
        if path.is_file():
            found |= _read(path)
    return found


def lowest_sums_of(runners: Iterable[FileRunner]) -> Literal["fp32", "fp16"]:
    """Return the lowest format of sums in runners; those without a profile are taken for FP32."""
    names = {runner.name for runner in runners}
    known = profiles() if names else {}
    low = (known[name].sums == "fp16" for name in names & known.keys())
    return "fp16" if any(low) else "fp32"


def store(found: Mapping[str, Profile], path: Path | None = None) -> Path:
    """Add profiles to the user's own, or to the file at `path`; return the file."""
    path = path or configuration().with_name(_FILE)
    whole = (_read(path) if path.is_file() else {}) | dict(found)
    content = {name: asdict(profile) for name, profile in whole.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return path


def probe(runner: FileRunner) -> Profile:
    """Return what a runner does, from small models; a builder shows only what it keeps in FP32.

    Raises:
        BackendMissing: it cannot be asked.
    """
    version, facts = runner.version, dict[str, bool]()
    for name, low, original in _probes():
        if name in KEPT or runner.runs:
            values = _values(low, name)
            with suppress(CaseError, RunFailed):
                facts[name] = _equals(runner, low, original, values)
    return Profile(version, datetime.now(UTC).date().isoformat(), facts)


def _equals(runner: FileRunner, low: ir.Model, original: ir.Model, values: Sample) -> bool:
    """Return whether a runner gives what FP32 does, rounded once, or keeps what is FP32."""
    made = runner.run(low, Samples(("probe",), lambda _: values))
    if isinstance(made, Built):
        return not made.folded
    wide = {name: array.astype(np.float32) for name, array in values.items()}
    exact = OnnxRuntime().run(original, Samples(("probe",), lambda _: wide))
    return bool(np.mean(made[0]["y"] == exact[0]["y"].astype(np.float16)) >= SHARE)


def _probes() -> Iterator[tuple[str, ir.Model, ir.Model]]:
    """Yield each probe: its name, the model in FP16, and the original in FP32."""
    for name, (inputs, nodes) in _OPERATORS.items():
        yield name, _model(inputs, nodes, "float16"), _model(inputs, nodes, "float")
    for name, end in KEPT.items():
        nodes = f"r = Relu(x) c = Cast<to = 1>(r) p = MatMul(c, w) {end}"
        low = _model("T[64,32] x", nodes, "float16", WEIGHTS)
        yield name, low, _model("T[64,32] x", nodes.replace("10", "1"), "float", WEIGHTS)
    add = "T[64] x", "y = Add(x, x)"
    yield _SUBNORMALS, _model(*add, "float16"), _model(*add, "float")


def _model(inputs: str, nodes: str, kind: str, weights: Array | None = None) -> ir.Model:
    """Return a model of an operator, or of a product with FP32 weights, in a type."""
    text = f'<ir_version: 8, opset_import: ["" : 17]> g ({inputs}) => (T y) {{ {nodes} }}'
    proto = parser.parse_model(text.replace("T[", f"{kind}[").replace("T y", f"{kind} y"))
    for number, node in enumerate(proto.graph.node):
        node.name = f"{node.op_type} {number}"
    if weights is not None:
        proto.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    return ir.serde.deserialize_model(onnx.shape_inference.infer_shapes(proto))


def _values(model: ir.Model, name: str) -> dict[str, Array]:
    """Return inputs of a probe, positive and the same each time."""
    generator = np.random.default_rng(0)
    scale = 1e-6 if name in (*KEPT, _SUBNORMALS) else 1.0
    return {
        str(v.name): (generator.uniform(0.5, 1.5, v.shape.numpy()) * scale).astype(np.float16)
        for v in model.graph.inputs
        if v.shape is not None
    }
