"""A model for one set of input shapes: the shapes are fixed, and what they make constant is folded.

Builders choose other forms for such a model, so a fault may vanish. The one that it was made for
does not: TensorRT 8.6.0 exchanges two operands in an exported CLIP's attention, and so it does in
such a model (docs/tensorrt-measured.md). All other nodes stay as they are, with their names.
"""

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from halfwise.case import Sample, Samples
from halfwise.emulation.ort import Session
from halfwise.graph.model import Network, add_constant, is_standard, normalise, tensor_name
from halfwise.graph.roles import bodies

_SHAPES = ("Shape", "Size")
_DRAWN = ("RandomNormal", "RandomUniform")
_ROUNDS = 8
"""Times that shapes are inferred again: constants give further shapes. Our choice."""
FOLDED_BYTES = 1 << 26
"""Largest result that replaces a node: more would make the file large for nothing. Our choice."""


def settled(network: Network, samples: Samples) -> Network | None:
    """Return a network for inputs with the shapes of `samples` only.

    None if nothing would change, or samples differ in shape. What is folded is computed in ONNX
    Runtime, and depends on no input's values.

    Raises:
        CaseError: the model does not take these shapes.
        RunFailed: it does not run.
    """
    sample = next(iter(samples), None)
    if sample is None or any(_shapes(other) != _shapes(sample) for other in samples):
        return None
    model, changed = network.copy(), False
    for value in model.graph.inputs:
        shape = ir.Shape(sample[tensor_name(value)].shape)
        changed |= value.shape != shape
        value.shape = shape
    for _ in range(_ROUNDS):
        own = normalise(model, path=network.path, sha256=network.sha256)
        if not _fold(own, sample):
            break
        model, changed = own.model, True
    return own if changed else None


def _shapes(sample: Sample) -> dict[str, tuple[int, ...]]:
    return {name: array.shape for name, array in sample.items()}


def _fold(network: Network, sample: Sample) -> bool:
    """Replace nodes that depend on no input's values, in place; return whether there were any."""
    graph = network.graph
    known: set[ir.Value] = set(graph.initializers.values())
    constant = list[ir.Node]()
    for node in network.nodes():
        if _is_constant(node, known):
            constant.append(node)
            known.update(node.outputs)
    inside = set(constant)
    ends = [
        v
        for node in constant
        for v in node.outputs
        if v.name and any(use.node not in inside for use in v.uses()) and not v.is_graph_output()
    ]
    if not ends:
        return False
    values = _computed(network, ends, sample)
    done = [v for v in ends if values[tensor_name(v)].nbytes <= FOLDED_BYTES]
    for value in done:
        name = tensor_name(value)
        value.name = f"{name}::computed"
        new = add_constant(graph, name, values[name])
        for use in list(value.uses()):
            use.node.replace_input_with(use.idx, new)
    for node in reversed(constant):
        if not any(v.uses() or v.is_graph_output() for v in node.outputs):
            graph.remove(node, safe=True)
    return bool(done)


def _is_constant(node: ir.Node, known: set[ir.Value]) -> bool:
    if bodies(node) or node.domain not in ("", "ai.onnx") or is_standard(node, *_DRAWN):
        return False
    if is_standard(node, *_SHAPES):
        shape = None if node.inputs[0] is None else node.inputs[0].shape
        return shape is not None and all(isinstance(size, int) for size in shape)
    return bool(node.inputs) and all(v is None or v in known for v in node.inputs)


def _computed(
    network: Network, ends: Sequence[ir.Value], sample: Sample
) -> dict[str, NDArray[np.generic]]:
    """Return the values of tensors, for one sample."""
    model, names = network.copy(), {tensor_name(v) for v in ends}
    own = (v for node in model.graph for v in node.outputs if v.name in names)
    model.graph.outputs.extend(own)
    return Session(model).run(sample, sorted(names))
