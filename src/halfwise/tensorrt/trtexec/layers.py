"""The layers that TensorRT's parser makes from a model, with their names and output types.

A layer has its node's name, or `node_of_<output>` if that has none. A second node of the same name
gets a number; layers that the parser itself adds have names that no file contains.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import onnx
import onnx_ir as ir

from halfwise.graph.loading import Place, Unchecked
from halfwise.graph.model import node_name
from halfwise.graph.written_out import PATTERNS, written_out
from halfwise.records import Finding, NodeName, Severity

_OWN = re.compile(r"^\(Unnamed Layer\*|^ONNXTRT_")
_TRTEXEC = "https://github.com/NVIDIA/TensorRT/blob/release/10.0/samples/common/sampleOptions.cpp"
_OWN_TYPES = {
    **{
        op: f"{op} has no compute layer; constrain the nodes in its bodies"
        for op in ("If", "Loop", "Scan")
    },
    **dict.fromkeys(("Cast", "CastLike"), "a Cast has a type of its own"),
    **{op: f"{op} has a type of its own" for op in ("QuantizeLinear", "DequantizeLinear")},
    "Constant": "a constant is fused away, and the constraint with it",
}
"""Reasons why layers of an operator take no constraint."""
_TYPES = {
    ir.DataType.FLOAT: "fp32",
    ir.DataType.FLOAT16: "fp16",
    ir.DataType.BFLOAT16: "bf16",
    ir.DataType.DOUBLE: "fp32",
}
"""Floating-point types in trtexec's names; the parser turns FP64 into FP32."""


@dataclass(frozen=True)
class Layer:
    """A layer.

    Attributes:
        name: Its name in the network, before fusion.
        place: The node that it comes from; for a constant, its name and the operator Constant.
        outputs: Type of each output in trtexec's names, "" for other than floating-point ones;
            None if ONNX's inference does not give it.
        nodes: Number of nodes with that name; the layer belongs to the first.
        of_shapes: Whether it computes only from shapes and constants.
    """

    name: str
    place: Place
    outputs: tuple[str | None, ...]
    nodes: int = 1
    of_shapes: bool = False

    @property
    def op(self) -> str:
        """The operator."""
        return self.place.op

    @property
    def computes_floats(self) -> bool:
        """Whether it may give floating-point numbers."""
        return any(t != "" for t in self.outputs)

    @property
    def own_type(self) -> str:
        """Why it takes no constraint; "" if it takes one."""
        floats = "" if self.computes_floats else "it outputs integers, Booleans or shapes"
        return _OWN_TYPES.get(self.op, floats)


def layers_of(model: Unchecked) -> tuple[Layer, ...]:
    """Return the layers of nodes, bodies included, and of constants; each name once."""
    types = _types(model)
    known = {tensor.name for tensor in model.proto.graph.initializer}
    found: dict[str, Layer] = {}
    for place, node in model.nodes:
        outputs = tuple(types.get((place.number, i)) for i in range(len(node.output)))
        name = node.name or f"node_of_{next(iter(node.output), '')}"
        of_shapes = node.op_type in ("Shape", "Size") or known.issuperset(filter(None, node.input))
        known.update(node.output if of_shapes else ())
        other = found.get(name)
        found[name] = (
            replace(other, nodes=other.nodes + 1)
            if other
            else Layer(name, place, outputs, of_shapes=of_shapes)
        )
    for tensor in model.proto.graph.initializer:
        place = Place(name=NodeName(tensor.name), op="Constant", number=None)
        outputs = ("fp32" if tensor.data_type == onnx.TensorProto.FLOAT else "",)
        found.setdefault(tensor.name, Layer(tensor.name, place, outputs))
    return tuple(found.values())


def _types(model: Unchecked) -> Mapping[tuple[int | None, int], str]:
    """Return the type of each output by the node's place and the output's number."""
    found: dict[tuple[int | None, int], str] = {}
    for node in model.network.model.graph.all_nodes() if model.network else ():
        number = model.place(node).number
        for i, value in enumerate(node.outputs):
            if value.dtype is not None:
                # A call has the type that its function computes first.
                found.setdefault((number, i), _TYPES.get(value.dtype, ""))
    return found


def is_parsers_own(name: str) -> bool:
    """Return whether the parser made up a name."""
    return bool(_OWN.search(name))


def matching(pattern: str, layers: Sequence[Layer]) -> list[Layer]:
    """Return the layers that a key is meant for: the one with that name, else those that match.

    `*` matches anything; matching skips integers and shapes, as trtexec does.
    """
    exact = [layer for layer in layers if layer.name == pattern]
    if exact or "*" not in pattern:
        return exact
    return [layer for layer in spelt_like(pattern, layers) if layer.computes_floats]


def spelt_like(pattern: str, layers: Sequence[Layer]) -> list[Layer]:
    """Return the layers whose names match, whatever their types; `*` matches anything."""
    expression = re.compile(".*".join(map(re.escape, pattern.split("*"))), re.DOTALL)
    return [layer for layer in layers if expression.fullmatch(layer.name)]


def producers_of(model: Unchecked) -> dict[str, str]:
    """Return the name of the layer that produces each tensor, by the tensor's name."""
    return {
        tensor: node.name or f"node_of_{node.output[0]}"
        for _, node in model.nodes
        for tensor in node.output
        if tensor
    }


Kinds = Mapping[str, tuple[Layer, ...]]


def kinds_of(model: Unchecked, layers: Sequence[Layer]) -> Kinds:
    """Return the layers of each operator, by its name.

    Layers of nodes that together write out the operator are included, in the order of `layers`.
    """
    found: dict[str, set[int | None]] = {}
    for layer in layers:
        found.setdefault(layer.op, set()).add(layer.place.number)
    if model.network is not None:
        numbers = {node_name(n): model.place(n).number for n in model.network.nodes()}
        for op in PATTERNS:
            for group in written_out(model.network, op):
                found.setdefault(op, set()).update(numbers[name] for name in group)
    return {
        op: tuple(n for n in layers if n.place.number in places and n.place.number is not None)
        for op, places in found.items()
    }


def kind_meant(word: str, kinds: Kinds) -> tuple[str, tuple[Layer, ...]] | None:
    """Return the operator that a word means, and its layers; None if it means none.

    Case, `*`, `_` and "alization" are ignored: `layernorm`, `LayerNorm*` and `layer_norm` mean
    LayerNormalization; `norm` means any normalisation.
    """
    meant = _plain(word)
    ops = [op for op in kinds if meant == _plain(op)]
    if meant == "norm":
        ops = [op for op in kinds if _plain(op).endswith(meant)]
    layers = {layer.name: layer for op in ops for layer in kinds[op]}
    return (" or ".join(ops), tuple(layers.values())) if layers else None


def _plain(word: str) -> str:
    return re.sub(r"[^a-z0-9]|alization$|alisation$", "", word.lower().strip("*"))


def complaint(
    rule: str,
    severity: Severity,
    message: str,
    fix: str,
    place: Place | None = None,
    source: str = _TRTEXEC,
) -> Finding:
    """Return a finding on a constraint; see `halfwise.records.Finding`."""
    return Finding(
        rule=rule,
        severity=severity,
        node=place.name if place else None,
        place=place.number if place else None,
        op=place.op if place else "",
        called=NodeName(place.called if place else ""),
        message=message,
        fix=fix,
        source=source,
    )
