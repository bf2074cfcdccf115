"""Positions and phases: precomputed constants, whole numbers as integers, full turns removed.

`Repair.numbers` says which of three forms is used:

- "constant": values that depend on constants and on sizes declared by the model become a constant,
  computed in FP64 and stored in FP32. It holds for every input, but for no other sizes.
- "integer": if large whole numbers become small ones (a remainder, a difference of positions, a
  quotient rounded down), become integers or are compared, everything is computed in INT64: float(a)
  ∘ float(b) = float(a ∘ b). Bit for bit as long as no number reaches 2²⁴, from where on FP32 skips
  some.
- "turns": sin(p·f) = sin(2π·frac(p·f / 2π)), likewise cos, for integers p and constants f. With F =
  round(2⁵²·frac(f / 2π)), the remainder of p·F by 2⁵² is the turn in fixed point; overflow of 64
  bits is harmless, because 2⁵² divides 2⁶⁴. Payne & Hanek 1983, "Radian reduction for trigonometric
  functions", doi 10.1145/1057600.1057602, drop whole turns likewise. Eleven bits and eleven more,
  each exact in FP16, give the angle in [−π, π) to 1e-6; FP32 itself is off by up to p·f·6e-8.
"""

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from halfwise.emulation.double import DoubleSession
from halfwise.emulation.folding import constant_nodes, fold_constants, make_constant, part_of
from halfwise.errors import RunFailed
from halfwise.fixing.attribute.evidence import Evidence
from halfwise.fixing.attribute.small import integer_guards
from halfwise.fixing.repair.rule import Identity, misfit, named, place
from halfwise.graph import reading
from halfwise.graph.dataflow import consumers, drop_unused_nodes, moves, reached
from halfwise.graph.loading import normalise
from halfwise.graph.model import (
    Names,
    Writer,
    constant_array,
    graphs_of,
    is_standard,
    node_name,
    tensor_name,
)
from halfwise.graph.one_node import put_before
from halfwise.graph.reading import CLOSED, from_integer
from halfwise.graph.roles import is_float
from halfwise.records import Guard, NodeName, Repair, RepairRule

_STEPS = frozenset(("Ceil", "Floor", "Round"))
_LARGEST = 2.0**31
"""Largest magnitude of constants: a few products of such numbers fit into 64 bits."""
_DEEPEST = 32
"""Most nodes back to the integers: positions take only a few."""
FIRST_OPSET = 12
"""First operator set whose Max and Min take integers of 64 bits."""


def is_whole(value: ir.Value | None, depth: int = _DEEPEST) -> bool:
    """Return whether a float `value` is whole, whatever integers it is made from.

    It is made by sums, differences, products, remainders, floored quotients and data movement from
    Casts of integers and from whole constants. Exact below 2²⁴, where FP32 has all integers.
    """
    if value is None or depth == 0 or not is_float(value):
        return False
    node = value.producer()
    if node is None:
        return _is_whole_constant(value)
    if from_integer(node):
        return True
    if _floor_divided(node) is not None:
        return is_whole(_floor_divided(node), depth - 1)
    return all(is_whole(v, depth - 1) for v in _operands(node) or (None,))


class Integers:
    """Recomputes values that are whole (`is_whole`) in integers."""

    def __init__(self, w: Writer) -> None:
        self._w = w
        self._made: dict[ir.Value, ir.Value] = {}

    def of(self, value: ir.Value) -> ir.Value:
        """Return an INT64 tensor with the elements of `value`."""
        if value not in self._made:
            self._made[value] = self._integer(value)
        return self._made[value]

    def constant(self, number: int) -> ir.Value:
        """Return a scalar INT64 constant."""
        return self._w.constant("integer", np.array(number, np.int64))

    def _integer(self, value: ir.Value) -> ir.Value:
        node = value.producer()
        if node is None:
            return self._w.constant("integers", constant_array(value).astype(np.int64))
        if from_integer(node):
            source = node.inputs[0]
            assert source is not None
            is_long = source.dtype == ir.DataType.INT64
            return source if is_long else self._w.op("Cast", source, to=int(ir.DataType.INT64))
        divided = _floor_divided(node)
        if divided is not None:
            return self._divided(divided, node)
        operands = _operands(node)
        if is_standard(node, *_STEPS):
            return self.of(operands[0])
        read = [self.of(v) if v in operands else v for v in node.inputs if v is not None]
        return self._w.op(node.op_type, *read, **node.attributes)

    def _divided(self, dividend: ir.Value, floor: ir.Node) -> ir.Value:
        """Return ⌊a / c⌋: (a − remainder) / c, where the remainder has the sign of c."""
        quotient = floor.inputs[0]
        divisor = quotient.producer() if quotient is not None else None
        assert divisor is not None
        assert divisor.inputs[1] is not None
        a, c = self.of(dividend), self.of(divisor.inputs[1])
        return self._w.op("Div", self._w.op("Sub", a, self._w.op("Mod", a, c)), c)


def _operands(node: ir.Node) -> tuple[ir.Value, ...]:
    """Return the operands whose being whole makes the result whole; empty if nothing does."""
    if not is_standard(node):
        return ()
    if node.op_type in CLOSED:
        remainder = node.op_type == "Mod" and not all(_is_divisor(v) for v in node.inputs[1:])
        return () if remainder or len(node.inputs) > 2 else tuple(v for v in node.inputs if v)
    first = node.inputs[0] if node.inputs else None
    passed = reading.moves(node) and node.op_type not in ("Cast", "Dropout")
    return (first,) if first is not None and (passed or node.op_type in _STEPS) else ()


def _floor_divided(node: ir.Node) -> ir.Value | None:
    """Return a of ⌊a / c⌋ if c is a whole constant without zeros, else None."""
    quotient = node.inputs[0] if is_standard(node, "Floor") else None
    maker = quotient.producer() if quotient is not None else None
    if maker is None or not is_standard(maker, "Div") or not _is_divisor(maker.inputs[1]):
        return None
    return maker.inputs[0]


def _is_divisor(value: ir.Value | None) -> bool:
    if value is None or value.producer() is not None or not _is_whole_constant(value):
        return False
    return bool((constant_array(value) != 0).all())


def _is_whole_constant(value: ir.Value) -> bool:
    if value.const_value is None or value.const_value.size > 1 << 20:
        return False
    array = constant_array(value)
    return bool((np.abs(array) <= _LARGEST).all() and (np.rint(array) == array).all())


MOST_BYTES = 1 << 24
"""Maximum size of a table of phases: sines of 32,768 positions and 128 frequencies."""
_COMPARISONS = ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
_TURN, _TOP = 52, 11
"""Bits of a turn in fixed point, and how many of them FP16 holds exactly."""
_HIGHEST = 2.0**16
"""Maximum frequency in radians; those of rotary embeddings are 1 at most."""


class Phase:
    """Positions and phases that the low format cannot distinguish."""

    name: RepairRule = "phase"
    identity = Identity(
        formula="sin(p·f) = sin(2π·frac(p·f / 2π)); float(a) ∘ float(b) = float(a ∘ b)",
        holds="integers below 2²⁴; constants: all inputs of the declared sizes",
    )

    def propose(self, evidence: Evidence) -> Iterator[Repair]:
        """Yield the constants as one repair, then one for each place with integers."""
        guards = list(integer_guards(evidence))
        if not guards:
            return
        tables, folded = _tables(evidence, guards)
        if tables:
            yield self._repair(
                "constant", tables, guards, "Store them as a table, computed in FP64."
            )
        if evidence.network.opset < FIRST_OPSET:
            return
        for name, node in evidence.nodes.items():
            if name in folded:
                continue
            if _shrinks(evidence, node):
                yield self._repair("integer", [node], guards, "Compute positions as integers.")
            elif _turns(evidence, node, guards):
                yield self._repair(
                    "turns", [node], guards, "Reduce phases to a turn before they become floats."
                )

    def _repair(self, form: str, nodes: list[ir.Node], guards: list[Guard], advice: str) -> Repair:
        names = tuple(map(node_name, nodes))
        told = (g for g in guards if not {g.node, *g.nodes}.isdisjoint(names))
        return Repair(
            rule=self.name,
            nodes=names,
            numbers={form: 1.0},
            guards=tuple(map(place, told)),
            advice=advice,
        )

    def apply(self, model: ir.Model, repair: Repair) -> None:
        """Make one of the three forms; see `Rule.apply`."""
        nodes = named(model, repair)
        if "constant" in repair.numbers:
            _fold(model, nodes, repair)
            return
        w = Writer(model, repair.nodes[0], Names(graphs_of(model)))
        for node in nodes:
            if "integer" in repair.numbers and _whole_operands(node):
                _count(model, node, w)
            elif "turns" in repair.numbers and _angle(node) is not None:
                _turn(model, node, w)
            else:
                raise misfit(repair)
        drop_unused_nodes(model.graph)


def _tables(evidence: Evidence, guards: list[Guard]) -> tuple[list[ir.Node], frozenset[NodeName]]:
    """Return the nodes that give constants named by guards, and the names of all constant values.

    The result has to be exact or small in the low format: a table of positions would not help.
    """
    sizes, work = _sized(evidence.network.model)
    constant = frozenset((*sizes, *map(node_name, constant_nodes(work, MOST_BYTES))))
    suspected = {n for g in guards for n in (g.node, *g.nodes)} & constant
    behind: set[NodeName] = set()
    found = []
    for name, node in evidence.nodes.items():
        if name not in constant:
            continue
        made = [v.producer() for v in node.inputs if v is not None]
        if name in suspected or any(n is not None and n.name in behind for n in made):
            behind.add(name)
        value = node.outputs[0]
        read = any(use.node.name not in constant for use in value.uses())
        small = evidence.absmax(value) <= evidence.fmt.largest_exact_integer
        if name in behind and read and is_float(value) and small and name not in sizes:
            found.append(node)
    return found, constant


def _sized(model: ir.Model) -> tuple[list[NodeName], ir.Model]:
    """Return a copy with values known from declared sizes as constants, and what these replace.

    Only then is the size of a range up to a size known.
    """
    work, gone = model.clone(), list[NodeName]()
    while now := fold_constants(work, integers=True):
        gone += now
        work = normalise(work, path=None, sha256="").model
    return gone, work


def _fold(model: ir.Model, nodes: list[ir.Node], repair: Repair) -> None:
    work = _sized(model)[1]
    constant = {n.name: n for n in constant_nodes(work, MOST_BYTES)}
    if any(n.name not in constant for n in nodes):
        raise misfit(repair)
    try:
        values = DoubleSession(part_of(work, [constant[n.name] for n in nodes])).run({})
    except RunFailed as failure:
        raise misfit(repair) from failure
    for node in nodes:
        array = values[tensor_name(node.outputs[0])].astype(np.float32)
        make_constant(model.graph, node, array)
    drop_unused_nodes(model.graph)


def _whole_operands(node: ir.Node) -> list[ir.Value]:
    """Return the operands of a node that can be computed as integers, else nothing."""
    operands = [v for v in node.inputs if v is not None]
    whole = bool(operands) and all(map(is_whole, operands))
    if is_standard(node, *_COMPARISONS):
        return operands if whole else []
    if is_standard(node, "Cast"):
        dtype = node.outputs[0].dtype
        return operands if whole and dtype is not None and dtype.is_integer() else []
    return operands if is_whole(node.outputs[0]) and not from_integer(node) else []


def _shrinks(evidence: Evidence, node: ir.Node) -> bool:
    """Return whether a node makes small numbers, integers or Booleans from large whole numbers."""
    limit = evidence.fmt.largest_exact_integer
    operands = _whole_operands(node)
    read = [v for v in operands if not v.is_initializer()]
    if is_standard(node, "Floor"):
        made = node.inputs[0].producer() if node.inputs[0] is not None else None
        read = [v for v in (made.inputs[0],) if v is not None] if made is not None else []
    if not operands or (moves(node, evidence.roles) and not is_standard(node, "Cast")):
        return False
    value = node.outputs[0]
    fits = not is_float(value) or evidence.absmax(value) <= limit
    return fits and any(evidence.absmax(v) > limit for v in read)


def _count(model: ir.Model, node: ir.Node, w: Writer) -> None:
    """Compute a node in integers, in place; its output keeps its name."""
    integers, value = Integers(w), node.outputs[0]
    if is_float(value):
        whole = integers.of(value)
        result = w.op("Cast", whole, to=int(ir.DataType.FLOAT))
    elif is_standard(node, "Cast"):
        source = node.inputs[0]
        assert source is not None
        assert value.dtype is not None
        result = w.op("Cast", integers.of(source), to=int(value.dtype))
    else:
        result = w.op(node.op_type, *(integers.of(v) for v in node.inputs if v is not None))
    _replace(model, node, result, w)


def _replace(model: ir.Model, node: ir.Node, result: ir.Value, w: Writer) -> None:
    put_before(model.graph, node.outputs[0], w.made, result, w.names)
    w.made = []


def _turns(evidence: Evidence, node: ir.Node, guards: list[Guard]) -> bool:
    """Return whether a node makes angles that a guard names and only sines and cosines read."""
    name, roles = node_name(node), evidence.roles
    if _angle(node) is None or not any(g.kind == "angle" and name in g.nodes for g in guards):
        return False

    def moved(value: ir.Value) -> list[ir.Value]:
        return [v for use in value.uses() if moves(use.node, roles) for v in use.node.outputs]

    if any(v.is_graph_output() for v in reached(node.outputs, moved)):
        return False
    readers = list(consumers(node.outputs[0], roles))
    return bool(readers) and all(is_standard(n, "Sin", "Cos") for n, _ in readers)


def _angle(node: ir.Node) -> tuple[ir.Value, ir.Value] | None:
    """Return the positions and frequencies whose outer product a node gives; else None."""
    if not is_standard(node, "Mul", "MatMul"):
        return None
    left, right = node.inputs
    if left is None or right is None:
        return None
    if node.op_type == "MatMul" and not (_side(left, -1) == 1 == _side(right, -2)):
        return None
    for position, frequency in ((left, right), (right, left)):
        if frequency.const_value is None or position.is_initializer() or not is_whole(position):
            continue
        if (np.abs(constant_array(frequency)) <= _HIGHEST).all():
            return position, frequency
    return None


def _side(value: ir.Value, axis: int) -> int | None:
    shape = value.shape
    size = shape[axis] if shape is not None and shape.rank() >= -axis else None
    return size if isinstance(size, int) else None


def _turn(model: ir.Model, node: ir.Node, w: Writer) -> None:
    """Compute angles from turns in fixed point, in place; the output keeps its name."""
    found = _angle(node)
    assert found is not None
    position, frequency = found
    integers = Integers(w)
    turns = constant_array(frequency).astype(np.float64) / (2 * np.pi)
    fixed = np.rint((turns - np.floor(turns)) * 2.0**_TURN).astype(np.int64)
    # Add half a turn, so that the angle is around 0, and half of the last of 22 bits, to round.
    more = integers.constant(2 ** (_TURN - 1) + 2 ** (_TURN - 2 * _TOP - 1))
    product = w.op("Mul", integers.of(position), w.constant("turns", fixed))
    turn = w.op("Mod", w.op("Add", product, more), integers.constant(2**_TURN))
    step = integers.constant(2 ** (_TURN - _TOP))
    top = w.op("Sub", w.op("Div", turn, step), integers.constant(2 ** (_TOP - 1)))
    finest = integers.constant(2 ** (_TURN - 2 * _TOP))
    rest = w.op("Div", w.op("Mod", turn, step), finest)
    high, low = (w.op("Cast", v, to=int(ir.DataType.FLOAT)) for v in (top, rest))
    part = w.op("Mul", low, w.constant("part", np.asarray(2.0**-_TOP, np.float32)))
    unit = w.constant("unit", np.asarray(2 * np.pi / 2**_TOP, np.float32))
    _replace(model, node, w.op("Mul", w.op("Add", high, part), unit), w)
