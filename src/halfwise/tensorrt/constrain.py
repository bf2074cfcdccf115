"""What weak typing pins to FP32, and what TensorRT reads of quantised models.

TensorRT maps layers to ONNX nodes by their metadata, so a constraint is the name of a node. Nodes
that move data between kept nodes are constrained too, since a Shuffle layer might round. If a fused
block hides its precision, the difference between two builds is the only evidence.

The rules come from `QuantDequantLinearHelper` of onnx-tensorrt (8.5 to 10.16) and NVIDIA's
"Working with Quantized Types". TensorRT accepts some valid ONNX only in another form; the rewrite
makes that form if it computes exactly the same numbers.
"""

from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Literal

import numpy as np
import onnx_ir as ir

from halfwise.errors import CaseError
from halfwise.graph.dataflow import drop_unused_nodes
from halfwise.graph.loading import numbers
from halfwise.graph.model import (
    QUANTISED,
    Names,
    Network,
    add_constant,
    bodies,
    is_standard,
    node_name,
)
from halfwise.graph.quantised import (
    Pair,
    give_kernel_shapes,
    pairs_of,
    quantised_nodes,
    without_kernel_shape,
)
from halfwise.graph.roles import is_float
from halfwise.graph.taken import taken
from halfwise.records import NodeName, Precision, Verdict, replace
from halfwise.records.built import Quantised
from halfwise.tensorrt.versions import Feature, Version, has, text_of, version_of
from halfwise.wording import count, listed

TAKEN: Mapping[ir.DataType, Feature | None] = {
    ir.DataType.INT8: None,
    ir.DataType.FLOAT8E4M3FN: "FP8",
    ir.DataType.INT4: "INT4",
    ir.DataType.FLOAT4E2M1: "FP4",
}
"""Types that TensorRT quantises to, with the feature that a version needs for each."""
COMPUTED: Mapping[ir.DataType, Precision] = {
    ir.DataType.INT8: "int8",
    ir.DataType.FLOAT8E4M3FN: "fp8",
}
"""Precision of a product of two such tensors."""
_FLAGS: Mapping[ir.DataType, Quantised] = {
    ir.DataType.INT8: "int8",
    ir.DataType.FLOAT8E4M3FN: "fp8",
    ir.DataType.INT4: "int4",
}
Reason = Literal[
    "operator", "zero-point", "bias", "type", "scale", "computed", "channels", "blocks"
]
MEANT: Mapping[Reason, str] = {
    "operator": "no TensorRT supports the operator",
    "zero-point": "the zero point is not 0",
    "bias": "an INT32 constant is not dequantised",
    "type": "the type is not one that it quantises to (UINT8 would be read as INT8)",
    "scale": "a scale is not a positive number",
    "computed": "the scale is not a constant",
    "channels": "a tensor other than a weight has per-channel scales",
    "blocks": "scales are per block",
}
"""Clauses that go on after "TensorRT rejects it"."""
AGAIN = (
    "Quantise to INT8 with zero points of 0: QInt8 and ActivationSymmetric in "
    "onnxruntime.quantization, or halfwise fix --to int8."
)


def refused(network: Network, version: Version) -> dict[NodeName, Reason]:
    """Return why this version of TensorRT rejects nodes, or misreads them, in graph order.

    INT32 biases and weights without a QuantizeLinear are not included: see `as_read`.
    """
    nodes = [n for n in network.model.graph.all_nodes() if n.op_type.startswith(QUANTISED)]
    graver = ((n, (reason for reason in reasons(n, version) if reason != "bias")) for n in nodes)
    first = ((node_name(n), next(found, None)) for n, found in graver)
    return {name: reason for name, reason in first if reason is not None}


def reasons(node: ir.Node, version: Version) -> Iterator[Reason]:
    """Yield why this version of TensorRT rejects a quantising node, or misreads it."""
    if not is_standard(node, "QuantizeLinear", "DequantizeLinear"):
        if not is_standard(node) or node.op_type in taken().never:
            yield "operator"
        return
    stores = node.op_type == "DequantizeLinear"
    value = node.inputs[0] if stores else node.outputs[0]
    scale, zero = (numbers(node.inputs[i]) if i < len(node.inputs) else None for i in (1, 2))
    if zero is not None and np.any(zero.astype(np.float32) != 0):
        yield "zero-point"
    if not _is_taken(value, version):
        yield "bias" if stores and _is_bias(value) else "type"
    if scale is None:
        yield "computed"
    elif not np.all(np.isfinite(scale.astype(np.float32)) & (scale.astype(np.float32) > 0)):
        yield "scale"
    elif node.attributes.get_int("block_size", 0) and not has("INT4", version):
        yield "blocks"
    elif scale.size > 1 and not _is_weight(node.inputs[0]):
        yield "channels"


def _is_taken(value: ir.Value | None, version: Version) -> bool:
    dtype = None if value is None else value.dtype
    needed = TAKEN.get(dtype) if dtype is not None else None
    return dtype is None or (dtype in TAKEN and (needed is None or has(needed, version)))


def _is_bias(value: ir.Value | None) -> bool:
    return value is not None and value.dtype == ir.DataType.INT32 and value.const_value is not None


def _is_weight(value: ir.Value | None) -> bool:
    """Return whether a value is a constant or a quantised constant."""
    while value is not None and value.const_value is None:
        maker = value.producer()
        if maker is None or not is_standard(maker, "QuantizeLinear"):
            return False
        value = maker.inputs[0]
    return value is not None


def readable(network: Network, tensorrt: str | None) -> Network:
    """Return an equivalent model that a version of TensorRT reads; see `as_read`.

    Args:
        network: The model; returned itself if nothing changes.
        tensorrt: The version, such as "8.6.0"; None changes nothing.

    Raises:
        CaseError: TensorRT would reject it; the message gives all reasons with their nodes.
    """
    if tensorrt is None:
        return network
    version = version_of(tensorrt)
    reasons: dict[Reason, list[NodeName]] = {}
    for node, reason in refused(network, version).items():
        reasons.setdefault(reason, []).append(node)
    if reasons:
        why = (
            f"{MEANT[reason]} in {count(len(nodes), 'node')} ({listed(nodes)})"
            for reason, nodes in reasons.items()
        )
        raise CaseError(
            f"TensorRT {text_of(version)} rejects this quantised model: {'; '.join(why)}.", AGAIN
        )
    return as_read(network, version)


def quantised_types(network: Network) -> dict[NodeName, Precision]:
    """Return the low precision of each node of `quantised_nodes` whose pairs have one type."""
    read = {name: pairs[:2] for name, pairs in quantised_nodes(network).items()}  # no biases
    types = {name: {pair.dtype for pair in pairs} for name, pairs in read.items()}
    return {
        name: COMPUTED[dtype]
        for name, (dtype, *others) in types.items()
        if not others and dtype in COMPUTED
    }


def as_read(network: Network, version: Version) -> Network:
    """Return an equivalent model that this version of TensorRT reads.

    INT32 biases become floats: no version dequantises them. Before 10, weights stored as integers
    become floats with a QuantizeLinear that restores these integers, the form that those versions
    document. Before 9 every node gets a zero point. Convolutions with computed weights get an
    explicit kernel size.

    Args:
        network: The model; returned itself if nothing changes.
        version: TensorRT's version.
    """
    restated = [p for p in pairs_of(network) if _is_restated(p, version)]
    lacking = [] if has("optional zero points", version) else [*_without_zero(network)]
    unsized = any(without_kernel_shape(network.model.graph.all_nodes()))
    if not restated and not lacking and not unsized:
        return network
    model = network.copy()
    names = Names((model.graph, *model.graph.subgraphs()))
    copied = replace(network, model=model)
    for node in _without_zero(copied) if lacking else ():
        _give_zero(node, model.graph, names)
    for pair in pairs_of(copied):
        if _is_restated(pair, version):
            _restate(pair, model.graph, names)
    give_kernel_shapes(model.graph.all_nodes())
    drop_unused_nodes(model.graph)
    return copied


def _is_restated(pair: Pair, version: Version) -> bool:
    if pair.source is not None:
        return False
    old = pair.dtype == ir.DataType.INT8 and not has("integer weights", version)
    return pair.dtype == ir.DataType.INT32 or old


def _without_zero(network: Network) -> Iterator[ir.Node]:
    for node in network.model.graph.all_nodes():
        if is_standard(node, "DequantizeLinear") and _lacks_zero(node):
            yield node


def _lacks_zero(node: ir.Node) -> bool:
    return len(node.inputs) < 3 or node.inputs[2] is None


def _give_zero(node: ir.Node, graph: ir.Graph, names: Names) -> None:
    stored, scale = node.inputs[0], numbers(node.inputs[1])
    if stored is None or stored.dtype is None or scale is None:
        return
    zeros = np.zeros(scale.shape, stored.dtype.numpy())
    node.resize_inputs(3)
    node.replace_input_with(2, add_constant(graph, names.take(f"{node.name}::zero"), zeros))


def _restate(pair: Pair, graph: ir.Graph, names: Names) -> None:
    node, array = pair.dequantise, pair.dequantised()
    output, integers = node.outputs[0], node.inputs[0]
    floats = add_constant(graph, names.take(f"{output.name}::float"), array)
    if pair.dtype == ir.DataType.INT32 or integers is None:
        output.replace_all_uses_with(floats)
        return
    if _lacks_zero(node):  # without one, QuantizeLinear gives UINT8
        _give_zero(node, graph, names)
    made = ir.node(
        "QuantizeLinear",
        [floats, *node.inputs[1:]],
        attributes=dict(node.attributes),
        name=names.take(f"{node.name}::quantise"),
    )
    made.outputs[0].name = names.take(f"{output.name}::integers")
    made.outputs[0].type, made.outputs[0].shape = integers.type, integers.shape
    graph.insert_before(node, made)
    node.replace_input_with(0, made.outputs[0])


def builder_flags(network: Network) -> tuple[Quantised, ...]:
    """Return the builder flags that a model's pairs need in weak typing, as the worker does."""
    nodes = network.model.graph.all_nodes()
    types = {n.inputs[0].dtype for n in nodes if is_standard(n, "DequantizeLinear") and n.inputs[0]}
    return tuple(flag for dtype, flag in _FLAGS.items() if dtype in types)


Assignment = frozenset[NodeName]

_UNTYPED = ("Cast", "CastLike", "Constant", "DequantizeLinear", "QuantizeLinear")
"""Operators whose layers have their own type: constraining a Cast ends the build with an
assertion in castLayer.cpp (NVIDIA/TensorRT#3618)."""
_PASSED_ON = ("Dropout", "Identity")


def constraints(network: Network, fp32: Assignment) -> tuple[NodeName, ...]:
    """Return the nodes to constrain to FP32 in weak typing, in graph order.

    Casts, constants, and nodes that give only integers, Booleans or shapes take no constraint;
    neither do nodes that may be computed in INT8, which a constraint would forbid, and If, Loop
    and Scan, which have no layers that compute.

    Args:
        network: The model that the builder reads, with the same names.
        fp32: All FP32 nodes, including those that move data.
    """
    integers = quantised_types(network)
    named = ((node_name(n), n) for n in network.all_nodes())
    named = ((name, n) for name, n in named if name in fp32 and name not in integers)
    return tuple(name for name, n in named if takes_type(n))


def takes_type(node: ir.Node) -> bool:
    """Return whether a node's layer takes a type: it gives a float and has no bodies."""
    if bodies(node) or is_standard(node, *_UNTYPED):
        return False
    return any(is_float(v) for v in node.outputs)


def unmatched(network: Network, unconstrained: Mapping[NodeName, str]) -> tuple[str, ...]:
    """Return one sentence per reason why constraints reached no layer.

    Args:
        network: The model that was built.
        unconstrained: Worker's reasons, by nodes that no constraint reached.
    """
    nodes = {node_name(n): n for n in network.model.graph.all_nodes()}
    reasons: dict[str, list[NodeName]] = {}
    for name in (n for n in nodes if n in unconstrained):
        reasons.setdefault(_why(nodes[name], unconstrained[name]), []).append(name)
    return tuple(f"No constraint reached {listed(names)}: {why}." for why, names in reasons.items())


def _why(node: ir.Node, reason: str) -> str:
    if all(v is None or v.const_value is not None for v in node.inputs):
        return "it is computed from constants while the model is parsed"
    if is_standard(node, *_PASSED_ON):
        return "it only passes its input through"
    return reason


def same_outputs(result: Verdict, full: Verdict) -> bool:
    """Return whether an engine's outputs match those of an FP32 or TF32 engine in every measure.

    All errors must agree to the last digit, and some error must be above 0: outputs that round
    alike (classes, masks) prove nothing. An engine with FP16 on the way does not pass. One that
    TensorRT built in FP32 although FP16 was allowed often does: three of six mixed engines of a
    vision transformer (8.6.0, H200).
    """
    inexact = any(isfinite(o.max_abs) and o.max_abs > 0 for o in full.outputs.values())
    return inexact and result.samples == full.samples and result.outputs == full.outputs
