"""Find exponents that bring all tensors into range: an integer program.

Every name (a tensor, a node's reading of one, a constant at its place) has an exponent, and is
stored times two to its power. The relations are linear, a Mul is needed if a reading has another
exponent than the stored value, and losses are convex and piecewise linear: so the smallest cost is
found by mixed-integer linear programming (HiGHS). The number of Muls is not linear: it is
approached by a sequence of programs in which the weight of each difference is the inverse of its
value in the previous one (Candès, Wakin & Boyd 2008, "Enhancing Sparsity by Reweighted l1
Minimization", doi 10.1007/s00041-008-9045-x).
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from halfwise.fixing.attribute.evidence import SIGNIFICANT, Evidence
from halfwise.fixing.attribute.ranges import ADDENDS
from halfwise.formats import Format
from halfwise.graph.model import tensor_name
from halfwise.graph.scaling import Constant, Relations
from halfwise.graph.sensitivity import MASK_SHARE, masked_by_constants
from halfwise.records import Observation, TensorName

BIT = 4.0
"""Cost of one lost bit of every element, in Muls: a quarter of a bit is worth one."""
ADDED = 0.05
"""The same for a constant added to something larger: it is never worth a Mul."""
_OCTAVE_LOST = 0.25
"""Cost of one octave by which the smallest element misses `SIGNIFICANT` accuracy, as a share of a
bit: it is one element of many."""
_SHARES = (1e-3, 1e-2, 0.1, 0.5, 1.0)
"""Shares of the elements at which the slope of a loss changes; it never exceeds the true loss."""
ROOM = 6
"""Octaves that should stay free on both sides, beyond the headroom: 2^6 and more squares of values
eight times as large as those seen."""
_SPARE = 0.03
"""Cost of missing room: of its square above, in octaves, as overflow is worse than lost bits; and
of what would be lost below, as a share."""
SUM = 0.05
"""Cost of one octave by which a running sum inside an op leaves the range where sums are in FP32:
other runtimes sum in the low format. Hardly worth a Mul, but it decides where one goes: before the
sum. So one that overflows asks for `ROOM` as well, and follows whatever else needs the factor."""
FARTHEST = 30
"""The largest exponent of a tensor: FP16 spans 40 binades, so none needs more."""
Line = tuple[float, float]


@dataclass(frozen=True)
class Loss:
    """The cost of storing something times 2^e: convex in e.

    Attributes:
        limit: The largest e that fits the range; None if any does.
        lines: (a, b): the cost is at least a - b·e, for each; 0 at least.
        least: The same for the smallest element alone.
    """

    limit: int | None = None
    lines: tuple[Line, ...] = ()
    least: Line = (0.0, 0.0)

    def cost(self, e: int) -> float:
        """Return the loss, ignoring the range."""
        return max(0.0, *(a - b * e for a, b in (*self.lines, self.least)))

    def with_room(self) -> "Loss":
        """Return the loss of all but the smallest element, plus a little for missing `ROOM`.

        It weighs room above against bits, while the true loss pays for every bit of the smallest
        element up to the very limit.
        """
        many = Loss(lines=self.lines)

        def cost(e: int) -> float:
            short = 0 if self.limit is None else max(0, e + ROOM - self.limit)
            return many.cost(e) + _SPARE * (short**2 + self.cost(e - ROOM))

        costs = [(e, cost(e)) for e in range(-FARTHEST, FARTHEST + 1)]
        slopes = {round(b - a, 9): (e, a) for (e, a), (_, b) in pairwise(costs)}
        return Loss(self.limit, tuple((a - slope * e, -slope) for slope, (e, a) in slopes.items()))


NOTHING = Loss()


def losses(
    evidence: Evidence, found: Relations, problems: Mapping[TensorName, float]
) -> Iterator[tuple[TensorName, Loss]]:
    """Yield the costs of the exponents of tensors, edges and constants, by name.

    Args:
        evidence: Observations.
        found: The names.
        problems: Cost per bit, for the tensors and constants whose present losses count too.
    """
    inside = dict(_inside(evidence))
    read: dict[TensorName, Loss] = {}
    for name in found.tensors:
        seen = evidence.tensors.get(name)
        if seen is not None:
            read[name] = _tensor(evidence, seen, None, problems.get(name))
            reached = inside.get(name)
            stored = reached and _tensor(evidence, seen, reached, problems.get(name))
            yield name, stored or read[name]
    yield from ((n, read[e.tensor]) for n, e in found.edges.items() if e.tensor in read)
    for name, constant in found.constants.items():
        if constant.value is not None:
            weight = problems.get(tensor_name(constant.value))
            yield name, _constant(evidence, constant, weight)


def _inside(evidence: Evidence) -> Iterator[tuple[TensorName, float]]:
    """Yield magnitudes of sums and squares inside the nodes that make tensors.

    In units of the tensor: for a root of squares, the root.
    """
    for node, seen in (*evidence.inside("sum"), *evidence.inside("square")):
        root = seen.kind == "square" and node.op_type == "ReduceL2"
        if node.op_type != "Softmax":
            limit = evidence.fmt.overflow_threshold / evidence.headroom
            yield (
                tensor_name(node.outputs[0]),
                math.sqrt(seen.value * limit) if root else seen.value,
            )


def _tensor(
    evidence: Evidence, seen: Observation, inside: float | None, weight: float | None
) -> Loss:
    """Return the cost of the exponents of an observed tensor.

    The limit keeps `headroom` times its range below the overflow threshold; there is none if masks
    are its largest elements. Sums inside its node count in it if they are low, else cost `SUM`. The
    loss is in bits of elements below the smallest normal number; without a `weight`, bits lost
    already do not count. With one, its smallest element should also have an accuracy of
    `SIGNIFICANT`.
    """
    fmt, most = evidence.fmt, evidence.fmt.overflow_threshold / evidence.headroom
    limit = _limit(most, seen.absmax, strict=True)
    within = limit if inside is None else _limit(most, max(seen.absmax, inside), strict=True)
    summed: tuple[Line, ...] = ()
    if evidence.accumulate == "fp16":
        limit = within
    elif within is not None and within != limit:
        summed = ((-SUM * (within - ROOM * (within < 0)), -SUM),)
    if limit is not None and limit < 0 and weight is None:
        value = evidence.values.get(seen.tensor)
        seen_too = dict(evidence.tensors)
        if value is None or masked_by_constants(
            value, evidence.roles, seen_too, MASK_SHARE * fmt.max
        ):
            limit = None
    if seen.detail is None or not seen.detail.histogram.counts:
        return Loss(limit, summed)
    histogram = seen.detail.histogram
    binades = {histogram.first + i: n for i, n in enumerate(histogram.counts) if n}
    lines = (*_lines(binades, fmt, weight), *summed)
    return Loss(limit, lines, _accurate(fmt, seen, weight) if weight else (0.0, 0.0))


def _constant(evidence: Evidence, constant: Constant, weight: float | None) -> Loss:
    """Return the cost of the exponents of a constant; it does not grow, so without headroom.

    A constant that is added needs the accuracy of the smallest sum seen; its own bits hardly count.
    One beyond the range that is not a problem, such as a mask, saturates.
    """
    fmt = evidence.fmt
    limit = _limit(fmt.max, constant.magnitudes[1])
    if limit is not None and limit < 0 and weight is None:
        limit = None
    added = constant.slot in ADDENDS.get(constant.node.op_type, ()) and weight is None
    lines = _lines(constant.binades, fmt, weight, ADDED if added else BIT)
    seen = evidence.observed(constant.node.outputs[0]) if added else None
    if seen is not None and seen.detail is not None:
        a, b = _accurate(fmt, seen, BIT)
        return Loss(limit, lines, (min(a, 0.0), b))
    return Loss(limit, lines)


def _accurate(fmt: Format, seen: Observation, weight: float) -> Line:
    """Return the cost of an error above `SIGNIFICANT` in the smallest element."""
    smallest = math.inf if seen.detail is None else seen.detail.smallest_nonzero
    if math.isinf(smallest):
        return 0.0, 0.0
    least = math.log2(fmt.smallest_subnormal / 2 / SIGNIFICANT)
    return weight * _OCTAVE_LOST * (least - math.log2(smallest)), weight * _OCTAVE_LOST


def _limit(largest: float, magnitude: float, *, strict: bool = False) -> int | None:
    """Return the largest e for which magnitude · 2^e is at most (or below) `largest`."""
    if not magnitude:
        return None
    e = math.floor(math.log2(largest / magnitude))
    return e - (strict and math.ldexp(magnitude, e) >= largest)


def _lines(
    binades: Mapping[int, int], fmt: Format, weight: float | None, otherwise: float = BIT
) -> tuple[Line, ...]:
    """Return the lines of Σ share · bits lost: all with a weight, else only additional ones."""
    total = sum(binades.values())
    if not total:
        return ()
    bit = otherwise if weight is None else weight
    normal = math.frexp(fmt.smallest_normal)[1] - 1
    levels = sorted(binades)
    below = list(accumulate(binades[k] / total for k in levels))
    moments = list(accumulate(binades[k] / total * (normal - k) for k in levels))
    lost = sum(binades[k] / total * max(0, normal - k) for k in levels)
    today = lost if weight is None else 0.0
    places = {
        next((i for i, b in enumerate(below) if b >= share), len(below) - 1) for share in _SHARES
    }
    return tuple((bit * (moments[i] - today), bit * below[i]) for i in sorted(places))


Vector = NDArray[np.float64]
Places = Mapping[TensorName, frozenset[TensorName]]

_LARGEST_FACTOR = 14
"""Exponent of a Mul: 2^±14 and everything between are normal in FP16."""
_OVERFLOW = 1000.0
"""Cost of one octave beyond the range: more than everything else."""
MUL = 1.0
"""Cost of a Mul: the unit."""
_OCTAVE = 1e-3
"""Cost of one octave of a tensor: among equals, the smallest and fewest are chosen."""
_ROUNDS = 3
"""Number of programs solved in sequence; further ones hardly reduce the number of Muls."""
_SMALL = 0.3
"""Added to a difference before it is inverted; below one octave."""
_LEAST = 1e-6
"""Minimum improvement of a solution."""
_GAP = 1e-5
"""Maximum relative distance of a solution from the best one."""
_NODES = 1000
"""Nodes of the search tree for whole numbers, per program; most need one."""
_LIMITED = 1
"""Status of `milp` if a limit ended it."""
_LARGEST = 10_000
"""Names of one program: above this, one may take minutes."""
WORK = 50_000
"""Names of all programs of one model together, counted once per program: about 10 s. Work is
limited, not time, so that the result is the same however busy a machine is."""


@dataclass
class Allowance:
    """Number of names that programs may still have."""

    left: int = WORK

    def covers(self, size: int) -> bool:
        """Return whether a program with this many names may be solved."""
        return size <= min(self.left, _LARGEST)


@dataclass(frozen=True)
class Solution:
    """The exponents of names that are not 0.

    Attributes:
        exponents: By name, edges and constants included.
        worth: Their cost: Muls and losses, excluding the size of exponents.
        places: The tensors with Muls behind them, and the edges that these are for.
        complete: Whether no limit ended the search.
    """

    exponents: Mapping[TensorName, int]
    worth: float
    complete: bool
    places: Places = field(default_factory=dict)


def solve(
    found: Relations,
    free: frozenset[TensorName],
    losses: Mapping[TensorName, Loss],
    allowance: Allowance,
    *,
    multiplying: bool = True,
    places: Places | None = None,
) -> Solution:
    """Return the exponents of least cost.

    Args:
        found: What they must satisfy.
        free: The names that may have an exponent; all others have 0.
        losses: Costs of exponents, by name; zero for others.
        allowance: What is left for programs; once it is used up, the best known exponents are
            taken, 0 at first.
        multiplying: Whether Muls may be inserted.
        places: Those to insert, if they are known.
    """
    if not free:
        return Solution({}, 0.0, complete=True)
    if not allowance.covers(len(free)):
        return Solution({}, math.inf, complete=False)
    search = _Search(_Program(found, free, losses), len(free), allowance)
    search.take(places or {})
    # Whatever Muls gain, one costs as much.
    if places is None and multiplying and search.worth >= MUL:
        search.run()
    muls = search.program.multiplied_by(search.best)
    return Solution(search.best, search.worth, search.complete, muls)


@dataclass
class _Search:
    """The places of Muls: first by weights, then leaving out one after the other."""

    program: "_Program"
    size: int
    allowance: Allowance
    best: dict[TensorName, int] = field(default_factory=dict)
    lowest: float = math.inf
    worth: float = math.inf
    complete: bool = True
    tried: list[Places] = field(default_factory=list)

    def run(self) -> None:
        """Find places for Muls, then remove those worth less than they cost."""
        weights = np.full(len(self.program.sizes), MUL)
        for _ in range(_ROUNDS):
            values = self._solved(self.program.weighed(weights), self.program.rows)
            if values is None:
                return
            places = self.program.multiplied(values)
            self.take(places)
            weights = 1 / (self.program.factors(values) + _SMALL)
        kept = self.program.multiplied_by(self.best)
        for tensor in list(kept):
            if self.take({t: edges for t, edges in kept.items() if t != tensor}):
                kept = self.program.multiplied_by(self.best)

    def take(self, places: Places) -> bool:
        """Take the solution with Muls at `places` if it is the best; return whether it was."""
        if places in self.tried:
            return False
        self.tried.append(places)
        values = self._solved(np.array(self.program.costs), self.program.placed(places))
        if values is None or self.program.cost(values) >= self.lowest - _LEAST:
            return False
        self.lowest, self.worth = self.program.cost(values), self.program.worth(values)
        self.best = self.program.exponents(values)
        return True

    def _solved(self, costs: Vector, rows: "_Rows") -> Vector | None:
        values, whole = None, False
        if self.allowance.covers(self.size):
            self.allowance.left -= self.size
            values, whole = self.program.solved(costs, rows)
        self.complete &= whole
        return values


def _carried(found: Relations, free: frozenset[TensorName]) -> dict[TensorName, TensorName]:
    """Return the names that take over the exponent of another one, by that name.

    What an operator passes on unchanged has one exponent before and behind: a Mul before it may as
    well be behind it.
    """
    first: dict[TensorName, TensorName] = {}
    read = Counter(edge.node for edge in found.edges.values())
    for relation in found.equations:
        edges = [n for n in relation.terms if n in found.edges]
        others = [n for n in relation.terms if n not in found.edges]
        if len(edges) == len(others) == 1 and sum(relation.terms.values()) == 0:
            (edge,), (given,) = edges, others
            stored = found.edges[edge].tensor
            alone = given not in found.constants and read[found.edges[edge].node] == 1
            if alone and {edge, given, stored} <= free:
                first[edge] = first[given] = first.get(stored, stored)
    return first


@dataclass
class _Rows:
    """Rows of a sparse matrix, each between two bounds."""

    columns: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    ends: list[int] = field(default_factory=lambda: [0])
    lower: list[float] = field(default_factory=list)
    upper: list[float] = field(default_factory=list)

    def add(self, terms: Mapping[int, float], lower: float, upper: float = np.inf) -> None:
        self.columns += terms
        self.values += terms.values()
        self.ends.append(len(self.columns))
        self.lower.append(lower)
        self.upper.append(upper)


class _Program:
    """The variables: exponents, their sizes, the largest factor behind a tensor, losses."""

    def __init__(
        self, found: Relations, free: frozenset[TensorName], losses: Mapping[TensorName, Loss]
    ) -> None:
        self.found = found
        self.costs: list[float] = []
        self.lower: list[float] = []
        self.upper: list[float] = []
        self.whole: list[int] = []
        self.rows = _Rows()
        self.of: dict[TensorName, int] = {}
        self.same = _carried(found, free)
        for name in sorted(free - self.same.keys()):
            low, high = -FARTHEST, FARTHEST
            if constant := found.constants.get(name):
                least, most = constant.exponents()
                low, high = max(2 * low, least), min(2 * high, most)
            self.of[name] = self._variable(0.0, low, high, whole=True)
        self.of |= {name: self.of[first] for name, first in self.same.items()}
        self._relate()
        self.sizes = self._multiply()
        follow = {r.absorber for r in found.equations}
        for name, column in self.of.items():
            if name not in follow and name not in found.edges:
                self._bound({column: 1.0}, self._variable(_OCTAVE, 0, 2 * FARTHEST))
            if name not in found.edges or name not in self.same:
                self._lose(column, losses.get(name, NOTHING))

    def weighed(self, weights: Vector) -> Vector:
        """Return the costs of variables if one octave of a Mul costs `weights`."""
        costs = np.array(self.costs)
        costs[list(self.sizes.values())] += weights
        return costs

    def placed(self, places: Places) -> "_Rows":
        """Return the rows with Muls behind the tensors `places`, for these edges of each."""
        rows = deepcopy(self.rows)
        for tensor in self.sizes:
            first = None
            for name in self.edges[tensor]:
                tied = tensor
                if name in places.get(tensor, ()):
                    first, tied = first or name, first
                if tied is not None:
                    terms = ((name, 1.0), (tied, -1.0))
                    rows.add({self.of[n]: c for n, c in terms if n in self.of}, 0, 0)
        return rows

    def solved(self, costs: Vector, rows: "_Rows") -> tuple[Vector | None, bool]:
        """Return the variables of least cost, None if there are none; and whether no limit hit."""
        # Imported here: loading takes most of a second, and most runs scale nothing.
        from scipy.optimize import Bounds, LinearConstraint, milp  # noqa: PLC0415
        from scipy.sparse import csr_array  # noqa: PLC0415

        shape = (len(rows.lower), len(costs))
        matrix = csr_array((rows.values, rows.columns, rows.ends), shape=shape)
        bounds = Bounds(np.array(self.lower), np.array(self.upper))
        limits = LinearConstraint(matrix, np.array(rows.lower), np.array(rows.upper))

        options = {"node_limit": _NODES, "mip_rel_gap": _GAP}
        found = milp(
            costs, integrality=self.whole, bounds=bounds, constraints=limits, options=options
        )
        return None if found.x is None else np.asarray(found.x), found.status != _LIMITED

    def factors(self, values: Vector) -> Vector:
        """Return the largest factor behind each tensor, in octaves."""
        return values[list(self.sizes.values())]

    def cost(self, values: Vector) -> float:
        """Return the cost of a solution, counting every Mul as one."""
        return self._cost(np.array(self.costs), values)

    def worth(self, values: Vector) -> float:
        """Return the same without the size of exponents."""
        costs = np.array(self.costs)
        costs[costs == _OCTAVE] = 0
        return self._cost(costs, values)

    def _cost(self, costs: Vector, values: Vector) -> float:
        return float(costs @ values) + MUL * len(self.multiplied(values))

    def multiplied(self, values: Vector) -> dict[TensorName, frozenset[TensorName]]:
        """Return the edges with a Mul, by tensor."""
        return self.multiplied_by(self.exponents(values))

    def multiplied_by(
        self, exponents: Mapping[TensorName, int]
    ) -> dict[TensorName, frozenset[TensorName]]:
        """Return the edges with an exponent other than their tensor's, by tensor."""
        found = {
            t: frozenset(n for n in self.edges[t] if exponents.get(n, 0) != exponents.get(t, 0))
            for t in self.sizes
        }
        return {tensor: edges for tensor, edges in found.items() if edges}

    def exponents(self, values: Vector) -> dict[TensorName, int]:
        """Return the non-zero exponents."""
        return {n: e for n, column in self.of.items() if (e := round(values[column]))}

    def _variable(self, cost: float, low: float, high: float, *, whole: bool = False) -> int:
        self.costs.append(cost)
        self.lower.append(low)
        self.upper.append(high)
        self.whole.append(int(whole))
        return len(self.costs) - 1

    def _bound(self, terms: Mapping[int, float], size: int) -> None:
        """Constrain `size` to be at least |terms|."""
        for sign in (1, -1):
            self.rows.add({size: 1.0, **{column: sign * c for column, c in terms.items()}}, 0)

    def _relate(self) -> None:
        for relation in self.found.equations:
            terms: dict[int, float] = {}
            for name, c in relation.terms.items():
                if name in self.of:
                    terms[self.of[name]] = terms.get(self.of[name], 0.0) + c
            if any(terms.values()):
                self.rows.add(terms, 0, 0)

    def _multiply(self) -> dict[TensorName, int]:
        """Add the largest differences between stored and read exponents, by tensor."""
        sizes: dict[TensorName, int] = {}
        self.edges: dict[TensorName, list[TensorName]] = {}
        for name, edge in self.found.edges.items():
            if name in self.same:
                continue
            terms = {self.of[n]: c for n, c in ((name, 1.0), (edge.tensor, -1.0)) if n in self.of}
            if terms:
                if edge.tensor not in sizes:
                    sizes[edge.tensor] = self._variable(_OCTAVE, 0, _LARGEST_FACTOR)
                self.edges.setdefault(edge.tensor, []).append(name)
                self._bound(terms, sizes[edge.tensor])
        return sizes

    def _lose(self, column: int, loss: Loss) -> None:
        if loss.limit is not None:
            over = self._variable(_OVERFLOW, 0, np.inf)
            self.rows.add({column: -1.0, over: 1.0}, -loss.limit)
        if lines := [line for line in (*loss.lines, loss.least) if line[1]]:
            lost = self._variable(1.0, 0, np.inf)
            for a, b in lines:
                self.rows.add({lost: 1.0, column: b}, a)
