"""What no reader sees is taken off before it is rounded: what all share, or whole periods.

Masks survive the sum behind them where each adds its distance from the row's largest value.

A Softmax reads scores s plus a mask m, in rows along its axis. With M = max m of each row,

    softmax(s + m) = softmax(s + max(m − M, −b)),   b = 15360

and where |M| > b is so large that FP32 loses the scores, s + m = m, with 0 in place of s. The first
step is the Softmax's invariance to shifts of a row (Blanchard, Higham & Higham 2021, "Accurately
computing the log-sum-exp and softmax functions", doi 10.1093/imanum/draa038). The second holds in
FP32, bit for bit, if the scores of a row lie less than b − 104 apart: exp(−104) is zero. Rows that
are not masked, or only in part, have M = 0 with the usual masks, and stay equal bit for bit. Fully
masked rows get the weights of their scores, as in exact arithmetic; where the mask swallows the
scores in FP32 and FP64 alike, they get equal weights as before.

So a row of −65504 − 16 = −inf in FP16, NaN after the Softmax, stays finite. A constant mask is
replaced by a constant; any other gets a maximum, a difference and a bound, shared by all heads, and
one selection of the scores where they are swallowed.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from functools import partial

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from halfwise.fixing.attribute.evidence import Evidence
from halfwise.fixing.repair.rule import Change, Rewriting, place, put_in_place
from halfwise.graph.model import (
    Network,
    Writer,
    constant_array,
    is_standard,
    node_name,
)
from halfwise.graph.reading import (
    Nodes,
    axes_of,
    from_integer,
    maker,
    moves,
    other_operand,
    scalar,
    square_of,
)
from halfwise.graph.roles import is_float
from halfwise.graph.scaling import add_behind
from halfwise.records import Guard, Place, RepairRule

_CHOICES: Mapping[str, tuple[int, int]] = {
    "ArgMax": (0, 0),
    "ArgMin": (0, 0),
    "TopK": (0, -1),
    "NonMaxSuppression": (1, -1),
}
"""Operators that choose by differences of scores: the scores' slot, and the default axis."""
_THRESHOLD = 4
"""The slot of a NonMaxSuppression's least score."""
_LINEAR = ("Add", "Conv", "Gemm", "MatMul")
"""Operators whose constants make an axis of the result."""
_TURN = 2 * math.pi
_FARTHEST = 65504
"""Largest exact number of steps of a period: FP16's range."""
_PERIOD, _COARSE, _FINE = 1 << 40, 1 << 25, 1 << 10
"""Steps of a period that is no multiple of a factor, and of its parts: FP16 holds 2^15 of each, and
FP32 no more than both."""


class Shift(Rewriting):
    """Take off what readers do not see: f(x - c) = f(x).

    - Scores of which the largest are chosen lose what all columns of their weights share. A TopK's
      values get it back, and a NonMaxSuppression's threshold loses it too.
    - A variance, E[x²] - E[x]², is taken of x less its mean.
    - Multiples of integers lose whole periods of the sines and remainders that read them, as
      integers: n·c mod p = (n·k mod m) · p/m, for c/p = k/m.

    Limits: scores come from constants, and nobody else reads them; a remainder's k and m are exact,
    a sine's have 40 bits.
    Only where no node may stay in FP32, which costs less.
    """

    name: RepairRule = "shift"
    identity = (
        "f(x - c) = f(x): choices and variances for any c that all elements share, sines and "
        "remainders for whole periods"
    )
    alone = True

    def changes(self, network: Network) -> Iterator[Change]:
        """Yield every part that can be shifted."""
        for node in filter(is_standard, network.all_nodes()):
            change = _choice(node) or _variance(node) or _multiple(node)
            if change is not None:
                yield change


def _alone(nodes: Nodes, end: ir.Node) -> bool:
    """Return whether only `nodes` read what they make, except what `end` makes."""
    made = [v for n in nodes - {end} for v in n.outputs]
    return not any(v.is_graph_output() or any(u.node not in nodes for u in v.uses()) for v in made)


# --- scores -------------------------------------------------------------------------------------


def _choice(node: ir.Node) -> Change | None:
    if node.op_type not in _CHOICES:
        return None
    slot, axis = _CHOICES[node.op_type]
    scores = node.inputs[slot]
    constants = _columns(scores, node.attributes.get_int("axis", axis))
    nodes = frozenset((node, *(n for n, _, _ in constants)))
    least = node.inputs[_THRESHOLD] if len(node.inputs) > _THRESHOLD else None
    suppresses = node.op_type == "NonMaxSuppression"
    # One threshold for several rows cannot be shifted with each; without one, ONNX does not say
    # which scores count.
    rows = list(scores.shape or ())[:-1] if suppresses and scores is not None else []
    unclear = suppresses and least is None
    if unclear or not constants or not _alone(nodes, node) or any(size != 1 for size in rows):
        return None

    def make(writer: Writer) -> None:
        medians = {n: [v for v in n.inputs if v is not None] for n, _, _ in constants}
        for n, at, along in constants:
            array = constant_array(medians[n][at]).astype(np.float64)
            # Of whole numbers, as of votes, it is exact, so that equal scores stay equal.
            median = np.median(array, axis=along, keepdims=True)
            n.replace_input_with(at, writer.constant("less", (array - median).astype(np.float32)))
            medians[n][at] = writer.constant("median", median.astype(np.float32))
        if node.op_type == "TopK" and node.outputs[0].name:
            add_behind(writer, node.outputs[0], _shared(writer, medians))
        elif least is not None:
            shared = _shared(writer, medians)
            flat = writer.op("Reshape", shared, writer.constant("one", np.array([1])))
            node.replace_input_with(_THRESHOLD, writer.op("Sub", least, flat))
            node.prepend(writer.made)

    return Change((node_name(node),), nodes, make)


def _columns(value: ir.Value | None, axis: int) -> list[tuple[ir.Node, int, int]]:
    """Return the constants that make the elements of `value` along an axis: node, slot, their axis.

    In graph order; none if others do.
    """
    node = None if value is None else value.producer()
    if node is None or value is None or value.shape is None or not is_standard(node, *_LINEAR):
        return []
    constant = [v is not None and v.const_value is not None for v in node.inputs]
    ranks = [0 if v is None or v.shape is None else v.shape.rank() for v in node.inputs]
    along, last = axis % value.shape.rank(), value.shape.rank() - 1
    if node.op_type == "Add" and sum(constant) == 1 and along == last:
        slot = constant.index(True)
        before = _columns(other_operand(node, slot), -1)
        return [*before, (node, slot, -1)] if before and ranks[slot] else []
    turned = node.op_type == "Conv" or node.attributes.get_int("transB", 0) == 1
    places = [(node, 1, 0 if turned else -1), *((node, 2, -1) for _ in node.inputs[2:])]
    whole = node.attributes.get_int("group", 1) == 1
    fits = along == (1 if node.op_type == "Conv" else last) and ranks[1] > 1 and all(ranks[2:])
    return places if fits and whole and not constant[0] and all(constant[1:]) else []


def _shared(writer: Writer, medians: Mapping[ir.Node, list[ir.Value]]) -> ir.Value:
    """Return what nodes make of the medians of their constants: what all columns share."""
    made: dict[ir.Value, ir.Value] = {}
    for node, read in medians.items():
        inputs = [made.get(v, v) for v in read]
        made[node.outputs[0]] = writer.op(node.op_type, *inputs, **node.attributes)
    return made.popitem()[1]


# --- variances ----------------------------------------------------------------------------------


def _variance(node: ir.Node) -> Change | None:
    if node.op_type != "Sub" or (total := maker(node.inputs[0], "ReduceMean")) is None:
        return None
    squares = [square_of(v) for v in (total.inputs[0], node.inputs[1]) if v is not None]
    square, squared = squares if None not in squares else (None, None)
    mean = maker(squared.value, "ReduceMean") if squared is not None else None
    if square is None or squared is None or mean is None or mean.inputs[0] is not square.value:
        return None
    axes, x = axes_of(total), square.value
    nodes = frozenset((node, total, mean)) | square.nodes | squared.nodes
    shapes = {n.attributes.get_int("keepdims", 1) for n in (total, mean)}
    # Only then is every element paired with the mean of its own row.
    paired = axes == axes_of(mean) and len(shapes) == 1 and not any(map(moves, nodes))
    if axes is None or not paired or not _alone(nodes, node):
        return None

    def make(writer: Writer) -> None:
        less = writer.op("Sub", x, writer.reduced("ReduceMean", x, *axes))
        for reader, slot in [use for use in x.uses() if use.node in nodes]:
            reader.replace_input_with(slot, less)
        next(n for n in node.graph or () if n in nodes).prepend(writer.made)

    return Change((node_name(node),), nodes, make)


# --- periods ------------------------------------------------------------------------------------


def _multiple(node: ir.Node) -> Change | None:
    """Return how multiples of integers that a node makes lose whole periods of their readers."""
    found, seen = _factors(node), _period(node.outputs[0])
    if found is None or seen is None:
        return None
    (cast, factors), (period, readers) = found, seen
    parts = np.fmod(factors, period).ravel().tolist()
    shares = [Fraction(part) / Fraction(period) for part in parts]
    steps = [share.limit_denominator(_FARTHEST) for share in shares]
    if period != _TURN and steps != shares:
        return None

    def make(writer: Writer) -> None:
        def whole(numbers: Iterable[int] | int) -> ir.Value:
            array = np.array(numbers, np.int64)
            return writer.constant("number", array.reshape(factors.shape if array.ndim else ()))

        def times(number: ir.Value, step: NDArray[np.float64]) -> ir.Value:
            low = writer.op("Cast", number, to=ir.DataType.FLOAT)
            return writer.op("Mul", low, writer.constant("step", step.astype(np.float32)))

        source = cast.inputs[0]
        assert source is not None
        n = writer.op("Cast", source, to=ir.DataType.INT64)
        if period == _TURN:
            whole_steps = [round(share * _PERIOD) % _PERIOD for share in shares]
            # Nearest to zero, where FP16 is finest.
            half = whole(_PERIOD // 2)
            up = writer.op("Add", writer.op("Mul", n, whole(whole_steps)), half)
            number = writer.op("Sub", writer.op("Mod", up, whole(_PERIOD)), half)
            coarse = writer.op("Div", number, whole(_COARSE))
            rest = writer.op("Mod", number, whole(_COARSE), fmod=1)
            fine = writer.op("Div", rest, whole(_FINE))
            parts = [(coarse, _COARSE), (fine, _FINE)]
            terms = [times(part, np.array(period * unit / _PERIOD)) for part, unit in parts]
            result = writer.op("Add", *terms)
        else:
            number = writer.op("Mul", n, whole([step.numerator for step in steps]))
            # As a remainder of floats, it has the sign of what is divided.
            number = writer.op("Mod", number, whole([s.denominator for s in steps]), fmod=1)
            size = np.array([period / step.denominator for step in steps])
            result = times(number, size.reshape(factors.shape))
        put_in_place(writer, node.outputs[0], result)

    return Change((node_name(node),), (node, cast, *readers), make)


def _factors(node: ir.Node) -> tuple[ir.Node, NDArray[np.float64]] | None:
    """Return the Cast of integers and the constants whose products a node makes."""
    if from_integer(node):
        return node, np.ones((), np.float64)
    constants = [i for i, v in enumerate(node.inputs) if v and v.const_value is not None]
    if len(constants) != 1 or not is_standard(node, "Mul", "MatMul"):
        return None
    value, other = node.inputs[constants[0]], other_operand(node, constants[0])
    cast = None if other is None else other.producer()
    if cast is None or value is None or not from_integer(cast):
        return None
    if node.op_type == "MatMul":  # columns by rows
        left, right = (list(v.shape or ()) if v is not None else [] for v in node.inputs)
        if left[-1:] != [1] or min(len(left), len(right)) < 2:
            return None
    factors = constant_array(value).astype(np.float64)
    return (cast, factors) if np.isfinite(factors).all() else None


_Readers = tuple[float, list[ir.Node]]
"""A period, and who reads."""


def _period(value: ir.Value) -> _Readers | None:
    """Return the period of all that read `value`, moved or not; None if they have none, or many."""
    found: list[_Readers | None] = [None] if value.is_graph_output() else []
    for node, slot in value.uses():
        divisor = scalar(node.inputs[1]) if is_standard(node, "Mod") and slot == 0 else None
        if is_standard(node, "Concat") or (moves(node) and is_float(node.outputs[0])):
            behind = _period(node.outputs[0])
            found.append(behind and (behind[0], [node, *behind[1]]))
        elif is_standard(node, "Sin", "Cos"):
            found.append((_TURN, [node]))
        else:
            found.append((divisor, [node]) if divisor and 0 < divisor < math.inf else None)
    known = [each for each in found if each is not None]
    if not known or len(known) < len(found) or len({period for period, _ in known}) > 1:
        return None
    return known[0][0], [node for _, nodes in known for node in nodes]


MASK_BOUND = 15.0 * 2**10
"""Below a quarter of FP16's range, from which on a constant raises a guard (`MASK_SHARE`). With
scores of up to 50144 it stays finite, with scores up to 15256 apart it is a weight of zero."""
_QUANTISED = 2.0**17
"""Below this, FP32 keeps scores next to a mask to 2⁻⁸, and weights to 0.4 %, so that the function
without this error is still today's result."""
_LARGER = 100.0
"""Factor by which scores may grow and still work with a mask: queries and keys ten times."""
_ALL = 2.0**40
"""Scores up to here are swallowed: larger than any, so that it depends on no data. FP32's lowest
number does, −1e12 does not."""
_ADVICE = (
    "Replace the mask by its distance from the value of each row that masks least, within "
    f"±{MASK_BOUND:.0f}; where that value swallows the scores, set them to 0."
)
_VANISHED = 104.0
"""exp(−104) is zero in FP32."""


class Mask(Rewriting):
    """Masks that leave the range of the low format together with a score.

    The function stays for scores of a row less than 15256 apart, and mask values up to 2¹⁷, or
    beyond 2⁶⁴, where FP32 loses all scores. Rows run along the last axis. That Softmaxes alone read
    the sums is left to the proof.
    """

    name: RepairRule = "mask"
    identity = "softmax(s + m) = softmax(s + max(m − max m, −15360))"
    kind = "mask"

    def changes(self, network: Network) -> Iterator[Change]:
        """Yield every tensor that is added or subtracted, with all sums that read it.

        Whether it is a mask, and whether it swallows scores, only numbers tell.
        """
        groups: dict[tuple[ir.Value, str, int, object], list[ir.Node]] = {}
        for node in network.all_nodes():
            slots = {"Add": (0, 1), "Sub": (1,)}.get(node.op_type, ()) if is_standard(node) else ()
            for mask, slot in ((node.inputs[slot], slot) for slot in slots):
                if mask is not None and is_float(mask) and mask.shape is not None and mask.shape:
                    groups.setdefault((mask, node.op_type, slot, node.graph), []).append(node)
        for (mask, op, slot, _), nodes in groups.items():
            for swallows in (False, True):
                yield Change(
                    tuple(map(node_name, nodes)),
                    nodes,
                    partial(_replace, mask, nodes, slot, swallows, positive=op == "Sub"),
                    stem=node_name(nodes[0]),
                    advice=_ADVICE,
                    numbers={"slot": slot, "swallows": float(swallows)},
                )

    def needs(
        self, evidence: Evidence, change: Change, guards: Iterable[Guard]
    ) -> tuple[Place, ...]:
        """Return the guards on sums with a mask, if larger scores permit the rule.

        A value of the binade k has FP32's spacing 2^(k−23); a score of less than half of it leaves
        no trace. If the mask swallows scores, it has to swallow all up to `_ALL`.
        """
        answering = tuple(place(guard) for guard in guards if guard.node in change.nodes)
        slot, swallows = int(change.numbers["slot"]), bool(change.numbers["swallows"])
        read = [evidence.nodes[name].inputs for name in change.nodes if answering]
        most = _LARGER * max((evidence.absmax(v[1 - slot]) for v in read), default=0.0)
        binades = evidence.binades(read[0][slot]) if read else ()
        large = [k for k in binades if 2.0 ** (k + 1) > MASK_BOUND]
        kept = all(2.0 ** (k + 1) <= _QUANTISED for k in large)
        lost = not kept and all(max(_ALL, most) < 2.0 ** (k - 24) for k in large)
        fits = 2 * most <= MASK_BOUND - _VANISHED and (lost if swallows else kept)
        return answering if large and fits else ()


def _replace(
    mask: ir.Value,
    sums: list[ir.Node],
    slot: int,
    swallows: bool,
    writer: Writer,
    *,
    positive: bool,
) -> None:
    distance, top = _distance(writer, mask, positive=positive)
    lost = _beyond(writer, top) if swallows else None
    sums[0].prepend(writer.made)
    for node in sums:
        node.replace_input_with(slot, distance)
        scores = node.inputs[1 - slot]
        if lost is not None and scores is not None:
            zero = writer.constant("zero", np.asarray(0, np.float32))
            node.replace_input_with(1 - slot, writer.op("Where", lost, zero, scores))
            node.prepend(writer.made[-1])


def _distance(writer: Writer, mask: ir.Value, *, positive: bool) -> tuple[ir.Value, ir.Value]:
    """Return the bounded distance from each row's largest value, and that value.

    A subtracted mask is positive: the row's smallest value counts.
    """
    if mask.const_value is not None:
        array: NDArray[np.float32] = constant_array(mask).astype(np.float32)
        top = (array.min if positive else array.max)(axis=-1, keepdims=True)
        with np.errstate(invalid="ignore"):
            distance = np.clip(array - top, -MASK_BOUND, MASK_BOUND)
        return writer.constant("mask", distance), writer.constant("top", top)
    edge = writer.constant(
        "lowest", np.asarray(MASK_BOUND if positive else -MASK_BOUND, np.float32)
    )
    largest = writer.reduced("ReduceMin" if positive else "ReduceMax", mask, -1)
    return writer.op("Min" if positive else "Max", writer.op("Sub", mask, largest), edge), largest


def _beyond(writer: Writer, top: ir.Value) -> ir.Value | None:
    """Return which rows are fully masked; None if none are."""
    if top.const_value is None:
        return writer.op(
            "Greater",
            writer.op("Abs", top),
            writer.constant("highest", np.asarray(MASK_BOUND, np.float32)),
        )
    beyond = np.abs(constant_array(top)) > MASK_BOUND
    return writer.constant("lost", beyond) if beyond.any() else None
