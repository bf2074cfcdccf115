"""What runtimes compute inside their operators: as measured, and how to measure it.

A probe is a small model. Its FP32 original in ONNX Runtime, rounded to FP16 once at the end, is
what sums in FP32 give; sums in FP16 round on the way, and give something else. A builder computes
nothing, but lists its kernels.
"""

import json
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import onnx_ir as ir
from msgspec import Struct
from msgspec.structs import asdict
from numpy.typing import NDArray
from onnx import parser

from halfwise.case import Built, FileRunner, Sample, Samples
from halfwise.emulation.runner import OnnxRuntime
from halfwise.errors import CaseError, RunFailed, UsageError
from halfwise.records import replace
from halfwise.targets.runners import InRtx
from halfwise.tensorrt.workers import configuration

Array = NDArray[Any]

_FILE = "profiles.json"
SHARE = 0.9
"""Least share of equal values: FP32 sums in another order differ in few roundings to FP16, and sums
of 1,024 values in FP16 are equal in less than half."""
WEIGHTS = np.random.default_rng(1).uniform(1e5, 2e5, (32, 16)).astype(np.float32)
"""Beyond FP16's range."""
_CONSTANTS = {"w": WEIGHTS, "k": WEIGHTS.T.reshape(16, 32, 1, 1).copy(), "b": WEIGHTS[0] / 1e5}
"""Of kept products: weights, the same as a convolution's, and a bias."""
_CONVERTING = re.compile(r"__myl_(Resh|Move|Tran)*Cast")
"""Names of generated kernels that convert what they read, before they compute."""


class _Probe(Struct, frozen=True):
    """A question to a runtime, as a model.

    Attributes:
        about: "inside": whether what is in FP16 is computed in FP32. "kept": whether a product is
            computed in FP32 whose weights FP16 cannot hold. "fused": whether all is one kernel, or
            gives other numbers than node by node. "numbers": whether they are those of FP32.
        inputs: Its inputs, where T is the low type.
        nodes: Its nodes, where L is the number of that type.
        output: The type of its output, "y".
        opset: Its opset.
        low: The low type, as in ONNX's text.
    """

    about: Literal["inside", "kept", "fused", "numbers"]
    inputs: str
    nodes: str
    output: str = "T"
    opset: int = 17
    low: str = "float16"

    def model(self) -> ir.Model:
        """Return the model."""
        number = str(onnx.TensorProto.DataType.Value(self.low.upper()))
        text = (
            f'<ir_version: 10, opset_import: ["" : {self.opset}]> '
            f"g ({self.inputs}) => ({self.output} y) {{ {self.nodes} }}"
        )
        proto = parser.parse_model(re.sub(r"\bL\b", number, re.sub(r"\bT\b", self.low, text)))
        for i, node in enumerate(proto.graph.node):
            node.name = f"{node.op_type} {i}"
        if self.about == "kept":
            proto.graph.initializer.extend(
                onnx.numpy_helper.from_array(array, name) for name, array in _CONSTANTS.items()
            )
        return ir.serde.deserialize_model(onnx.shape_inference.infer_shapes(proto))

    def values(self, model: ir.Model) -> dict[str, Array]:
        """Return inputs, positive and the same each time."""
        generator = np.random.default_rng(0)
        scale = 1e-6 if self.about in ("kept", "numbers") else 1.0
        drawn = {
            v: scale * generator.uniform(0.5, 1.5, v.shape.numpy())
            for v in model.graph.inputs
            if v.shape is not None
        }
        return {str(v.name): a.astype(v.dtype.numpy()) for v, a in drawn.items() if v.dtype}


_ROW, _QKV = "T[64,1024] x", "T[1,8,128,64] q, T[1,8,64,128] k, T[1,8,128,64] v"
_WEIGHTED, _PRODUCT = f"{_ROW}, T[1024] w", "T[16,1024] x, T[1024,16] w"
_NORMED = "T[64,1024] c, T[1024] w, T[1024] b"
_NORM = (
    "m = ReduceMean<axes = [1]>(c) d = Sub(c, m) t = Constant<value_float = 2.0>() "
    "p = CastLike(t, c) q = Pow(d, p) v = ReduceMean<axes = [1]>(q) "
    "u = Constant<value_float = 0.001>() e = CastLike(u, c) f = Add(v, e) r = Sqrt(f) "
    "n = Div(d, r) s = Mul(n, w)"
)
_ATTENTION = "p = MatMul(q, k) s = Softmax(p) y = MatMul(s, v)"
_X, _FP32, _END = "T[64,32] x", "i = Relu(x) c = Cast<to = 1>(i)", "y = Cast<to = L>(p)"
_SOFTMAX = "o = Softmax(p) s = Cast<to = L>(o) y = MatMul(s, v)"
PROBES: Mapping[str, _Probe] = {
    "MatMul in FP32": _Probe("inside", _PRODUCT, "y = MatMul(x, w)"),
    "Gemm in FP32": _Probe("inside", _PRODUCT, "y = Gemm(x, w)"),
    "Conv in FP32": _Probe("inside", "T[1,256,8,8] x, T[16,256,3,3] w", "y = Conv(x, w)"),
    "AveragePool in FP32": _Probe(
        "inside", "T[1,16,32,32] x", "y = AveragePool<kernel_shape = [32, 32]>(x)"
    ),
    "GlobalAveragePool in FP32": _Probe("inside", "T[1,64,32,32] x", "y = GlobalAveragePool(x)"),
    "ReduceSum in FP32": _Probe(
        "inside", _ROW, "a = Constant<value_ints = [1]>() y = ReduceSum(x, a)"
    ),
    "ReduceMean in FP32": _Probe("inside", _ROW, "y = ReduceMean<axes = [1]>(x)"),
    "ReduceL2 in FP32": _Probe("inside", _ROW, "y = ReduceL2<axes = [1]>(x)"),
    "Softmax in FP32": _Probe("inside", _ROW, "y = Softmax(x)"),
    "Erf in FP32": _Probe("inside", _ROW, "y = Erf(x)"),
    "LayerNormalization in FP32": _Probe("inside", _WEIGHTED, "y = LayerNormalization(x, w)"),
    "RMSNormalization in FP32": _Probe("inside", _WEIGHTED, "y = RMSNormalization(x, w)", opset=23),
    "GroupNormalization in FP32": _Probe(
        "inside",
        "T[1,60,7,9] x, T[60] w, T[60] b",
        "y = GroupNormalization<num_groups = 12>(x, w, b)",
        opset=21,
    ),
    "written-out norm in FP32": _Probe("inside", _NORMED, f"{_NORM} y = Add(s, b)"),
    "attention in FP32": _Probe("inside", _QKV, _ATTENTION),
    "kept product": _Probe("kept", _X, f"{_FP32} p = MatMul(c, w) {_END}"),
    "kept product, transposed": _Probe(
        "kept", _X, f"{_FP32} t = MatMul(c, w) p = Transpose(t) {_END}"
    ),
    "kept product between BF16": _Probe(
        "kept", _X, f"{_FP32} p = MatMul(c, w) {_END}", low="bfloat16"
    ),
    "kept convolution": _Probe("kept", "T[1,32,8,8] x", f"{_FP32} p = Conv(c, k) {_END}"),
    "kept product and activation": _Probe(
        "kept", _X, f"{_FP32} t = MatMul(c, w) p = Sigmoid(t) {_END}"
    ),
    "kept product and bias": _Probe("kept", _X, f"{_FP32} t = MatMul(c, w) p = Add(t, b) {_END}"),
    "kept Gemm with bias": _Probe("kept", _X, f"{_FP32} p = Gemm(c, w, b) {_END}"),
    "kept product with two readers in FP32": _Probe(
        "kept",
        _X,
        f"{_FP32} p = MatMul(c, w) t = ReduceMax(p) a = Cast<to = L>(p) o = Cast<to = L>(t) "
        "y = Min(a, o)",
    ),
    "kept product at an output": _Probe("kept", _X, f"{_FP32} y = MatMul(c, w)", "float"),
    "fused norm": _Probe("fused", _NORMED, f"{_NORM} y = Add(s, b)"),
    "fused norm in FP32": _Probe(
        "fused",
        f"{_ROW}, float[1024] w, float[1024] b",
        f"c = Cast<to = 1>(x) {_NORM} o = Add(s, b) y = Cast<to = L>(o)",
    ),
    "fused GELU in FP32": _Probe(
        "fused", _ROW, f"c = Cast<to = 1>(x) p = Gelu(c) {_END}", opset=20
    ),
    "fused attention": _Probe("fused", _QKV, _ATTENTION),
    "fused attention, Softmax in FP32": _Probe(
        "fused", _QKV, f"t = MatMul(q, k) p = Cast<to = 1>(t) {_SOFTMAX}"
    ),
    "fused attention, scores in FP32": _Probe(
        "fused", _QKV, f"c = Cast<to = 1>(q) d = Cast<to = 1>(k) p = MatMul(c, d) {_SOFTMAX}"
    ),
    "fused INT8 convolution and quantisation": _Probe(
        "fused",
        "int8[1,32,8,8] x, int8[32,32,3,3] w",
        "s = Constant<value_float = 0.1>() z = Constant<value = int8 {0}>() "
        "a = DequantizeLinear(x, s, z) c = DequantizeLinear(w, s, z) "
        "p = Conv(a, c) y = QuantizeLinear(p, s, z)",
        "int8",
    ),
    "subnormals": _Probe("numbers", "T[64] x", "y = Add(x, x)"),
}
"""By what is found out."""


class Profile(Struct, frozen=True):
    """What a runtime was seen to do.

    Attributes:
        version: Of its software.
        date: Of the measurement, ISO 8601.
        facts: By `PROBES`, whether it is so; None if it refuses the probe, or does not tell.
        ran: Whether it computed. Else its builder listed its kernels, which tell what is converted,
            and not in which format they add up.
    """

    version: str
    date: str
    facts: Mapping[str, bool | None]
    ran: bool

    @property
    def sums(self) -> Literal["fp32", "fp16"]:
        """The lowest format of sums."""
        low = (self.facts.get(n) is False for n, p in PROBES.items() if p.about == "inside")
        return "fp16" if self.ran and any(low) else "fp32"


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


def store(found: Mapping[str, Profile]) -> Path:
    """Add profiles to the user's own; return the file."""
    path = configuration().with_name(_FILE)
    whole = (_read(path) if path.is_file() else {}) | dict(found)
    content = {name: asdict(profile) for name, profile in whole.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return path


def probe(runner: FileRunner) -> Profile:
    """Return what a runner does, from small models.

    Raises:
        BackendMissing: it cannot be asked.
    """
    version, facts = runner.version, dict[str, bool | None]()
    for name, asked in PROBES.items():
        facts[name] = None
        with suppress(CaseError, RunFailed):
            if isinstance(runner, InRtx):
                facts[name] = _listed(runner, asked)
            else:
                facts[name] = _computed(runner, asked)
    return Profile(version, datetime.now(UTC).date().isoformat(), facts, ran=runner.runs)


def _listed(runner: InRtx, asked: _Probe) -> bool | None:
    """Return what the kernels of a builder tell."""
    build, folded = runner.build(asked.model(), ())
    named = [kernel for kernel in build.kernels if kernel.nodes]
    if asked.about == "kept":
        return not folded
    if asked.about == "fused":
        return len(named) == 1
    generated = [k.name for k in named if k.kind == "kgen" and k.name.startswith("__myl_")]
    if asked.about == "numbers" or not generated:
        return None
    return any(map(_CONVERTING.match, generated))


def _computed(runner: FileRunner, asked: _Probe) -> bool:
    """Return what outputs tell: those of FP32, rounded once, or those of nodes one by one."""
    low = asked.model()
    values = asked.values(low)
    given = _output(runner, low, values)
    if asked.about == "fused":
        low.graph.outputs.extend(v for n in low.graph for v in n.outputs if v.name != "y")
        return not np.array_equal(given, _output(runner, low, values))
    wide = {name: array.astype(np.float32) for name, array in values.items()}
    exact = _output(OnnxRuntime(), replace(asked, low="float").model(), wide)
    same = given.astype(np.float16) == exact.astype(np.float16)
    return bool(np.mean(same) >= SHARE)


def _output(runner: FileRunner, model: ir.Model, values: Sample) -> Array:
    made = runner.run(model, Samples(("probe",), lambda _: values))
    assert not isinstance(made, Built)
    return made[0]["y"]
