"""Values too small where this matters: eps constants, denominators, logarithms."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import onnx_ir as ir

from halfwise.fixing.attribute.evidence import (
    SIGNIFICANT,
    Band,
    Evidence,
    graded,
)
from halfwise.graph.dataflow import (
    constant_behind,
    consumers,
    low_consumers,
    producers,
    upstream,
)
from halfwise.graph.model import constant_array, is_standard, node_name
from halfwise.graph.roles import is_float
from halfwise.records import Guard
from halfwise.wording import number

_PROPORTIONAL = frozenset(("CumSum", "Div", "Mul", "ReduceSum", "Resize"))
"""Operators that pass on the relative errors of what they read, whatever its size."""
_INDICES = (ir.DataType.INT32, ir.DataType.INT64)
"""Types of indices and sizes."""


def integer_guards(evidence: Evidence) -> Iterator[Guard]:
    """Yield integer, grid and angle guards.

    - "integer": computed float tensors above `fmt.largest_exact_integer`, 2048 in FP16 and 256 in
      BF16 (pytorch/pytorch#81926), that hold nothing but whole numbers, some of which rounding
      changes, or become an index or a size by a Cast to INT32 or INT64; and constants of integers
      if rounding makes different ones equal. The nodes are all that compute with them.
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
        if node.op_type in ("Sin", "Cos", "Tan"):
            yield from _angle(evidence, node)
        elif node.op_type == "GridSample":
            yield from _grid(evidence, node)
    for value in (*evidence.made.values(), *evidence.constants):
        yield from _integers(evidence, value)


def _integers(evidence: Evidence, value: ir.Value) -> list[Guard]:
    limit, largest = evidence.fmt.largest_exact_integer, evidence.absmax(value)
    indexed = [use.node for use in value.uses() if _is_index(use.node)]
    readers = low_consumers(value, evidence.roles)
    node = value.producer() or next(iter(indexed or readers), None)
    if largest <= limit or node is None or not (indexed or _counts(evidence, value)):
        return []
    return evidence.guard(
        "integer",
        node,
        value,
        seen=evidence.observed(value),
        facts={"value": largest, "limit": limit},
        fix="Compute positions and indices in FP32 (or as integers) and cast the result.",
        nodes=[node, *readers],
        severity=graded(Band.INEXACT, largest / limit),
    )


def _is_index(node: ir.Node) -> bool:
    """Return whether a node casts floats to an index or a size."""
    return is_standard(node, "Cast") and node.outputs[0].dtype in _INDICES


def _counts(evidence: Evidence, value: ir.Value) -> bool:
    """Return whether elements are whole numbers some of which rounding changes, or makes equal."""
    if value.const_value is None:
        detail = evidence.detail(value)
        return detail is not None and detail.integers
    distinct = np.unique(constant_array(value).astype(np.float32))
    if evidence.absmax(value) > evidence.fmt.max or (distinct != np.rint(distinct)).any():
        return False
    return np.unique(evidence.fmt.round(distinct)).size < distinct.size


def _angle(evidence: Evidence, node: ir.Node) -> list[Guard]:
    value = node.inputs[0]
    largest = evidence.absmax(value)
    error = _half_spacing(evidence, largest)
    if value is None or error <= SIGNIFICANT:
        return []

    def large(source: ir.Node) -> Sequence[ir.Value | None]:
        if source.op_type in _PROPORTIONAL:
            return source.inputs
        sizes = [(v, evidence.absmax(v)) for v in source.inputs]
        return [v for v, size in sizes if _half_spacing(evidence, size) > SIGNIFICANT]

    return evidence.guard(
        "angle",
        node,
        value,
        seen=evidence.observed(value),
        facts={"op": node.op_type, "value": largest, "error": error},
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
    for node, observation in evidence.inside("margin"):
        scores = node.inputs[1 if node.op_type == "NonMaxSuppression" else 0]
        if observation.value >= 1.0:
            continue
        yield from evidence.guard(
            "margin",
            node,
            scores,
            seen=observation,
            facts={"value": observation.value or None},
            fix="Judge the task's metric rather than equal indices, or keep the scores in FP32.",
            nodes=[node, *producers(scores, evidence.roles)],
            severity=_SEVERITY_OF_TIE if observation.value == 0.0 else 1.0 - observation.value / 2,
        )


_ADDERS = ("Add", "Sub", "Sum", "Max", "Clip")
"""Operators that apply an eps to a value."""
_SEVERITY_OF_VANISHED_EPS = 0.6
"""The eps becomes zero, yet every value seen was large enough without it."""
_SEVERITY_OF_ROOT = 0.4
"""The root of a tiny value is small itself: it matters only next to other small values."""
_SEVERITY_OF_UNSEEN_EPS = 0.3
"""The eps becomes subnormal, and no statistics show how small the values get."""
_SEVERITY_OF_SUBNORMAL = 0.2
"""The largest element keeps its accuracy; smaller ones next to it lose theirs."""


def small_guards(evidence: Evidence) -> Iterator[Guard]:
    """Yield eps and underflow guards.

    - "eps": a positive constant below `fmt.smallest_normal` is added to (or bounds) the operand of
      a square root, logarithm, reciprocal, division or negative power. Certain if the smallest sum
      seen would be stored with a relative error above `SIGNIFICANT` (zero: 1) and divides or enters
      a logarithm; possible if the constant becomes zero; no guard if it stays non-zero and all sums
      seen are large.
    - "underflow": such an operand without eps has non-zero elements stored with a relative error
      above `SIGNIFICANT`; or a whole tensor lies below `fmt.smallest_normal`: certain if its
      largest element has such an error, else possible.

    The nodes are every demanding node, and the producers of the small value, among them the one
    that adds, and of a dividend as small, back to the first one with accurate inputs (at most a
    fraction `SIGNIFICANT` of their non-zero elements has a relative error above `SIGNIFICANT`, to
    within a binade).
    """
    for value in evidence.made.values():
        yield from _demanded(evidence, value)
        yield from _whole_tensor(evidence, value)


def _demanding_slot(evidence: Evidence, node: ir.Node) -> int | None:
    """Return the operand of `node` whose relative error matters however small it is."""
    power = _power(evidence, node)
    if power is not None and power < 1.0:
        return 0
    return {"Sqrt": 0, "Log": 0, "Reciprocal": 0, "Div": 1}.get(node.op_type)


def _demands(evidence: Evidence, value: ir.Value) -> list[ir.Node]:
    """Return the demanding consumers of `value`; through roots, also theirs."""
    demanding: list[ir.Node] = []
    waiting = [value]
    for one in waiting:
        uses = consumers(one, evidence.roles)
        new = [n for n, slot in uses if slot == _demanding_slot(evidence, n) and n not in demanding]
        demanding += dict.fromkeys(new)
        waiting += [n.outputs[0] for n in new if _is_root(evidence, n)]
    return demanding


def _power(evidence: Evidence, node: ir.Node) -> float | None:
    """Return the largest constant power of a node; None if it has none."""
    power = constant_behind(node.inputs[1], evidence.roles) if node.op_type == "Pow" else None
    return None if power is None else evidence.span(power)[1]


def _is_root(evidence: Evidence, node: ir.Node) -> bool:
    power = _power(evidence, node)
    return node.op_type == "Sqrt" or (power is not None and power > 0.0)


def _severity(evidence: Evidence, lost: float, demands: list[ir.Node]) -> float:
    if all(_is_root(evidence, n) for n in demands):
        return _SEVERITY_OF_ROOT
    return graded(Band.ZEROED if lost == 1.0 else Band.INEXACT, lost / SIGNIFICANT)


def _tiny_constant(evidence: Evidence, value: ir.Value | None) -> float | None:
    root = constant_behind(value, evidence.roles)
    if root is None or not is_float(root):
        return None
    smallest, largest = evidence.span(root)
    return largest if 0.0 < smallest <= largest < evidence.fmt.smallest_normal else None


def _demanded(evidence: Evidence, value: ir.Value) -> list[Guard]:
    fmt, maker, detail = evidence.fmt, value.producer(), evidence.detail(value)
    demands = _demands(evidence, value)
    if not demands:
        return []
    added = maker.inputs if maker is not None and maker.op_type in _ADDERS else ()
    tiny = [(v, e) for v in added if (e := _tiny_constant(evidence, v)) is not None]
    smallest = None if detail is None else detail.smallest_nonzero
    lost = evidence.relative_error(smallest) if smallest and smallest < np.inf else 0.0
    vanishes = bool(tiny) and tiny[0][1] <= fmt.flush_threshold
    if lost > SIGNIFICANT:
        severity = _severity(evidence, lost, demands)
    elif vanishes:
        severity, smallest = _SEVERITY_OF_VANISHED_EPS, None
    elif tiny and smallest is None:
        severity = _SEVERITY_OF_UNSEEN_EPS
    else:
        return []
    dividends = [n for demand in demands for n in _small_dividend(evidence, demand)]
    nodes = [*demands, *_small_source(evidence, value), *dividends]
    reader = demands[0]
    if tiny and maker is not None:
        return evidence.guard(
            "eps",
            maker,
            tiny[0][0],
            facts={
                "value": tiny[0][1],
                "reader": node_name(reader),
                "op": reader.op_type,
                "becomes": "zero" if vanishes else "subnormal",
                "smallest": smallest,
            },
            fix=evidence.norm_fix(
                maker,
                f"An eps of at least {fmt.name.upper()}'s smallest normal number, "
                f"{number(fmt.smallest_normal)}, survives, but it changes the results of values "
                "that small.",
            ),
            nodes=nodes,
            severity=severity,
        )
    assert detail is not None
    return evidence.guard(
        "underflow",
        reader,
        value,
        facts={
            "op": reader.op_type,
            "value": smallest,
            "share": detail.flush if lost == 1.0 else detail.subnormal,
            "samples": evidence.fewer(detail),
            "becomes": "zero" if lost == 1.0 else "subnormal",
        },
        fix=evidence.norm_fix(reader, _SCALED.get(reader.op_type, "")),
        nodes=nodes,
        severity=severity,
    )


def _small_source(evidence: Evidence, value: ir.Value | None) -> list[ir.Node]:
    """Return the producers of a small value back to the first that read nothing vanishing."""

    def vanishing(node: ir.Node) -> list[ir.Value | None]:
        return [v for v in node.inputs if _is_vanishing(evidence, v)]

    return upstream(value, evidence.roles, vanishing)


def _small_dividend(evidence: Evidence, node: ir.Node) -> list[ir.Node]:
    """Return what makes a dividend as small as its divisor: the quotient needs both."""
    dividend = node.inputs[0] if node.op_type == "Div" else None
    return _small_source(evidence, dividend) if _is_vanishing(evidence, dividend) else []


def _is_vanishing(evidence: Evidence, value: ir.Value | None) -> bool:
    """Return whether more than `SIGNIFICANT` of the non-zero elements have an error above it."""
    inexact = evidence.fmt.smallest_subnormal / 2 / SIGNIFICANT
    return evidence.below(value, inexact) > SIGNIFICANT


def _whole_tensor(evidence: Evidence, value: ir.Value) -> list[Guard]:
    fmt, node, observation = evidence.fmt, value.producer(), evidence.observed(value)
    if node is None or observation is None or not 0.0 < observation.absmax < fmt.smallest_normal:
        return []
    lost = evidence.relative_error(observation.absmax) > SIGNIFICANT
    return evidence.guard(
        "underflow",
        node,
        value,
        seen=observation,
        facts={
            "value": observation.absmax,
            "becomes": "zero" if observation.absmax <= fmt.flush_threshold else "subnormal",
            "limit": fmt.smallest_normal,
        },
        fix=evidence.norm_fix(node),
        nodes=[node, *_small_source(evidence, value), *low_consumers(value, evidence.roles)],
        severity=graded(Band.INEXACT, fmt.smallest_normal / observation.absmax)
        if lost
        else _SEVERITY_OF_SUBNORMAL,
    )


_SCALED = {
    "Div": "Scale the divisor up by a power of two, and the result by the same factor.",
    "Log": "Scale what it reads up by a power of two s, and subtract log s from the result.",
    "Reciprocal": "Scale what it reads up by a power of two, and the result by the same factor.",
    "Sqrt": "Scale what it reads up by a power of four, and the result down by that power's root.",
}
"""How to scale a small operand and correct the result."""
