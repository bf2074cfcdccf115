"""Compare the precisions that an engine's inspector shows with those requested.

The findings are cases that no log line or output reveals: a constraint that was not honoured, an
engine entirely in FP32 although FP16 was requested, TF32 in place of FP32, casts of a strongly
typed model that had no effect.

The names of data types and kernels are undocumented. The grammar here was inferred from names in
public logs and engines; where two readings were possible, it takes the one that fits all names:

* Data types, in engines of 8.x: `Row major linear FP32`, `Channel major FP16 format where channel
  % 8 == 0`; from 10.x on `Half`, `Float`, `BFloat16` (NVIDIA's trt-engine-explorer lists them,
  `trex/activations.py`). `N/A due to dynamic shapes` gives no type.
* XMMA kernels (`sm80_xmma_gemm_i8f32_i8i32_f32_tn_n`): formats of the data read and written, of
  operands and sums, and of the scaling. By its layer, the example reads INT8 and writes FP32;
  `f32f32_tf32f32_f32` is TF32, `f16f16_f16f32_f32` FP16 with FP32 sums. cuBLAS's
  `gemvx_f16f16_f32_f32` reads FP16, and so does `hmma_fprop_f16f16f32`.
* Kernels of cuDNN, cuBLAS and CUTLASS (`ampere_h16816cudnn`, `turing_fp16_s1688cudnn_fp16`,
  `cutlass_80_tensorop_s16816gemm_f16`): a letter for the format of sums (h, s, d, i), the shape of
  a tensor core's step, the operation. With h everything is FP16. With s and a shape, the name gives
  the operands' format, else the layer does; FP32 then means TF32, since tensor cores have no FP32.
  With s and no shape (`scudnn`, `sgemm`) no tensor core is used: FP32. `884` is Volta's, which
  supports only FP16. (CUTLASS documents the scheme in `media/docs/profiler.md`.)
* Kernels that Myelin generates (`__myl_CastMulSum_0x…`) name operations, not formats.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import product

from msgspec import Struct

from halfwise.graph.model import Network, node_name
from halfwise.graph.roles import Roles
from halfwise.records import (
    BuildConfig,
    EngineLayer,
    NodeName,
    NodePrecision,
    Precision,
    PrecisionProof,
    replace,
)
from halfwise.wording import count, listed

_DATA_TYPES = (
    ("bf16", r"bfloat16|bf16"),
    ("fp16", r"fp16|half|float16"),
    ("fp8", r"fp8|float8|e4m3|e5m2"),
    ("fp4", r"fp4|float4|e2m1"),
    ("fp64", r"fp64|double|float64"),
    ("complex", r"complex"),
    ("tf32", r"tf32"),
    ("fp32", r"fp32|float"),
    ("int8", r"(?<!u)int8"),
)
_OTHER_TYPE = re.compile(r"u?int(?:4|8|16|32|64)|bool")
FLOATS: dict[str, Precision] = {
    "fp32": "fp32",
    "tf32": "tf32",
    "fp16": "fp16",
    "bf16": "bf16",
    "fp8": "fp8",
    "fp4": "unknown",
    "fp64": "unknown",
    "complex": "unknown",
}
"""Precision of computing on a data type; "unknown" if `Precision` has no word for it."""

_SHORT = r"tf32|bf16|f16|f32|f64|i32|i8|u8|e4m3|e5m2"
_PRECISIONS: dict[str, Precision] = {
    **dict.fromkeys(("f32", "fp32", "float"), "fp32"),
    "tf32": "tf32",
    **dict.fromkeys(("f16", "fp16", "half"), "fp16"),
    "bf16": "bf16",
    **dict.fromkeys(("i8", "u8", "int8"), "int8"),
    **dict.fromkeys(("e4m3", "e5m2", "fp8"), "fp8"),
}
_LONG = r"fp16|bf16|tf32|fp32|int8"
_START, _END = r"(?<![A-Za-z0-9])", r"(?![A-Za-z0-9])"
_RUN = re.compile(rf"{_START}(?:{_SHORT})(?:_?(?:{_SHORT}))+{_END}")
_LETTER = re.compile(
    rf"{_START}(?:(?P<before>{_LONG})_)?(?P<sum>[hsid])(?P<step>\d+(?:x\d+x\d+)?)?"
    rf"(?P<within>tf32|bf16|f16)?(?:gemm|cudnn|conv|fprop)(?:_(?P<after>{_LONG}|{_SHORT}))?"
)
_WORD = re.compile(rf"{_START}(?:{_LONG}|fp8|half){_END}", re.IGNORECASE)
_PRODUCT = re.compile(
    r"conv(?!er)|gemm|gemv|matmul|matrix|fullyconnected|fusion|mha|attention|einsum|rnn|lstm",
    re.IGNORECASE,
)
_GENERATED_PRODUCT = re.compile(r"Fc(?![a-z])")

MOVES = frozenset(
    (
        *("reformat", "noop", "shuffle", "slice", "gather", "constant", "cast", "copy", "reshape"),
        *("concat", "concatenation", "padding", "identity", "signal", "wait", "shape_call"),
        *("shapehosttodevice", "devicetoshapehost", "trainstation", "train_station"),
    )
)
"""Types of layers, in lower case, that only copy or convert."""


def data_type(text: str) -> str:
    """Return the short name of a data type ("fp16", "int64", "bool"); "" if `text` has none."""
    lower = text.lower()
    if "n/a" in lower:
        return ""
    for name, pattern in _DATA_TYPES:
        if re.search(pattern, lower):
            return name
    match = _OTHER_TYPE.search(lower)
    return match[0] if match else ""


def is_product(kind: str, name: str, tactic: str) -> bool:
    """Return whether a layer may multiply matrices, and so may round FP32 data to TF32."""
    words = f"{kind} {name if name.startswith('_') else ''} {tactic}"
    return bool(_PRODUCT.search(words) or _GENERATED_PRODUCT.search(words))


def kernel_precision(tactic: str, operand: str) -> Precision | None:
    """Return the format of a kernel's operands by its name; None if the name does not give it.

    Args:
        tactic: Name of the kernel.
        operand: Data type of the layer's operands; "" if unknown.
    """
    if "tf32" in tactic:
        return "tf32"
    if run := _RUN.search(tactic):
        return _run_precision(run[0])
    if letter := _LETTER.search(tactic):
        named = letter["within"] or letter["after"] or letter["before"] or operand
        return _letter_precision(letter["sum"], letter["step"], named)
    words = {w.lower() for w in _WORD.findall(tactic)}
    return _PRECISIONS[words.pop()] if len(words) == 1 else None


def layer_precision(
    kind: str,
    name: str,
    types: tuple[Sequence[str], Sequence[str], str],
    tactic: str,
    *,
    tf32: bool,
) -> Precision:
    """Return a layer's precision from its type, name, data types and kernel.

    A fused block of 8.x (type "Myelin") is unknown: data types at its border say nothing about its
    inside. A kernel has the precision of its operands, whatever the format of its sums. A layer
    without a product, or with an inconclusive kernel name, has that of its floating-point inputs
    and outputs; "mixed" if they differ, or if a generated kernel casts inside. FP32 data may be
    multiplied in TF32, which no data type shows.

    Args:
        kind: Type of the layer.
        name: Its name.
        types: Data types of inputs, outputs and weights, as `data_type` names them; "" for unknown.
        tactic: Name of its kernel; "" for unknown.
        tf32: Whether the engine may use TF32: then products of FP32 data are unknown.
    """
    inputs, outputs, weights = types
    if kind.lower() in MOVES:
        return "other"
    if kind == "Myelin":
        return "unknown"
    product = is_product(kind, name, tactic)
    operands = {weights} if weights else set(inputs)
    floats = {t for t in operands if t in FLOATS}
    operand = "int8" if "int8" in operands else floats.pop() if len(floats) == 1 else ""
    if (product or operand == "int8") and (precision := kernel_precision(tactic, operand)):
        return precision
    if product and operand == "int8":
        return "int8"
    if product:
        return _by_types(operands, f"{name} {tactic}", may_be_tf32=tf32)
    precision = _by_types({*inputs, *outputs}, f"{name} {tactic}", may_be_tf32=False)
    return kernel_precision(tactic, operand) or precision if precision == "unknown" else precision


def _by_types(types: set[str], names: str, *, may_be_tf32: bool) -> Precision:
    if not types or "" in types:
        return "unknown"
    floats = {FLOATS[t] for t in types if t in FLOATS}
    if not floats:
        return "other"
    if len(floats) > 1:
        return "mixed"
    (kind,) = floats
    if kind == "fp32" and may_be_tf32:
        return "unknown"
    # Myelin names a generated kernel after its operations. A cast means that a low kernel is wider
    # inside, and an FP32 kernel lower, unless the cast is of integers.
    casts = re.search(r"__myl_\w*Cast", names) and (kind != "fp32" or types <= FLOATS.keys())
    return "mixed" if casts else kind


def _run_precision(run: str) -> Precision | None:
    groups = [re.findall(_SHORT, part) for part in run.split("_")]
    stored = groups[0][0]
    pairs = len(groups) > 1 and len(groups[0]) == len(groups[1]) == 2
    multiplied = groups[1][0] if pairs else stored
    # Data stored in a low format are already rounded, even if multiplied in a wider one.
    return _PRECISIONS.get(multiplied if stored == "f32" else stored)


def _letter_precision(sums: str, step: str | None, operand: str) -> Precision | None:
    if sums in "id":
        return "int8" if sums == "i" else None
    if sums == "h" or step == "884":
        return "fp16"
    named = _PRECISIONS.get(operand)
    if step is None:
        return "fp32" if named is None or named == "tf32" else named
    return "tf32" if named == "fp32" else named


_QUANTISED: tuple[Precision, ...] = ("int8", "fp8")
"""Requested by pairs in the model; a builder may still choose a wider kernel."""
_WIDER: tuple[Precision, ...] = ("fp32", "tf32", "fp16", "bf16")
_HIGH: tuple[Precision, ...] = ("fp32", "tf32")
_LOW = frozenset[Precision](("fp16", "bf16", *_QUANTISED))


def prove(
    layers: Sequence[EngineLayer],
    network: Network | None,
    roles: Roles | None,
    requested: Mapping[NodeName, Precision],
    config: BuildConfig | None,
    *,
    as_fp32: bool = False,
) -> PrecisionProof:
    """Return the precision of each node, and where it is not as requested.

    A node has the precision of its layers: "mixed" if they differ, "unknown" if one is unknown, and
    "other" if no layer computes it, as with folded constants and avoided copies. A node with bodies
    has the layers of all nodes in them. Unknown and mixed layers count as FP32 if the builder was
    allowed nothing else, or the outputs show it.

    Args:
        layers: Layers of the engine, their nodes by the names in `network`.
        network: The model in normal form, without nodes that the rewriter inserted; None if
            unknown: the result then has layers only.
        roles: Roles of its nodes; None likewise.
        requested: Precision requested by node; nodes that are missing were free.
        config: How the engine was built; None if unknown.
        as_fp32: Whether the engine's outputs are those of the FP32 engine with TF32 off; see
            `constrain.same_outputs`.
    """
    alone = config is not None and config.low is None and not config.tf32
    alone = alone and all(wanted == "fp32" for wanted in requested.values())
    reason = (
        "certain: nothing else was allowed"
        if alone
        else "inferred: the outputs match the FP32 engine's bit for bit"
    )
    settled = [(alone or as_fp32) and layer.precision in ("unknown", "mixed") for layer in layers]
    shown = tuple(
        replace(layer, precision="fp32") if sure else layer
        for layer, sure in zip(layers, settled, strict=True)
    )
    nodes, compute = _nodes(shown, network, roles, requested)
    evidence = _Evidence(shown, compute, config)
    kinds = Counter(node.precision for node in compute)
    return PrecisionProof(
        layers=shown,
        nodes=nodes,
        node_share={kind: some / len(compute) for kind, some in kinds.most_common()},
        findings=tuple(evidence.findings()),
        remarks=(*evidence.hidden(), *_doubts(layers, sum(settled), reason)),
    )


class _Evidence(Struct, frozen=True):
    """Compare an engine with what was requested, in sentences."""

    layers: Sequence[EngineLayer]
    compute: Sequence[NodePrecision]
    config: BuildConfig | None

    def findings(self) -> Iterator[str]:
        for low, high in product(sorted(_LOW), _HIGH):
            yield from self._broken(high, low, f"to be {high.upper()}")
        if self.config is not None and not self.config.tf32:
            yield from self._tf32()
        for quantised in _QUANTISED:
            nodes = self._requested(quantised)
            # A hidden node may be the one that does.
            if nodes and all(n.precision in (*_WIDER, "other") for n in nodes):
                yield from self._nothing(quantised.upper(), nodes, _WIDER)
        lows = self._lows()
        shown = {n.precision for n in self.compute}
        if lows and shown & {*_HIGH} and shown.isdisjoint((*_LOW, "mixed", "unknown")):
            yield from self._nothing(" or ".join(map(str.upper, lows)), self.compute, _HIGH)
        elif self._is_strong():
            for low, got in product(lows, _WIDER):
                if got != low:
                    yield from self._broken(low, got, f"{low.upper()} in the model")

    def _requested(self, precision: Precision | None) -> list[NodePrecision]:
        """Return the compute nodes of a requested precision; None for those that were free."""
        return [n for n in self.compute if n.asked == precision]

    def _lows(self) -> tuple[Precision, ...]:
        """Return the low formats that compute nodes were requested in, or might have."""
        requested = {n.asked for n in self.compute}
        lows = tuple(p for p in _WIDER if p in _LOW and p in requested)
        if not lows and self.config is not None and self.config.low and None in requested:
            return (self.config.low,)
        return lows

    def _is_strong(self) -> bool:
        return self.config is not None and self.config.typing == "strong"

    def _nothing(
        self, wanted: str, nodes: Sequence[NodePrecision], kinds: Sequence[Precision]
    ) -> Iterator[str]:
        if shown := _kinds(nodes, kinds):
            yield (
                f"The engine computes nothing in {wanted}, although that was requested: {shown} of "
                f"{count(len(nodes), 'node')}."
            )

    def _broken(self, requested: Precision, got: Precision, meant: str) -> Iterator[str]:
        """Yield a sentence on nodes that compute in `got`, not as `requested`."""
        nodes = self._requested(requested)
        wrong = [n for n in nodes if n.precision == got]
        if not wrong:
            return
        layers = (layer for layer in self.layers if layer.name in wrong[0].layers)
        first = next(layer for layer in layers if layer.precision == got)
        cause = "; casts had no effect" if self._is_strong() else ""
        yield (
            f"{len(wrong)} of {count(len(nodes), 'node')} that were {meant} compute in "
            f"{got.upper()}{cause}: {_names(wrong)}. {_shows(first)}"
        )

    def _tf32(self) -> Iterator[str]:
        wrong = [n for n in self.compute if n.precision == "tf32"]
        layers = [layer for layer in self.layers if layer.precision == "tf32"]
        if layers:
            where = f" for {count(len(wrong), 'node')} ({_names(wrong)})" if wrong else ""
            yield (
                f"TF32 is used in {count(len(layers), 'layer')}{where}, although it was off. "
                f"{_shows(layers[0])}"
            )

    def hidden(self) -> Iterator[str]:
        """Yield a sentence on what the inspector does not show, with the largest such layer."""
        hidden = [b for b in self.layers if b.precision in ("unknown", "mixed") and b.type]
        nodes = [n for n in self.compute if n.precision in ("unknown", "mixed")]
        if not hidden or (self.compute and not nodes):
            return
        whose = f" for {len(nodes)} of {count(len(self.compute), 'compute node')}" if nodes else ""
        yield (
            f"The precision is not shown{whose} in {count(len(hidden), 'layer')}. "
            f"{_shows(max(hidden, key=lambda layer: len(layer.nodes)))}"
        )


def _nodes(
    layers: Sequence[EngineLayer],
    network: Network | None,
    roles: Roles | None,
    requested: Mapping[NodeName, Precision],
) -> tuple[tuple[NodePrecision, ...], list[NodePrecision]]:
    """Return all nodes of the model, and the compute nodes."""
    if network is None or roles is None:
        return (), []
    by_node: defaultdict[NodeName, list[EngineLayer]] = defaultdict(list)
    for layer in layers:
        for node in dict.fromkeys(layer.nodes):
            by_node[node].append(layer)
    nodes = tuple(
        NodePrecision(
            node=name,
            precision=_joint({layer.precision for layer in by_node[name]}),
            asked=requested.get(name),
            layers=tuple(dict.fromkeys(layer.name for layer in by_node[name])),
        )
        for name in map(node_name, network.all_nodes())
    )
    computing = roles.computing | {name for name, kind in requested.items() if kind in _QUANTISED}
    return nodes, [n for n in nodes if n.node in computing]


def _joint(precisions: set[Precision]) -> Precision:
    precisions = precisions - {"other"}
    if "unknown" in precisions:
        return "unknown"
    return next(iter(precisions), "other") if len(precisions) < 2 else "mixed"


def _doubts(layers: Sequence[EngineLayer], settled: int, reason: str) -> Iterator[str]:
    if layers and not any(layer.type for layer in layers):
        yield (
            "The engine stores only layer names. Build it with detailed profiling verbosity to see "
            "which types it computes in."
        )
    if settled:
        yield f"FP32 is not shown for {count(settled, 'layer')}, but {reason}."


def _shows(layer: EngineLayer) -> str:
    """Return a sentence on a layer's types and kernel."""
    facts = [
        f"{verb} {' and '.join(dict.fromkeys(filter(None, kinds)))}"
        for verb, kinds in (
            ("reads", layer.inputs),
            ("gives", layer.outputs),
            ("has weights in", (layer.weights,)),
            ("runs", (layer.tactic,)),
        )
        if any(kinds)
    ]
    return f"Layer {layer.name} {', '.join(facts) or 'shows no more'}."


def _kinds(nodes: Sequence[NodePrecision], kinds: Sequence[Precision]) -> str:
    shown = Counter(n.precision for n in nodes)
    return " and ".join(f"{kind.upper()} in {shown[kind]}" for kind in kinds if shown[kind])


def _names(nodes: Sequence[NodePrecision]) -> str:
    return listed([n.node for n in nodes])
