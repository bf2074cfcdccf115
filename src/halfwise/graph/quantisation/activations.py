"""Activations that a quantiser dropped because a pair clips the same values.

onnxruntime.quantization drops each Relu and Clip whose result it quantises asymmetrically (its
operators/activation.py). A node that reads such a pair's source directly would read other values.
"""

from dataclasses import replace

import ml_dtypes
import numpy as np
import onnx_ir as ir

from halfwise.graph.model import Network, add_constant, constant_array, is_standard
from halfwise.graph.normal_form import Names
from halfwise.graph.quantisation.pairs import Pair, pairs_of

_CUTS = ("Relu", "Clip")
_NOT_NEGATIVE = (*_CUTS, "Abs", "Exp", "HardSigmoid", "Sigmoid", "Softmax", "Softplus", "Sqrt")


def with_activations(network: Network, original: Network | None = None) -> Network:
    """Return the model with its dropped activations restored; they clip what the pairs clip.

    Args:
        network: A quantised model; not changed.
        original: As for `dropped`.
    """
    model = network.copy()
    names = Names((model.graph,))
    made: dict[ir.Value, ir.Value] = {}
    for pair in pairs_of(replace(network, model=model)):
        if pair.source is None or pair.quantise is None:
            continue
        if pair.source not in made and (ends := dropped(pair, original)) is not None:
            made[pair.source] = remade(model.graph, pair.source, ends, pair.quantise, names)
        pair.quantise.replace_input_with(0, made.get(pair.source, pair.source))
    return replace(network, model=model)


def dropped(pair: Pair, original: Network | None) -> tuple[float | None, float | None] | None:
    """Return the bounds of the activation dropped before a pair; None if none was dropped.

    Args:
        pair: A pair with a source.
        original: The model before quantisation; its tensor with the source's name decides.
            Without such a tensor, a range that begins at zero means a Relu.

    Returns:
        The lower and upper bound, each None if absent.
    """
    maker = None if pair.source is None else pair.source.producer()
    if maker is None or is_standard(maker, *_CUTS):
        return None
    before = None if original is None else _maker(original, pair.source)
    if before is not None:
        return _ends(before)
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
        given = ir.val(name, type=source.type, shape=source.shape)
        made = ir.node("Relu" if is_relu else op, read, outputs=[given], name=name)
        graph.insert_before(before, made)
        source = given
    return source


def _maker(original: Network, source: ir.Value | None) -> ir.Node | None:
    """Return the node that computes the tensor of that name; None if there is none."""
    name = None if source is None else source.name
    made = (node for node in original.nodes() if any(v.name == name for v in node.outputs))
    return next(made, None)


def _ends(node: ir.Node) -> tuple[float | None, float | None] | None:
    if is_standard(node, "Relu"):
        return 0.0, None
    if not is_standard(node, "Clip"):
        return None
    found = [node.attributes.get(name) for name in ("min", "max")]
    ends = [None if end is None else end.as_float() for end in found]
    for place, value in enumerate(node.inputs[1:3]):
        if value is not None and value.const_value is not None:
            ends[place] = float(constant_array(value).item())
    return ends[0], ends[1]
