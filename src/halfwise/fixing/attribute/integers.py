"""What the low format cannot distinguish: positions, counts, phases, pixels, scores."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import onnx_ir as ir

from halfwise.fixing.attribute.evidence import SIGNIFICANT, Band, Evidence, graded
from halfwise.graph import reading
from halfwise.graph.dataflow import low_consumers, moves, producers, upstream
from halfwise.graph.model import Writer, constant_array, is_standard
from halfwise.graph.roles import is_float
from halfwise.records import Guard

CLOSED = frozenset(("Abs", "Add", "Concat", "Max", "Min", "Mod", "Mul", "Neg", "Sub"))
"""Operators that give whole numbers for whole numbers, as they do for integers."""
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


def from_integer(node: ir.Node) -> bool:
    """Return whether a node is a Cast from an integer type."""
    source = node.inputs[0] if is_standard(node, "Cast") else None
    return source is not None and source.dtype is not None and source.dtype.is_integer()


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


_INTEGER_VALUED = frozenset(("Range", "Floor", "Ceil", "Round"))
"""Operators whose float outputs hold integers."""
_PROPORTIONAL = frozenset(("CumSum", "Div", "Mul", "ReduceSum", "Resize"))
"""Operators that pass on the relative errors of what they read, whatever its size."""
_COUNTING = CLOSED | {"Clip", "CumSum", "ReduceMax", "ReduceMin", "ReduceSum", "Sum", "Where"}
"""Operators whose results are integers if their operands are."""
_INDICES = (ir.DataType.INT32, ir.DataType.INT64)
"""Types of indices and sizes."""


def integer_guards(evidence: Evidence) -> Iterator[Guard]:
    """Yield integer, grid and angle guards.

    - "integer": float tensors that hold integers (Cast from an integer type, Range, Floor, Ceil,
      Round) above `fmt.largest_exact_integer`: 2048 in FP16, 256 in BF16 (pytorch/pytorch#81926);
      what `_COUNTING` makes of such tensors above it; any float above it that becomes an index or
      a size by a Cast to INT32 or INT64;
      and constants of integers if rounding makes different ones equal. The nodes are all that
      compute with them.
    - "grid": GridSample on an image with a side longer than that many pixels, because the grid
      runs over [-1, 1] and half its spacing there is a growing fraction of a pixel
      (pytorch/pytorch#89836). From a quarter of that on it is possible: 1/16 of a pixel, and pixel
      numbers that are not yet scaled are off by 1/4. Only if the image's shape is known. The nodes
      are the GridSample and the arithmetic that makes the grid.
    - "angle": Sin, Cos and Tan of angles whose half spacing exceeds `SIGNIFICANT` radians: from 32
      in FP16, from 4 in BF16. The nodes are the function and the producers of the angle
      back to values below that limit, integers or constants; factors and what a running sum adds
      up are followed at any size, since their relative errors are the angle's.
    """
    for node in evidence.nodes.values():
        if _holds_integers(evidence, node):
            yield from _integers(evidence, node, node.outputs[0])
        elif (value := _truncated(node)) is not None:
            made = value.producer()
            if made is None or not _holds_integers(evidence, made):
                yield from _integers(evidence, made or node, value)
        elif node.op_type in ("Sin", "Cos", "Tan"):
            yield from _angle(evidence, node)
        elif node.op_type == "GridSample":
            yield from _grid(evidence, node)
    for value in evidence.constants:
        yield from _integer_constant(evidence, value)


def _holds_integers(evidence: Evidence, node: ir.Node) -> bool:
    return node.op_type in _INTEGER_VALUED or from_integer(node) or _counts(evidence, node)


def _truncated(node: ir.Node) -> ir.Value | None:
    """Return the float that a node casts to an index or a size; None if it does not."""
    source = node.inputs[0] if is_standard(node, "Cast") else None
    return source if is_float(source) and node.outputs[0].dtype in _INDICES else None


def _counts(evidence: Evidence, node: ir.Node) -> bool:
    """Return whether a node computes integers from integers, as floats."""
    read = [v for v in node.inputs if v is not None and is_float(v)]
    return node.op_type in _COUNTING and bool(read) and all(_is_whole(evidence, v) for v in read)


def _is_whole(evidence: Evidence, value: ir.Value) -> bool:
    """Return whether the operators alone, or a constant's elements, make `value` integers."""
    waiting, seen = [value], {value}
    while waiting:
        current = waiting.pop()
        node = current.producer()
        if current.const_value is not None:
            array = constant_array(current).astype(np.float32)
            if not (array == np.rint(array)).all():
                return False
        elif node is None:
            return False
        elif node.op_type not in _INTEGER_VALUED and not from_integer(node):
            if node.op_type not in _COUNTING and not moves(node, evidence.roles):
                return False
            behind = [v for v in node.inputs if v is not None and is_float(v) and v not in seen]
            seen |= set(behind)
            waiting += behind
    return True


def _integers(evidence: Evidence, node: ir.Node, value: ir.Value) -> list[Guard]:
    seen, fmt = evidence.observed(value), evidence.fmt
    if seen is None or seen.absmax <= fmt.largest_exact_integer:
        return []
    # A mask of zeros and -1e4, say, counts nothing; one beyond the range has its own guards.
    single = seen.detail is not None and seen.detail.smallest_nonzero == seen.absmax
    largest = np.array([seen.absmax], np.float32)
    if single and (seen.absmax > fmt.max or fmt.round(largest)[0] == largest[0]):
        return []
    return _counted(evidence, node, value, seen.absmax, evidence.sample(seen.worst_sample))


def _integer_constant(evidence: Evidence, value: ir.Value) -> list[Guard]:
    largest = evidence.largest(value)
    if not evidence.fmt.largest_exact_integer < largest <= evidence.fmt.max:
        return []
    array = constant_array(value).astype(np.float32)
    if not (array == np.rint(array)).all():
        return []
    distinct = np.unique(array)
    if np.unique(evidence.fmt.round(distinct)).size == distinct.size:
        return []
    readers = low_consumers(value, evidence.roles)
    return _counted(evidence, readers[0], value, largest, "") if readers else []


def _counted(
    evidence: Evidence, node: ir.Node, value: ir.Value, largest: float, sample: str
) -> list[Guard]:
    limit = evidence.fmt.largest_exact_integer
    return evidence.guard(
        "integer",
        node,
        value,
        facts={"value": largest, "sample": sample, "limit": limit},
        fix="Compute positions and indices in FP32 (or as integers) and cast the result.",
        nodes=[node, *low_consumers(value, evidence.roles)],
        severity=graded(Band.INEXACT, largest / limit),
    )


def _angle(evidence: Evidence, node: ir.Node) -> list[Guard]:
    value = node.inputs[0]
    largest = evidence.absmax(value)
    error = _half_spacing(evidence, largest)
    seen = evidence.observed(value)
    if value is None or error <= SIGNIFICANT:
        return []
    sample = evidence.sample(seen.worst_sample) if seen else ""

    def large(source: ir.Node) -> Sequence[ir.Value | None]:
        if source.op_type in _PROPORTIONAL:
            return source.inputs
        sizes = [(v, evidence.absmax(v)) for v in source.inputs]
        return [v for v, size in sizes if _half_spacing(evidence, size) > SIGNIFICANT]

    return evidence.guard(
        "angle",
        node,
        value,
        facts={"op": node.op_type, "value": largest, "sample": sample, "error": error},
        fix="Compute phases and their sines and cosines in FP32 and cast the result, or "
        "store them as a table where positions are fixed.",
        nodes=[node, *upstream(value, evidence.roles, large)],
        severity=graded(Band.INEXACT, error / SIGNIFICANT),
    )


def _half_spacing(evidence: Evidence, magnitude: float) -> float:
    return evidence.fmt.ulp(magnitude) / 2


def _arithmetic(node: ir.Node) -> Iterable[ir.Value | None]:
    """Return the values from which coordinates were scaled or shifted."""
    return node.inputs if node.op_type in ("Add", "Sub", "Mul", "Div") else ()


def _grid(evidence: Evidence, node: ir.Node) -> list[Guard]:
    image, grid = node.inputs[0], node.inputs[1]
    if image is None or image.shape is None or grid is None:
        return []
    sides = [side for side in list(image.shape)[2:] if isinstance(side, int)]
    limit = evidence.fmt.largest_exact_integer
    if not sides or max(sides) <= limit / 4:
        return []
    band, least = (Band.INEXACT, limit) if max(sides) > limit else (Band.POSSIBLE, limit / 4)
    # A grid value just below 1 has half the spacing of 1, and [-1, 1] spans the side.
    pixels = evidence.fmt.ulp(0.75) / 2 * max(sides) / 2
    return evidence.guard(
        "grid",
        node,
        grid,
        facts={"value": max(sides), "error": pixels},
        fix="Keep the grid and the arithmetic that makes it in FP32.",
        nodes=[node, *upstream(grid, evidence.roles, _arithmetic)],
        severity=graded(band, max(sides) / least),
    )


_SEVERITY_OF_TIE = 0.1
"""Equal in FP32 already: which one is chosen is arbitrary."""


def selection_guards(evidence: Evidence) -> Iterator[Guard]:
    """Yield margin guards: choices decided by less than one spacing of the low format.

    The gap between the last chosen and the first rejected score is in units of the spacing at that
    score; below 1 both may round to one number. Only possible: severity runs from 0.5 for a gap of
    one spacing towards 1 for none; exact ties, which FP32 also decides by order, come last. The
    nodes are the choice and the producers of the scores. NonMaxSuppression itself takes no FP16;
    how close its boxes' overlap is to the limit is not examined.
    """
    for node, seen in evidence.inside("margin"):
        scores = node.inputs[1 if node.op_type == "NonMaxSuppression" else 0]
        if seen.value >= 1.0:
            continue
        yield from evidence.guard(
            "margin",
            node,
            scores,
            facts=evidence.inner(seen) | {"value": seen.value or None},
            fix="Judge the task's metric rather than equal indices, or keep the scores in FP32.",
            nodes=[node, *producers(scores, evidence.roles)],
            severity=_SEVERITY_OF_TIE if seen.value == 0.0 else 1.0 - seen.value / 2,
        )
