"""Exclude nodes from INT8: they read the sources of their pairs, and stored weights as floats.

Activations that a quantiser dropped because a pair clips the same values are restored:
onnxruntime.quantization drops each Relu and Clip whose result it quantises asymmetrically (its
operators/activation.py). A node that reads such a pair's source directly would read other values.
"""

from collections.abc import Collection, Sequence

import ml_dtypes
import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from halfwise.graph.casts import replace_output
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
from halfwise.graph.reading import behind
from halfwise.graph.roles import is_float
from halfwise.records import NodeName, replace

_CUTS = ("Relu", "Clip")
_NOT_NEGATIVE = (*_CUTS, "Abs", "Exp", "HardSigmoid", "Sigmoid", "Softmax", "Softplus", "Sqrt")


def with_activations(network: Network, original: Network | None = None) -> Network:
    """Return the model with its dropped activations restored; they clip what the pairs clip.

    Args:
        network: A quantised model; not changed.
        original: As for `dropped`.
    """
    copy = replace(network, model=network.copy())
    bypass = _Bypass(copy, original)
    for pair in pairs_of(copy):
        if pair.quantise is not None:
            pair.quantise.replace_input_with(0, bypass.before(pair))
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
    source: ir.Value, ends: tuple[float | None, float | None], before: ir.Node, names: Names
) -> ir.Value:
    """Return the activation of `source`, computed by new nodes in front of the node `before`."""
    graph = before.graph
    assert isinstance(graph, ir.Graph)
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
    nodes = original.graph.all_nodes()
    return next((v for node in nodes for v in node.outputs if v.name == name), None)


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


def excluding(
    network: Network,
    nodes: Collection[NodeName],
    original: Network | None = None,
    *,
    ends: bool = False,
) -> Network:
    """Return `network` with `nodes` outside INT8.

    Each of them reads what is before its pairs, at all its slots. Weights that the file stores as
    integers become the weights of `original` that round to them, or else the dequantised integers.
    Q and DQ that become unused are removed; nodes and tensors that stay keep their names.

    Args:
        network: The quantised model; not changed.
        nodes: Nodes of its main graph; those that read no pair do not change.
        original: The model before quantisation.
        ends: Whether graph outputs are also taken from before their pairs.
    """
    copy = replace(network, model=network.copy())
    bypass = _Bypass(copy, original)
    for pair in pairs_of(copy):
        bypass(pair, [(n, slot) for n, slot in pair.readers if node_name(n) in nodes], ends=ends)
    drop_unused_nodes(copy.graph)
    names = {node_name(n) for n in copy.all_nodes()}
    kept = {name: old for name, old in network.original_names.items() if name in names}
    changed = replace(copy, original_names=kept)
    # A pair's source may come from another pair, after a move.
    again = pairs_read(changed).keys() & set(nodes)
    return excluding(changed, nodes, original) if again else changed


def without_pairs(
    network: Network, pairs: Collection[NodeName], original: Network | None
) -> Network:
    """Return `network` without some of its pairs, for all their readers; see `excluding`.

    Args:
        network: The quantised model; not changed.
        pairs: Names of their DequantizeLinears.
        original: The model before quantisation.
    """
    copy = replace(network, model=network.copy())
    bypass = _Bypass(copy, original)
    for pair in pairs_of(copy, inner=True):
        if node_name(pair.dequantise) in pairs:
            bypass(pair, pair.readers, ends=True)
    drop_unused_nodes(copy.graph)
    return copy


class _Bypass:
    """Lets nodes of a quantised model read what is before their pairs, in place."""

    def __init__(self, network: Network, original: Network | None) -> None:
        """Take the quantised model, and that before quantisation, for its weights."""
        self._graph, self._original = network.graph, original
        nodes = () if original is None else original.all_nodes()
        self._nodes = {node_name(node): node for node in nodes}
        self._names = Names(network.graphs())
        self._activations: dict[ir.Value, ir.Value] = {}

    def __call__(self, pair: Pair, wanted: Sequence[tuple[ir.Node, int]], *, ends: bool) -> None:
        """Let some of a pair's readers, and outputs if `ends`, have what is before it."""
        output = pair.dequantise.outputs[0]
        name, ends = output.name, ends and output.is_graph_output()
        if not (wanted or ends):
            return
        value = self.before(pair)
        if ends:
            self._give_out(output, value)
        if len(wanted) == len(pair.readers) and not output.is_graph_output():
            output.replace_all_uses_with(value)
            if pair.quantise is None and not ends:
                output.name, value.name = None, name
            return
        for node, slot in wanted:
            read = value
            for move in reversed(moves_before(node, slot)):
                read = self._moved(move, read)
            node.replace_input_with(slot, read)

    def before(self, pair: Pair) -> ir.Value:
        """Return the float tensor that a pair stands for: its source, or weights as floats.

        If an activation was dropped because of the pair, it is restored.
        """
        if pair.quantise is None:
            name = self._names.take(f"{pair.dequantise.outputs[0].name}::raw")
            return add_constant(self._graph, name, self._weights(pair))
        source = pair.quantise.inputs[0]
        assert source is not None
        ends = dropped(pair, self._original)
        if ends is not None and source not in self._activations:
            self._activations[source] = remade(source, ends, pair.quantise, self._names)
        return self._activations.get(source, source)

    def _give_out(self, output: ir.Value, value: ir.Value) -> None:
        """Give out a value in the place of a pair's output, under its name."""
        node, name = output.producer(), output.name
        assert node is not None
        assert isinstance(node.graph, ir.Graph)
        output.name = self._names.take(f"{name}::quantised")
        if value.producer() is None or value.graph is not node.graph or value.is_graph_output():
            given = ir.val(name, type=value.type, shape=output.shape)
            again = self._names.take(f"{name}::raw")
            node.graph.append(ir.node("Identity", [value], outputs=[given], name=again))
            value = given
        value.name = name
        replace_output(node.graph, output, value)

    def _moved(self, move: ir.Node, value: ir.Value) -> ir.Value:
        """Return the result of a copy of `move` applied to `value`."""
        old, graph = move.outputs[0], move.graph
        assert isinstance(graph, ir.Graph)
        output = ir.val(self._names.take(f"{old.name}::raw"), type=old.type, shape=old.shape)
        name = self._names.take(f"{move.name}::raw")
        read, kept = [value, *move.inputs[1:]], move.attributes.values()
        new = ir.Node(move.domain, move.op_type, read, kept, outputs=[output], name=name)
        graph.insert_after(move, new)
        return output

    def _weights(self, pair: Pair) -> NDArray[np.float32]:
        """Return the original's constant that stored integers came from, or what they stand for.

        It is read by a node of the same name at the same slot, perhaps moved or transposed.
        """
        dequantised = pair.dequantised()
        for reader, slot in pair.readers:
            node = self._nodes.get(node_name(reader))
            value = node.inputs[slot] if node is not None and slot < len(node.inputs) else None
            constant = None if value is None else behind(value).value
            if not is_float(constant) or constant is None or constant.const_value is None:
                continue
            array = np.asarray(constant_array(constant), np.float32)
            for each in (array, array.T):
                if each.shape == dequantised.shape and _came_from(pair, each, dequantised):
                    return np.ascontiguousarray(each)
        return dequantised


_ROUNDOFF = 1e-4
"""Tolerance in steps: FP32 has a relative error of 6e-8 in products and quotients up to 128."""


def _came_from(pair: Pair, array: NDArray[np.float32], dequantised: NDArray[np.float32]) -> bool:
    """Return whether a pair's stored numbers came from `array`, whose shape they have.

    It is within one step of them everywhere, or beyond the end of the type's range where they
    saturate: rounding to nearest is off by at most half a step, learned rounding by a whole one.
    Where a scale is not a positive number, anything may be.
    """
    stored, steps = pair.stored(), pair.steps(array.shape)
    assert stored is not None
    if ir.DataType.from_numpy(stored.dtype).is_floating_point():
        kind = ml_dtypes.finfo(stored.dtype)
        sizes = np.abs(stored.astype(np.float32))
        steps = steps * np.maximum(sizes * float(kind.eps), float(kind.smallest_subnormal))
        least, most = -float(kind.max), float(kind.max)
    else:
        range_of = ml_dtypes.iinfo(stored.dtype)
        least, most = range_of.min + (range_of.min < 0), range_of.max
    with np.errstate(divide="ignore", invalid="ignore"):
        away = (array - dequantised) / steps
    levels = stored.astype(np.float64)
    clipped = ((levels <= least) & (away < 0)) | ((levels >= most) & (away > 0))
    known = np.isfinite(steps) & (steps > 0)
    return not np.any(known & (np.abs(away) > 1 + _ROUNDOFF) & ~clipped)
