"""Exclude nodes from INT8: they read the sources of their pairs, and stored weights as floats.

Activations that a quantiser dropped because a pair clips the same values are restored:
onnxruntime.quantization drops each Relu and Clip whose result it quantises asymmetrically (its
operators/activation.py). A node that reads such a pair's source directly would read other values.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from halfwise.graph.dataflow import drop_unused_nodes
from halfwise.graph.model import (
    Names,
    Network,
    add_constant,
    constant_array,
    is_standard,
    node_name,
)
from halfwise.graph.quantised import Pair, moves_before, pairs_of, pairs_read
from halfwise.graph.roles import is_float
from halfwise.records import NodeName

_CUTS = ("Relu", "Clip")
_NOT_NEGATIVE = (*_CUTS, "Abs", "Exp", "HardSigmoid", "Sigmoid", "Softmax", "Softplus", "Sqrt")


def with_activations(network: Network, original: Network | None = None) -> Network:
    """Return the model with its dropped activations restored; they clip what the pairs clip.

    Args:
        network: A quantised model; not changed.
        original: As for `dropped`.
    """
    copy = replace(network, model=network.copy())
    raw = RawInputs(copy, original)
    for pair in pairs_of(copy):
        if pair.source is not None and pair.quantise is not None:
            pair.quantise.replace_input_with(0, raw.before(pair))
    return copy


def dropped(pair: Pair, original: Network | None) -> tuple[float | None, float | None] | None:
    """Return the bounds of the activation dropped before a pair; None if none was dropped.

    Args:
        pair: A pair with a source.
        original: The model before quantisation; its tensor with the source's name decides: what
            makes it, or what alone reads it (a QOperator file names the result before its Relu).
            Without such a tensor, a range that begins at zero means a Relu.

    Returns:
        The lower and upper bound, each None if absent.
    """
    maker = None if pair.source is None else pair.source.producer()
    if maker is None or is_standard(maker, *_CUTS):
        return None
    before = None if original is None else _original_tensor(original, pair.source)
    if before is not None:
        kept = any(is_standard(node, *_CUTS) for node, _ in pair.readers)
        readers = () if kept or before.is_graph_output() else {node for node, _ in before.uses()}
        nodes = (before.producer(), *(readers if len(readers) == 1 else ()))
        return next(filter(None, (_ends(n) for n in nodes if n is not None)), None)
    least = ml_dtypes.iinfo(pair.dtype.numpy()).min if pair.dtype.is_integer() else None
    if least is None or (pair.zero_point != least).any() or is_standard(maker, *_NOT_NEGATIVE):
        return None
    return 0.0, None


def remade(
    graph: ir.Graph,
    source: ir.Value,
    ends: tuple[float | None, float | None],
    before: ir.Node,
    names: Names,
) -> ir.Value:
    """Return the activation of `source`, computed by new nodes in front of the node `before`."""
    for op, end in zip(("Max", "Min"), ends, strict=True):
        if end is None:
            continue
        assert source.dtype is not None
        name, read = names.take(f"{source.name}::{op}"), [source]
        is_relu = op == "Max" and end == 0
        if not is_relu:
            array = np.asarray(end, source.dtype.numpy())
            read.append(add_constant(graph, names.take(f"{name}::end"), array))
        output = ir.val(name, type=source.type, shape=source.shape)
        made = ir.node("Relu" if is_relu else op, read, outputs=[output], name=name)
        graph.insert_before(before, made)
        source = output
    return source


def _original_tensor(original: Network, source: ir.Value | None) -> ir.Value | None:
    """Return the computed tensor of that name; None if there is none."""
    name = None if source is None else source.name
    return next((v for node in original.nodes() for v in node.outputs if v.name == name), None)


def _ends(node: ir.Node) -> tuple[float | None, float | None] | None:
    if is_standard(node, "Relu"):
        return 0.0, None
    if not is_standard(node, "Clip"):
        return None
    limits = [node.attributes.get(name) for name in ("min", "max")]
    ends = [None if end is None else end.as_float() for end in limits]
    for place, value in enumerate(node.inputs[1:3]):
        if value is not None and value.const_value is not None:
            ends[place] = float(constant_array(value).item())
    return ends[0], ends[1]


_ROUNDOFF = 1e-4
"""Tolerance in steps: FP32 has a relative error of 6e-8 in products and quotients up to 128."""


def excluding(
    network: Network,
    nodes: Collection[NodeName],
    original: Network | None = None,
    *,
    ends: bool = False,
) -> Network:
    """Return `network` with `nodes` outside INT8.

    Each of them reads the sources of its pairs at all its slots. Weights that the file stores as
    integers become the weights of `original` that round to them, or else the dequantised integers.
    Q and DQ that become unused are removed; nodes and tensors that stay keep their names.

    Args:
        network: The quantised model; not changed.
        nodes: Nodes of its main graph; those that read no pair do not change.
        original: The model before quantisation.
        ends: Whether graph outputs are also taken from before their pairs.
    """
    model = network.copy()
    copy = replace(network, model=model)
    raw = RawInputs(copy, original)
    for node in [n for n in copy.nodes() if node_name(n) in nodes]:
        for slot in raw.read.get(node_name(node), ()):
            node.replace_input_with(slot, raw.at(node, slot))
    if ends:
        raw.give_out()
    drop_unused_nodes(model.graph)
    raw.take_names()
    names = {node_name(n) for n in model.graph.all_nodes()}
    kept = {name: old for name, old in network.original_names.items() if name in names}
    changed = replace(copy, original_names=kept)
    # A pair's source may come from another pair, after a move.
    return (
        excluding(changed, nodes, original) if pairs_read(changed).keys() & set(nodes) else changed
    )


def without_pairs(
    network: Network,
    pairs: Collection[NodeName],
    original: Network | None,
    known: dict[NodeName, NDArray[np.float32]],
) -> Network:
    """Return `network` without some of its pairs, for all their readers; see `excluding`.

    Args:
        network: The quantised model; not changed.
        pairs: Names of their DequantizeLinears.
        original: The model before quantisation.
        known: Of `RawInputs`, for other calls with the same models.
    """
    copy = replace(network, model=network.copy())
    graph, raw, names = copy.graph, RawInputs(copy, original, known), Names(copy.graphs())
    instead: dict[ir.Value, ir.Value] = {}
    for pair in pairs_of(copy):
        if node_name(pair.dequantise) not in pairs:
            continue
        output, value = pair.dequantise.outputs[0], raw.before(pair)
        instead[output] = value = instead.get(value, value)
        if output.is_graph_output():
            name, output.name = output.name, names.take(f"{output.name}::quantised")
            given = ir.val(name, type=value.type, shape=output.shape)
            graph.outputs[:] = [given if v is output else v for v in graph.outputs]
            name = names.take(f"{name}::raw")
            graph.append(ir.node("Identity", [value], outputs=[given], name=name))
        output.replace_all_uses_with(value)
    drop_unused_nodes(graph)
    return copy


@dataclass
class RawInputs:
    """Inputs of nodes without their pairs; adds the necessary nodes to the model, in place.

    Attributes:
        network: The quantised model.
        original: The model before quantisation, for its weights.
        known: Stored weights as floats, by DequantizeLinear; those that are found join.
        read: The pairs at the slots of the quantised model's nodes.
    """

    network: Network
    original: Network | None = None
    known: dict[NodeName, NDArray[np.float32]] = field(default_factory=dict)
    read: Mapping[NodeName, Mapping[int, Pair]] = field(init=False)

    def __post_init__(self) -> None:
        """Read the pairs."""
        self.read = pairs_read(self.network)
        self._names = Names(self.network.graphs())
        self._weights: dict[Pair, ir.Value] = {}
        self._moved: dict[ir.Value, tuple[ir.Node, ir.Node]] = {}
        self._activations: dict[ir.Value, ir.Value] = {}
        self._floats = None if self.original is None else _by_size(self.original)

    def at(self, node: ir.Node, slot: int) -> ir.Value:
        """Return what a node would read at a slot without the pair there."""
        value = self.before(self.read[node_name(node)][slot])
        for move in reversed(moves_before(node, slot)):
            value = self._behind(move, value)
        return value

    def before(self, pair: Pair) -> ir.Value:
        """Return the float tensor that a pair stands for: its source, or weights as floats.

        If an activation was dropped because of the pair, it is restored.
        """
        if pair.source is None or pair.quantise is None:
            return self._weight(pair)
        ends = dropped(pair, self.original)
        if ends is not None and pair.source not in self._activations:
            graph, source = self.network.graph, pair.source
            self._activations[source] = remade(graph, source, ends, pair.quantise, self._names)
        return self._activations.get(pair.source, pair.source)

    def give_out(self) -> None:
        """Replace graph outputs that come from pairs by the pairs' sources; names stay."""
        graph = self.network.graph
        pairs = {pair.dequantise.outputs[0]: pair for pair in pairs_of(self.network)}
        for i, output in enumerate(graph.outputs):
            source = self.before(pairs[output]) if output in pairs else output
            if source.producer() is not None and not source.is_graph_output():
                name, output.name = output.name, self._names.take(f"{output.name}::quantised")
                graph.outputs[i], source.name = source, name

    def take_names(self) -> None:
        """Give added values the names of the values they replace, if those are gone."""
        graph = self.network.graph
        for pair, value in self._weights.items():
            output = pair.dequantise.outputs[0]
            if pair.dequantise.graph is None and value.graph is graph:
                value.name = output.name
        for old, new in self._moved.values():
            if old.graph is None and new.graph is graph:
                new.name = old.name
                if not new.outputs[0].is_graph_output():
                    new.outputs[0].name = old.outputs[0].name

    def _weight(self, pair: Pair) -> ir.Value:
        if pair not in self._weights:
            place = node_name(pair.dequantise)
            if place not in self.known:
                self.known[place] = _original(pair, pair.dequantised(), self._floats or {})
            array = self.known[place]
            name = self._names.take(f"{pair.dequantise.outputs[0].name}::raw")
            self._weights[pair] = add_constant(self.network.graph, name, array)
        return self._weights[pair]

    def _behind(self, move: ir.Node, value: ir.Value) -> ir.Value:
        """Return the result of `move` applied to `value`."""
        old = move.outputs[0]
        if old not in self._moved:
            output = ir.val(self._names.take(f"{old.name}::raw"), type=old.type, shape=old.shape)
            name = self._names.take(f"{move.name}::raw")
            read, kept = [value, *move.inputs[1:]], move.attributes.values()
            new = ir.Node(move.domain, move.op_type, read, kept, outputs=[output], name=name)
            self.network.graph.insert_after(move, new)
            self._moved[old] = move, new
        return self._moved[old][1].outputs[0]


def _by_size(original: Network) -> Mapping[int, list[ir.Value]]:
    """Return the float constants of a network by number of elements."""
    by_size: dict[int, list[ir.Value]] = {}
    for value in (v for graph in original.graphs() for v in graph.initializers.values()):
        if is_float(value) and value.const_value is not None:
            by_size.setdefault(value.const_value.size, []).append(value)
    return by_size


def _original(
    pair: Pair, dequantised: NDArray[np.float32], floats: Mapping[int, list[ir.Value]]
) -> NDArray[np.float32]:
    """Return the constant of the original that the integers came from, else `dequantised`.

    It is within one step of them everywhere, or beyond the end of the type's range where they
    saturate: rounding to nearest is off by at most half a step, learned rounding by a whole one. If
    several match, the nearest wins. Scales that are not positive numbers are replaced by the best
    fit.
    """
    best, least = dequantised, np.inf
    for array in _candidates(floats.get(dequantised.size, ()), dequantised.shape):
        distance = _distance(pair, array, dequantised)
        if distance < least:
            best, least = array, distance
    return best


def _candidates(
    values: Collection[ir.Value], shape: tuple[int, ...]
) -> Iterator[NDArray[np.float32]]:
    for array in (np.asarray(constant_array(value)) for value in values):
        if array.shape == shape:
            yield array
        elif array.T.shape == shape:
            yield np.ascontiguousarray(array.T)


def _distance(pair: Pair, array: NDArray[Any], dequantised: NDArray[np.float32]) -> float:
    """Return the mean distance in steps; inf if `array` does not round to the stored numbers."""
    stored, steps = pair.stored(), pair.steps(dequantised.shape)
    if stored is not None and not pair.has_scales:
        steps = _fitted(pair, array).astype(np.float32)
        dequantised = pair.levels() * steps
    if stored is None or not np.all(steps > 0):
        return float(np.inf)
    whole = (np.atleast_1d(a) for a in np.broadcast_arrays(stored, array, dequantised, steps))
    stored, array, dequantised, steps = whole
    # Most candidates differ in the first row: there may be hundreds, of millions of elements.
    for part in (slice(0, 1), slice(None)):
        distance = _part_distance(stored[part], array[part], dequantised[part], steps[part])
        if distance == np.inf:
            break
    return distance


def _part_distance(
    stored: NDArray[Any],
    array: NDArray[Any],
    dequantised: NDArray[np.float32],
    steps: NDArray[np.float32],
) -> float:
    """Return `_distance` of some elements: stored numbers, floats, and the step of each."""
    if ir.DataType.from_numpy(stored.dtype).is_floating_point():
        kind = ml_dtypes.finfo(stored.dtype)
        sizes = np.abs(stored.astype(np.float32))
        steps = steps * np.maximum(sizes * float(kind.eps), float(kind.smallest_subnormal))
        least, most = -float(kind.max), float(kind.max)
    else:
        range_of = ml_dtypes.iinfo(stored.dtype)
        least, most = range_of.min + (range_of.min < 0), range_of.max
    away = (array - dequantised) / steps
    levels = stored.astype(np.float64)
    clipped = ((levels <= least) & (away < 0)) | ((levels >= most) & (away > 0))
    if np.any((np.abs(away) > 1 + _ROUNDOFF) & ~clipped):
        return float(np.inf)
    return float(np.mean(np.abs(away)))


def _fitted(pair: Pair, array: NDArray[Any]) -> NDArray[np.float64]:
    """Return a pair's steps, with least-squares fits for those that are not positive numbers."""
    steps, levels = pair.steps(array.shape), pair.levels().astype(np.float64)
    others = None if pair.axis is None else tuple({*range(array.ndim)} - {pair.axis})
    squares = np.sum(levels**2, axis=others, keepdims=True)
    shared = np.sum(levels * array, axis=others, keepdims=True)
    fitted = np.divide(shared, squares, out=np.full_like(squares, np.nan), where=squares > 0)
    return np.where(np.isfinite(steps) & (steps > 0), steps, fitted)
