"""One node in place of a norm, Softmax or activation that is written out."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from halfwise.fixing.attribute import guards_of
from halfwise.fixing.attribute.evidence import Evidence
from halfwise.fixing.repair.rule import answered, misfit
from halfwise.graph.conversion import raise_opset
from halfwise.graph.dataflow import Part, nodes_between
from halfwise.graph.model import (
    Attribute,
    Names,
    Network,
    Writer,
    graphs_of,
    node_name,
    opset_of,
    tensor_name,
    values_of,
)
from halfwise.graph.norms import Normalisation, read_normalisations
from halfwise.graph.reading import activations
from halfwise.graph.written_out import read_softmaxes
from halfwise.records import NodeName, Repair, RepairRule, TensorName


@dataclass(frozen=True, eq=False)
class Replacement:
    """A node that computes `output` from `x`.

    Attributes:
        op: Its operator, of the default domain.
        x: Name of its first input in the network.
        output: Name of its output, which it takes over.
        attributes: Its attributes.
        constants: Its other inputs, f32, by the last part of their names.
    """

    op: str
    x: TensorName
    output: TensorName
    attributes: Mapping[str, Attribute]
    constants: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)


def replace(model: ir.Model, made: Replacement) -> None:
    """Make a replacement, in place; nodes that become unused go, others keep their names."""
    values = {v.name: v for graph in graphs_of(model) for v in values_of(graph)}
    names = Names(graphs_of(model))
    writer = Writer(model, _stem(made.output), names)
    constants = [writer.constant(part, array) for part, array in made.constants.items()]
    result = writer.op(made.op, values[made.x], *constants, **made.attributes)
    put_in_place(values[made.output], writer.made, result, names)


def put_in_place(output: ir.Value, new: Sequence[ir.Node], result: ir.Value, names: Names) -> None:
    """Replace the nodes that compute `output` by `new`, whose `result` takes its name.

    Nodes whose outputs nothing reads any more are removed.
    """
    root = output.producer()
    assert root is not None
    root.prepend(new)
    result.type, result.shape = output.type, output.shape
    name = output.name
    ir.convenience.replace_all_uses_with(output, result, replace_graph_outputs=True)
    output.name, result.name = names.take(f"{name}_before"), name
    _remove_unused(root)


def _stem(output: TensorName) -> str:
    """Return the prefix of node names: the tensor's path without the operator."""
    path = output.rsplit("/", 1)[0]
    return path or str(output)


def _remove_unused(root: ir.Node) -> None:
    """Remove `root` and all nodes before it that become unused."""
    graph, waiting = root.graph, [root]
    assert graph is not None
    while waiting:
        node = waiting.pop(0)
        if node.graph is not graph or any(v.uses() or v.is_graph_output() for v in node.outputs):
            continue
        before = [v.producer() for v in node.inputs if v is not None]
        graph.remove(node, safe=True)
        waiting += [n for n in before if n is not None]


FIRST_OPSET = {"LayerNormalization": 17, "Gelu": 20, "RMSNormalization": 23}
"""Of the operators that replace patterns, those that some opset lacks, with their first one (ONNX
operator changelog)."""


@dataclass(frozen=True, eq=False)
class Pattern:
    """Nodes that a single operator can replace.

    Attributes:
        nodes: The nodes, in graph order.
        replacement: What replaces them.
    """

    nodes: tuple[NodeName, ...]
    replacement: Replacement


def patterns(network: Network, opset: int) -> list[Pattern]:
    """Return the patterns in FP32 that one node of `opset` can replace."""
    places = {node: place for place, node in enumerate(network.all_nodes())}
    ends = {value for node in places for value in node.outputs}
    found = []
    for x, output, made in (*_norms(network), *_gelus(network), *_softmaxes(network)):
        if x.dtype != ir.DataType.FLOAT or FIRST_OPSET.get(made.op, 1) > opset:
            continue
        inner = nodes_between(x, output) & places.keys() if output in ends else ()
        if inner:
            nodes = tuple(node_name(n) for n in sorted(inner, key=places.__getitem__))
            found.append(Pattern(nodes, made))
    return found


_Planned = tuple[ir.Value, ir.Value, Replacement]
"""Input, output and replacement."""


def _gelus(network: Network) -> Iterator[_Planned]:
    for gelu in activations(network, "Gelu"):
        tanh = any(node.op_type == "Tanh" for node in gelu.nodes)
        attributes = {"approximate": "tanh"} if tanh else {}
        x, output = tensor_name(gelu.x), tensor_name(gelu.output)
        yield gelu.x, gelu.output, Replacement("Gelu", x, output, attributes)


def _softmaxes(network: Network) -> Iterator[_Planned]:
    for softmax in read_softmaxes(network):
        if softmax.axis is None:
            continue
        x, output = tensor_name(softmax.x), tensor_name(softmax.output)
        made = Replacement(softmax.op, x, output, {"axis": softmax.axis})
        yield softmax.x, softmax.output, made


def _norms(network: Network) -> Iterator[_Planned]:
    for norm in read_normalisations(network):
        if made := _norm_plan(norm):
            yield norm.x, norm.output, made


def _norm_plan(norm: Normalisation) -> Replacement | None:
    """Return the replacement of a normalisation; None if no operator computes the same.

    The sizes of normalised axes have to be known: a weight has them.
    """
    assert norm.x.shape is not None
    rank = norm.rank
    sizes = tuple(norm.x.shape[axis] for axis in norm.axes)
    if not norm.exact or not all(isinstance(size, int) for size in sizes):
        return None
    if rank >= 4 and norm.axes == tuple(range(2, rank)) and norm.varying <= {1}:
        return _instance(norm)
    last = tuple(range(rank - len(norm.axes), rank))
    if not norm.varying.issubset(norm.axes) or norm.axes != last:
        return None
    constants = {"weight": _whole(norm.weight, norm, sizes)}
    if norm.bias is not None:
        constants["bias"] = _whole(norm.bias, norm, sizes)
    return Replacement(
        norm.kind,
        tensor_name(norm.x),
        tensor_name(norm.output),
        {"axis": -len(norm.axes), "epsilon": norm.eps},
        constants,
    )


def _instance(norm: Normalisation) -> Replacement | None:
    """Return the InstanceNormalization equal to a per-channel norm; None if there is none."""
    assert norm.x.shape is not None
    channels = norm.x.shape[1]
    if norm.kind != "LayerNormalization" or not isinstance(channels, int):
        return None
    bias = np.zeros(1) if norm.bias is None else norm.bias
    constants = {"weight": norm.weight, "bias": bias}
    return Replacement(
        "InstanceNormalization",
        tensor_name(norm.x),
        tensor_name(norm.output),
        {"epsilon": norm.eps},
        {
            name: np.broadcast_to(a.reshape(-1), (channels,)).astype(np.float32)
            for name, a in constants.items()
        },
    )


def _whole(
    array: NDArray[np.float64], norm: Normalisation, sizes: tuple[Any, ...]
) -> NDArray[np.float32]:
    """Return a weight in the shape of the normalised axes."""
    assert norm.x.shape is not None
    full = array.reshape((1,) * (norm.x.shape.rank() - array.ndim) + array.shape)
    inner = full.reshape(tuple(full.shape[axis] for axis in norm.axes))
    return np.ascontiguousarray(np.broadcast_to(inner, sizes), np.float32)


_HIGHEST = FIRST_OPSET["LayerNormalization"]
"""The opset is raised no further: every TensorRT with a LayerNormalization reads this one."""


class OneNode:
    """Replace a written-out LayerNormalization, Softmax and the like by one node.

    Such a node keeps squares, sums and exponentials in FP32 inside, in ONNX (`stash_type`) and in
    TensorRT, so only its input and output have to fit.

    Limits: a norm has to be over the last axes, over all places of each channel, or in groups of
    channels, with known sizes. An RMSNormalization (opset 23), a GroupNormalization (21) and a Gelu
    (20) are made only if the model already has that opset. For a LayerNormalization it is raised to
    17.

    The function stays for all x. Sums run in another order, and a Softmax subtracts the largest
    value, so it is finite where exp(x) is not.
    """

    name: RepairRule = "one-node"
    identity = (
        "(x - mean(x)) / √(mean((x - mean(x))²) + eps) · w + b = LayerNormalization(x), "
        "exp(x) / Σ exp(x) = Softmax(x), and likewise: ONNX defines the operators so"
    )

    def propose(self, evidence: Evidence) -> Iterator[Repair]:
        """Yield a repair for each pattern inside which something raises a guard."""
        network = evidence.network
        guards = guards_of(evidence)
        for pattern in _patterns(network) if guards else ():
            needs = answered(guards, [evidence.nodes[n] for n in pattern.nodes])
            if needs:
                first = FIRST_OPSET.get(pattern.replacement.op, 0)
                yield Repair(
                    rule=self.name,
                    nodes=pattern.nodes,
                    numbers={"opset": first} if first > network.opset else {},
                    guards=needs,
                    advice=evidence.norm_fix(
                        evidence.nodes[pattern.nodes[-1]],
                        f"Export it as one {pattern.replacement.op}.",
                    ),
                )

    def apply(self, model: ir.Model, *repairs: Repair) -> None:
        """Make the last of a repair's nodes one node that reads what the first one did, in place.

        Raises:
            CaseError: they do not form such a pattern here, or ONNX cannot raise the opset.
        """
        opset = int(max(repair.numbers.get("opset", 0) for repair in repairs))
        if opset > opset_of(model):
            raised = raise_opset(Network(model, None, "", {}), opset).model
            model.graph, model.ir_version = raised.graph, raised.ir_version
        for repair in repairs:
            there = _patterns(Part.of(model, repair.nodes))
            pattern = next((p for p in there if p.nodes[-1] == repair.nodes[-1]), None)
            if pattern is None:
                raise misfit(repair)
            replace(model, pattern.replacement)


def _patterns(network: Network) -> list[Pattern]:
    """Return the patterns that can become one node."""
    return patterns(network, max(network.opset, _HIGHEST))
