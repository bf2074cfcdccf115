"""Whether two graphs differ only in Casts and types, as a model and its lowered version do."""

from collections.abc import Callable, Collection, Container, Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from halfwise.graph.anchors import is_anchor
from halfwise.graph.casts import FORMATS
from halfwise.graph.conversion import TYPE_ATTRIBUTES
from halfwise.graph.dataflow import captured_by, operands, reached
from halfwise.graph.model import (
    Network,
    is_standard,
    node_name,
    opset_of,
    tensor_name,
)
from halfwise.graph.roles import DATA_MOVEMENT, TYPE_BLIND, bodies, is_float
from halfwise.graph.sizes import sizes_read
from halfwise.graph.weights import FLOATS, LOW_TYPES
from halfwise.records import NodeName, TensorName

Key = tuple[NodeName, str]
"""Key of a body: its node's name and the attribute that holds it."""
_Equal = Callable[[ir.Value | None, ir.Value | None], bool]
"""Tells whether values of two graphs are the same; None is an input that a node leaves out."""


@dataclass(frozen=True)
class Body:
    """A body of an If, Loop or Scan.

    Attributes:
        key: Its key.
        node: The node that holds it.
        graph: The body itself.
        around: The enclosing bodies, outermost first.
    """

    key: Key
    node: ir.Node
    graph: ir.Graph
    around: tuple[Key, ...]

    def computes(self, *, low: bool) -> bool:
        """Return whether a node in it, at any depth, computes with floats (if `low`: low floats).

        Data movement, shape computations and constants lose no precision and do not count.
        """
        types = LOW_TYPES if low else FLOATS
        return any(_computes(node, types) for node in self.graph.all_nodes())

    @property
    def can_run(self) -> bool:
        """Whether inputs may decide if it runs; false for an If with the same condition always."""
        return self.node.op_type != "If" or not is_fixed(self.node.inputs[0])

    def inputs(self, graph: ir.Graph) -> tuple[str, ...]:
        """Return the inputs of the main graph, `graph`, that the body's own condition reads."""
        condition = self.node.inputs[: {"If": 1, "Loop": 2}.get(self.node.op_type, 0)]

        def read(value: ir.Value | None) -> Sequence[ir.Value | None]:
            node = None if value is None else value.producer()
            return () if node is None else node.inputs

        seen = reached(condition, read)
        return tuple(value.name or "" for value in graph.inputs if value in seen)


def bodies_in(graph: ir.Graph, around: tuple[Key, ...] = ()) -> dict[Key, Body]:
    """Return the bodies in a typed graph, at any depth, outermost first."""
    inside: dict[Key, Body] = {}
    for node in graph:
        for attribute, body in bodies_of(node):
            key = node_name(node), attribute
            inside[key] = Body(key, node, body, around)
            inside |= bodies_in(body, (*around, key))
    return inside


def bodies_of(node: ir.Node) -> list[tuple[str, ir.Graph]]:
    """Return (attribute name, body) for each body of an If, Loop or Scan; empty for other nodes."""
    if node.op_type not in ("If", "Loop", "Scan") or node.domain:
        return []
    graphs = (a for a in node.attributes.values() if a.type == ir.AttributeType.GRAPH)
    return [(attribute.name, attribute.as_graph()) for attribute in graphs]


def is_observable(node: ir.Node, opset: int) -> bool:
    """Return whether the bodies of a node can be networks of their own.

    All they read and give out has to be tensors. Before opset 9, a Scan has an axis for the batch,
    and few models have bodies.
    """
    inner = (v for _, body in bodies_of(node) for v in (*body.inputs, *body.outputs))
    values = (*operands(node), *node.outputs, *inner)
    tensors = all(isinstance(value.type, ir.TensorType) for value in values if value.name)
    return tensors and opset >= OBSERVABLE_OPSET


OBSERVABLE_OPSET = 9


def carried(node: ir.Node) -> Sequence[ir.Value]:
    """Return the outputs of a Loop or Scan that hold its state; empty for other nodes.

    The next run of the body reads them, whether or not anything reads the last of them. Their
    number follows from the inputs: a Loop has two more, a Scan as many more as it scans.
    """
    if node.domain or node.op_type not in ("Loop", "Scan"):
        return ()
    scanned = node.attributes.get("num_scan_inputs")
    others = 2 if scanned is None else scanned.as_int()
    return node.outputs[: max(0, len(node.inputs) - others)]


def _computes(node: ir.Node, types: Container[ir.DataType | None]) -> bool:
    if node.op_type in DATA_MOVEMENT | TYPE_BLIND | {"Constant"} or bodies_of(node):
        return False
    return any(v is not None and v.dtype in types for v in (*node.inputs, *node.outputs))


def is_fixed(value: ir.Value | None) -> bool:
    """Return whether a value is the same for all inputs: it depends on none, or on fixed shapes."""

    def varies(one: ir.Value | None) -> bool:
        node = None if one is None else one.producer()
        return (
            one is not None and one.const_value is None and (node is None or bool(bodies_of(node)))
        )

    def behind(one: ir.Value | None) -> Sequence[ir.Value | None]:
        node = None if one is None or one.const_value is not None else one.producer()
        sizes = None if node is None else sizes_read(node)
        sized = sizes is not None and all(isinstance(size, int) for size in sizes)
        return () if node is None or sized or varies(one) else node.inputs

    return not any(map(varies, reached([value], behind)))


_RUNS = "halfwise::runs"


def count_runs(model: ir.Model, wanted: Sequence[Key]) -> list[str]:
    """Add an output for each body to a model, in place; return the outputs' names.

    Each output is int64[1]: how often the body ran. A count leaves each enclosing body as one more
    output; other branches output 0, and iterations are summed.

    Args:
        model: Any model whose node names are unique.
        wanted: Keys of the bodies to count.

    Raises:
        KeyError: the model has no such body.
    """
    ones = _Reporting(opset_of(model), lambda body, k: _constant([1], body, k, k))
    totals = ones.sums(model.graph)
    values = [totals[key] for key in wanted]
    model.graph.outputs.extend(values)
    return [value.name or "" for value in values]


def tell_shapes(model: ir.Model) -> dict[Key, tuple[str, tuple[TensorName, ...]]]:
    """Add an output for each body to a model, in place, with the shapes of the body's tensors.

    Args:
        model: Of opset 10 or later, with unique names of nodes and values.

    Returns:
        For each body, the name of its output (for `seen_in_body`) and the float tensors that it
        covers: the body's inputs and the outputs of its nodes.
    """
    names = {
        key: tuple(map(tensor_name, _reported_values(body.graph)))
        for key, body in bodies_in(model.graph).items()
    }
    totals = _Reporting(opset_of(model), _shapes).sums(model.graph)
    model.graph.outputs.extend(totals.values())
    return {key: (value.name or "", names[key]) for key, value in totals.items()}


def seen_in_body(
    total: NDArray[np.generic], names: Sequence[TensorName]
) -> tuple[int, dict[TensorName, tuple[int, ...]]]:
    """Return how often a body ran, and its tensors' shapes, averaged over all runs.

    Args:
        total: The value of an output of `tell_shapes`, or the sum of several.
        names: The tensors it covers.
    """
    numbers = total.astype(np.int64)
    runs = int(numbers[0])
    if not runs:
        return 0, {}
    means = numbers[1:].reshape(-1, _AXES) / runs
    shapes = (tuple(round(size) for size in row.tolist() if size >= 0) for row in means)
    return runs, dict(zip(names, shapes, strict=True))


_AXES = 8
"""Axes reported per tensor: TensorRT's maximum."""


def _reported_values(body: ir.Graph) -> list[ir.Value]:
    computed = (v for node in body for v in node.outputs)
    return [v for v in (*body.inputs, *computed) if v.name and v.dtype in FLOATS]


def _shapes(body: ir.Graph, key: Key) -> ir.Value:
    """Append nodes that output int64[1 + `_AXES` · tensors]: 1, then the shapes, padded with -1."""
    values = _reported_values(body)
    filling, start, end = (
        _constant(numbers, body, key, key, part)
        for part, numbers in (("fill", [-1] * _AXES), ("start", [0]), ("end", [_AXES]))
    )
    parts = [_constant([1], body, key, key, "ran")]
    for index, value in enumerate(values):
        shape = _appended(body, ir.node("Shape", [value]), *key, f"shape {index}")
        filled = ir.node("Concat", [shape, filling], {"axis": 0})
        row = ir.node("Slice", [_appended(body, filled, *key, f"filled {index}"), start, end])
        parts.append(_appended(body, row, *key, f"row {index}"))
    shapes = _appended(body, ir.node("Concat", parts, {"axis": 0}), *key, *key)
    shapes.shape = ir.Shape([1 + _AXES * len(values)])
    return shapes


def count_nonfinite(
    model: ir.Model, tensors: Container[str | None]
) -> dict[str, tuple[TensorName, ...]]:
    """Add an output for each body to a model, in place, that counts NaN and infinities in it.

    Args:
        model: As for `tell_shapes`, but from opset 9 on.
        tensors: FP32 tensors of bodies.

    Returns:
        For each output, int64[n], the n tensors of its body that it counts: all of their elements,
        over all runs.
    """
    counted = {
        key: [v for node in body.graph for v in node.outputs if v.name in tensors]
        for key, body in bodies_in(model.graph).items()
    }

    def tell(body: ir.Graph, key: Key) -> ir.Value:
        flat = _constant([-1], body, key, key, "flat")
        parts = []
        for index, value in enumerate(counted[key]):

            def op(op: str, *read: ir.Value, to: str = "INT64", index: int = index) -> ir.Value:
                attributes = {"to": int(ir.DataType[to])} if op == "Cast" else {}
                node = ir.node(op, read, attributes)
                return _appended(body, node, *key, f"{op} {to} {index}", dtype=ir.DataType[to])

            # The difference is NaN where the value is not finite, and NaN is true.
            lost = op("Cast", op("Sub", value, value, to="FLOAT"), to="BOOL")
            parts.append(op("ReduceSum", op("Reshape", op("Cast", lost), flat)))
        if not parts:
            return _constant([0], body, key, key)
        counts = _appended(body, ir.node("Concat", parts, {"axis": 0}), *key, *key)
        counts.shape = ir.Shape([len(parts)])
        return counts

    totals = _Reporting(opset_of(model), tell).sums(model.graph)
    model.graph.outputs.extend(totals.values())
    return {v.name or "": tuple(map(tensor_name, counted[key])) for key, v in totals.items()}


def _appended(
    body: ir.Graph, node: ir.Node, *names: str, dtype: ir.DataType = ir.DataType.INT64
) -> ir.Value:
    body.append(node)
    return _called(node.outputs[0], *names, dtype=dtype)


@dataclass(frozen=True)
class _Reporting:
    """Carries values out of bodies.

    Attributes:
        opset: The model's opset.
        tell: Appends nodes to a body and returns their result: a vector of known length.
    """

    opset: int
    tell: Callable[[ir.Graph, Key], ir.Value]

    def sums(self, graph: ir.Graph) -> dict[Key, ir.Value]:
        """Return, for every body inside a graph, a value of the graph: the sum over its runs."""
        nodes = list(graph)
        return {key: v for node in nodes for key, v in self._handed_out(node, graph).items()}

    def _handed_out(self, node: ir.Node, graph: ir.Graph) -> dict[Key, ir.Value]:
        bodies = bodies_of(node)
        inner: dict[str, dict[Key, ir.Value]] = {}
        for attribute, body in bodies:
            body_key = (node_name(node), attribute)
            inner[attribute] = {body_key: self.tell(body, body_key), **self.sums(body)}
        lengths = {key: _length(v) for tensors in inner.values() for key, v in tensors.items()}
        for attribute, body in bodies:
            tensors, body_key = inner[attribute], (node_name(node), attribute)
            body.outputs.extend(
                tensors.get(key) or _constant([0] * length, body, body_key, key)
                for key, length in lengths.items()
            )
        first = len(node.outputs)
        node.resize_outputs(first + len(lengths))
        sums = {
            key: _called(v, node_name(node), *key)
            for key, v in zip(lengths, node.outputs[first:], strict=True)
        }
        if node.op_type != "If":
            _lengthen(node, len(lengths))
            sums = {key: self._total(v, node, key, graph) for key, v in sums.items()}
        for key, value in sums.items():
            value.shape = ir.Shape([lengths[key]])
        return sums

    def _total(self, value: ir.Value, node: ir.Node, key: Key, graph: ir.Graph) -> ir.Value:
        if self.opset < 13:
            total = ir.node("ReduceSum", [value], {"keepdims": 0, "axes": [0]})
        else:
            axes = ir.node("Constant", [], {"value": ir.Tensor(np.array([0], np.int64))})
            named = _called(axes.outputs[0], node_name(node), *key, "axes")
            total = ir.node("ReduceSum", [value, named], {"keepdims": 0})
            graph.insert_after(node, axes)
            node = axes
        graph.insert_after(node, total)
        return _called(total.outputs[0], node_name(node), *key, "total")


def _length(value: ir.Value) -> int:
    assert value.shape is not None
    return int(value.shape.numpy()[0])


def _constant(numbers: list[int], body: ir.Graph, where: Key, key: Key, *part: str) -> ir.Value:
    node = ir.node("Constant", [], {"value": ir.Tensor(np.array(numbers, np.int64))})
    value = _appended(body, node, *where, *key, *part)
    value.shape = ir.Shape([len(numbers)])
    return value


def _called(value: ir.Value, *names: str, dtype: ir.DataType = ir.DataType.INT64) -> ir.Value:
    value.name = "::".join((_RUNS, *names))
    value.type = ir.TensorType(dtype)
    return value


def _lengthen(node: ir.Node, by: int) -> None:
    """Extend a Scan's per-output attribute lists by `by` entries for the new outputs."""
    for name in ("scan_output_axes", "scan_output_directions"):
        if (entries := node.attributes.get(name)) is not None:
            node.attributes[name] = ir.AttrInt64s(name, [*entries.as_ints(), *[0] * by])


def first_difference(network: Network, lowered: Network) -> str | None:
    """Return the name of the first node or output in which two models differ; None if equal.

    Casts between FP32, FP16 and BF16 that only `lowered` has, and anchors, are skipped, differences
    among these types do not count, and constants in a low format must be stored as
    `Format.store_constant` stores them, but for what is beyond its range. Nodes are matched by
    name, also in bodies of If, Loop and Scan. An operator that ONNX changed between the two opsets
    counts as different.
    """
    nodes = {node_name(node): node for graph in network.graphs() for node in graph}
    other = {node_name(node): node for graph in lowered.graphs() for node in graph}
    casts = {node for name, node in other.items() if name not in nodes and _casts_floats(node)}
    same = _Same(casts)
    for name, node in other.items():
        if name not in nodes and node not in casts:
            return name
    for name, node in nodes.items():
        if name not in other or not _alike(node, other[name], same):
            return name
        if _version(node, network.opset) != _version(other[name], lowered.opset):
            return name
    outputs = {value.name: value for value in lowered.graph.outputs}
    for value in network.graph.outputs:
        if not same(value, outputs.get(value.name)):
            return value.name
    return None


def shared_tensors(network: Network, other: Network) -> frozenset[TensorName]:
    """Return the float tensors that both compute alike, but that some node reads differently.

    Nodes of the main graph are alike if they and all nodes before them are the same and have no
    bodies. Anything that only `other` has between two nodes makes a difference, even a Cast.
    """
    theirs = {node_name(node): node for node in other.nodes()}
    same: set[NodeName | None] = {None}
    computed: list[ir.Value] = []
    equal = _Same(())
    for node in network.nodes():
        name, read = node_name(node), [v.producer() for v in node.inputs if v is not None]
        before = all(made is None or made.name in same for made in read)
        if before and name in theirs and not bodies(node) and _alike(node, theirs[name], equal):
            same.add(name)
            computed += [v for v in node.outputs if v.name and is_float(v)]
    away = (v for v in computed if any(use.node.name not in same for use in v.uses()))
    return frozenset(map(tensor_name, away))


class _FloatCasts:
    """All Casts between float types."""

    def __contains__(self, node: object) -> bool:
        return isinstance(node, ir.Node) and _casts_floats(node)


def alike(one: ir.Graph, other: ir.Graph) -> bool:
    """Return whether two bodies compute the same of what they capture; see `difference_behind`."""
    outside = [v.name for v in captured_by(one) if v.const_value is None]
    return len(one.outputs) == len(other.outputs) and not difference_behind(
        zip(one.outputs, other.outputs, strict=True), outside
    )


def difference_behind(
    ends: Iterable[tuple[ir.Value, ir.Value]], known: Collection[str | None]
) -> str | None:
    """Return the first node, constant or input in which what computes two values differs.

    Operators, attributes, constants and connections count, names do not. Casts between FP32, FP16
    and BF16 are skipped, and differences among these types do not count.

    Args:
        ends: Pairs of a model's value and another model's.
        known: Values of the model that are compared elsewhere, by name.
    """
    casts, pairs = _FloatCasts(), dict.fromkeys(ends)
    same, todo = _Same(casts), list(pairs)

    def paired(one: ir.Value | None, other: ir.Value | None) -> bool:
        if one is not None and other is not None and (one, other) not in pairs:
            pairs[one, other] = None
            todo.append((one, other))
        return (one is None) == (other is None)

    while todo:
        one, other = todo.pop()
        bare, twin = _uncast(one, casts), _uncast(other, casts)
        by, made = bare.producer(), twin.producer()
        if names := {one.name, bare.name}.intersection(known):
            equal = not names.isdisjoint((other.name, twin.name))
        elif by is not None and made is not None:
            equal = bare.index() == twin.index() and _alike(by, made, paired)
        else:
            equal = same(bare, twin)
        if not equal:
            return one.name if by is None or names else f"{node_name(by)} ({by.op_type})"
    return None


def _casts_floats(node: ir.Node) -> bool:
    if is_anchor(node):
        return True
    source = node.inputs[0] if is_standard(node, "Cast") else None
    # An input whose type could not be inferred counts as a float.
    source_type = None if source is None else source.dtype
    return source is not None and {source_type or ir.DataType.FLOAT, _type(node, "to")} <= FLOATS


def _version(node: ir.Node, opset: int) -> int:
    """Return the last opset up to `opset` that changed an operator; 0 if it is unknown."""
    if not is_standard(node) or not onnx.defs.has(node.op_type, opset, ""):
        return 0
    return int(onnx.defs.get_schema(node.op_type, opset, "").since_version)


def _alike(node: ir.Node, other: ir.Node, same: _Equal) -> bool:
    """Return whether two nodes compute the same of inputs that are the `same`."""
    if node.op_identifier() != other.op_identifier() or len(node.outputs) != len(other.outputs):
        return False
    names = (node.attributes.keys() | other.attributes.keys()).difference(TYPE_ATTRIBUTES)
    return (
        all(same(a, b) for a, b in zip_longest(node.inputs, other.inputs))
        and all(
            _same_attribute(node.attributes.get(name), other.attributes.get(name), same)
            for name in names
        )
        and all(
            one == two or {one, two} <= FLOATS
            for one, two in ((_type(node, name), _type(other, name)) for name in TYPE_ATTRIBUTES)
        )
    )


def _type(node: ir.Node, name: str) -> int:
    """Return the number of the type that an attribute holds; FP32's if the node omits it."""
    return node.attributes.get_int(name, int(ir.DataType.FLOAT))


def _same_attribute(one: ir.Attr | None, other: ir.Attr | None, same: _Equal) -> bool:
    if one is None or other is None:
        said = one or other
        return said is None or _says_zeros(said)
    if one.type != other.type:
        return False
    if one.type == ir.AttributeType.GRAPH:
        pairs = zip(one.as_graph().outputs, other.as_graph().outputs, strict=False)
        return len(one.as_graph().outputs) == len(other.as_graph().outputs) and all(
            same(a, b) for a, b in pairs
        )
    if one.type == ir.AttributeType.TENSOR:
        return _same_constant(one.as_tensor(), other.as_tensor())
    if one.type == ir.AttributeType.TYPE_PROTO:
        return True
    return bool(one.value == other.value)


def _says_zeros(said: ir.Attr) -> bool:
    """Return whether omitting the attribute means the same: a ConstantOfShape then fills zeros."""
    if said.name != "value" or said.type != ir.AttributeType.TENSOR:
        return False
    filling = said.as_tensor()
    return filling.dtype in FLOATS and not np.any(filling.numpy())


@dataclass(frozen=True)
class _Same:
    """Tells whether two values are the same, by the names of what computes them.

    Attributes:
        casts: Casts that are skipped.
    """

    casts: Container[ir.Node]

    def __call__(self, one: ir.Value | None, other: ir.Value | None) -> bool:
        if one is None or other is None:
            return one is other
        one, other = _uncast(one, self.casts), _uncast(other, self.casts)
        by, made = one.producer(), other.producer()
        if by is not None:
            return made is not None and (by.name, one.index()) == (made.name, other.index())
        if made is not None:
            return False
        if one.const_value is not None and other.const_value is not None:
            return _same_constant(one.const_value, other.const_value)
        return one.const_value is other.const_value and one.name == other.name


def _uncast(value: ir.Value, casts: Container[ir.Node]) -> ir.Value:
    """Return what some of the Casts before a value read."""
    while (made := value.producer()) is not None and made in casts:
        source = made.inputs[0]
        assert source is not None
        value = source
    return value


def _same_constant(one: ir.TensorProtocol, other: ir.TensorProtocol) -> bool:
    if one is other:
        return True
    if one.shape != other.shape:
        return False
    a, b = np.asarray(one.numpy()), np.asarray(other.numpy())
    if one.dtype == ir.DataType.FLOAT and other.dtype in FORMATS:
        fmt = FORMATS[other.dtype]
        # Beyond the range, converters clamp to other limits, or let it become infinite.
        a = np.where(np.abs(a) > fmt.max, b, fmt.store_constant(a))
    return a.dtype == b.dtype and (a.tobytes() == b.tobytes() or bool(np.array_equal(a, b)))
