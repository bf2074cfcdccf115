"""Make a model whose tensors have given exponents."""

import math
from collections.abc import Iterable, Mapping

import numpy as np
import onnx_ir as ir

from halfwise.graph.casts import replace_output
from halfwise.graph.model import Names, add_constant, constant_array, graphs_of, tensor_name
from halfwise.graph.roles import bodies
from halfwise.graph.scaling.relations import Constant, Edge, Relations, completed, relations
from halfwise.graph.writing import Writer
from halfwise.records import TensorName


def rescale(model: ir.Model, exponents: Mapping[TensorName, int]) -> None:
    """Store each tensor of the main graph times a power of two, in place.

    Constants and attributes are multiplied as the relations require; a node that needs another
    multiple of a shared constant reads a copy. A Mul is inserted where an edge and its tensor
    differ in exponent, and an Add after a Log. Nodes and tensors keep their names, and graph inputs
    and outputs keep their values: if an output is stored scaled, a Mul's result takes its name and
    the stored tensor gets another.

    Args:
        model: In normal form.
        exponents: The nonzero exponents of tensors, edges and constants that do not follow (see
            `Relations`).

    Raises:
        CaseError: they do not fit the model, which is left unchanged.
    """
    found = relations(model)
    full = completed(found, exponents)
    names = Names(graphs_of(model))
    places: dict[ir.Value, dict[Constant, int]] = {}
    for constant, exponent in multiples(found, full).items():
        if constant.value is not None:
            places.setdefault(constant.value, {})[constant] = exponent
        elif exponent:
            _multiply_attribute(constant, exponent)
    for value, wanted in places.items():
        _multiply(value, wanted, model.graph, names)
    made = (v for node in model.graph for v in node.outputs if v.name)
    values = {tensor_name(v): v for v in (*model.graph.inputs, *made)}
    edges: dict[tuple[TensorName, int], list[Edge]] = {}
    for name, edge in found.edges.items():
        if difference := full[name] - full[edge.tensor]:
            edges.setdefault((edge.tensor, difference), []).append(edge)
    for (tensor, difference), readers in edges.items():
        _insert_mul(Writer(model, tensor, names), values[tensor], difference, readers)
    for name in found.logs:
        log = found.edges[name].node
        if full[name] and log is not None:
            _insert_add(model, log, full[name], names)


def multiples(found: Relations, full: Mapping[TensorName, int]) -> dict[Constant, int]:
    """Return the exponent of each constant's replacement; 0 for constants that stay.

    Args:
        found: What exponents must satisfy.
        full: All exponents, see `completed`.
    """
    # Zeros and infinities are their own multiples.
    return {
        constant: full[name] if full[name] and constant.magnitudes[1] else 0
        for name, constant in found.constants.items()
    }


def in_place(value: ir.Value, wanted: Mapping[Constant, int]) -> int:
    """Return the exponent that an initializer itself gets; places that need another get copies.

    Args:
        value: The initializer.
        wanted: The exponents of all places for which relations require one.
    """
    others = len(value.uses()) > len(wanted) or value.is_graph_output()
    return 0 if others or 0 in wanted.values() else next(iter(wanted.values()))


def _multiply(
    value: ir.Value, wanted: Mapping[Constant, int], graph: ir.Graph, names: Names
) -> None:
    """Give each place its multiple of an initializer, which others may read unchanged."""
    array = constant_array(value)
    kept = in_place(value, wanted)
    stored = {kept: value}
    for constant, exponent in wanted.items():
        if exponent not in stored:
            name = names.take(f"{value.name}_scaled")
            stored[exponent] = add_constant(graph, name, np.ldexp(array, exponent))
        assert isinstance(constant.slot, int)
        constant.node.replace_input_with(constant.slot, stored[exponent])
    if kept:
        value.const_value = ir.tensor(np.ldexp(array, kept), name=value.name)


def _multiply_attribute(constant: Constant, exponent: int) -> None:
    name, array = str(constant.slot), np.ldexp(constant.array, exponent)
    is_tensor = array.ndim > 0
    constant.node.attributes[name] = (
        ir.AttrTensor(name, ir.tensor(array)) if is_tensor else ir.AttrFloat32(name, float(array))
    )


def _insert_mul(writer: Writer, value: ir.Value, difference: int, readers: Iterable[Edge]) -> None:
    """Make `readers` read `value` times 2^difference."""
    result = _behind(writer, value, "Mul", 2.0**difference)
    for _, node, slot in readers:
        if node is None:
            result.name, value.name = value.name, result.name
            replace_output(writer.graph, value, result)
        elif slot is not None:
            node.replace_input_with(slot, result)
        else:
            _capture(node, value, result)


def _insert_add(model: ir.Model, log: ir.Node, exponent: int, names: Names) -> None:
    """Subtract log(2^exponent) from the result of `log`, which keeps its name."""
    value = log.outputs[0]
    uses = list(value.uses())
    writer = Writer(model, tensor_name(value), names)
    result = _behind(writer, value, "Add", -exponent * math.log(2))
    result.name, value.name = value.name, result.name
    for graph in graphs_of(model):
        replace_output(graph, value, result)
    for node, slot in uses:
        node.replace_input_with(slot, result)


def _capture(node: ir.Node, value: ir.Value, result: ir.Value) -> None:
    """Make the bodies of `node`, at any depth, read `result` instead of `value`."""
    for body in bodies(node):
        for graph in (body, *body.subgraphs()):
            replace_output(graph, value, result)
        for inner in body.all_nodes():
            for slot, read in enumerate(inner.inputs):
                if read is value:
                    inner.replace_input_with(slot, result)


def _behind(writer: Writer, value: ir.Value, op: str, number: float) -> ir.Value:
    """Insert a node that computes with `value` and a number; return its result."""
    result = writer.op(op, value, writer.constant("operand", np.array(number, np.float32)))
    result.type, result.shape = value.type, value.shape
    producer = value.producer()
    if producer is None:
        writer.graph.insert_before(writer.graph[0], writer.made)
    else:
        writer.graph.insert_after(producer, writer.made)
    return result
