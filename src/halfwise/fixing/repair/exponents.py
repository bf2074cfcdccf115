"""Find exponents that bring all tensors into range: an integer program.

Every name (a tensor, a node's reading of one, a constant at its place) has an exponent, and is
stored times two to its power. The relations are linear, a Mul is needed if a reading has another
exponent than the stored value, and losses are convex and piecewise linear: so the smallest cost is
found by mixed-integer linear programming (HiGHS).
"""

import math
import os
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Set
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np
from msgspec import Struct

from halfwise.fixing.attribute.evidence import Evidence
from halfwise.fixing.attribute.ranges import ADDENDS
from halfwise.formats import Format
from halfwise.graph.model import tensor_name
from halfwise.graph.scaling import Constant, Edge, Relations
from halfwise.graph.sensitivity import MASK_SHARE, selects_constants
from halfwise.graph.weights import binades
from halfwise.records import Observation, TensorName
from halfwise.user_code import diverted

BIT = 4.0
"""Cost of one lost bit of every element, in Muls: a quarter of a bit is worth one."""
ADDED = 0.05
"""The same for a constant added to something larger: it is never worth a Mul."""
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


class Loss(Struct, frozen=True):
    """The cost of storing something times 2^e: convex in e.

    Attributes:
        limit: The largest e that fits the range; None if any does.
        lines: (a, b): the cost is at least a - b·e, for each; 0 at least.
    """

    limit: int | None = None
    lines: tuple[Line, ...] = ()

    def cost(self, e: int) -> float:
        """Return the loss, ignoring the range."""
        return max([0.0, *(a - b * e for a, b in self.lines)])

    def mended(self, e: int) -> bool:
        """Return whether 2^e brings it into range, or makes it lose less within the range."""
        before, after = (self.limit is None or one <= self.limit for one in (0, e))
        return after and (not before or self.cost(e) < self.cost(0))

    def with_room(self) -> "Loss":
        """Return the loss, plus a little for missing `ROOM`."""

        def cost(e: int) -> float:
            short = 0 if self.limit is None else max(0, e + ROOM - self.limit)
            return self.cost(e) + _SPARE * (short**2 + self.cost(e - ROOM))

        # Beyond the limit overflow costs more than all else.
        last = FARTHEST if self.limit is None else min(FARTHEST, max(self.limit, -FARTHEST) + 1)
        costs = [(e, cost(e)) for e in range(-FARTHEST, last + 1)]
        slopes = {round(b - a, 9): (e, a) for (e, a), (_, b) in pairwise(costs)}
        return Loss(self.limit, tuple((a - slope * e, -slope) for slope, (e, a) in slopes.items()))


NOTHING = Loss()


def losses(
    evidence: Evidence, constraints: Relations, problems: Mapping[TensorName, float]
) -> Iterator[tuple[TensorName, Loss]]:
    """Yield the costs of the exponents of tensors, edges and constants, by name.

    Args:
        evidence: Observations.
        constraints: The names.
        problems: Cost per bit, for the tensors and constants whose present losses count too.
    """
    inside = dict(_inside(evidence))
    read: dict[TensorName, Loss] = {}
    for name in constraints.tensors:
        observation = evidence.tensors.get(name)
        if observation is not None:
            read[name] = _tensor(evidence, observation, None, problems.get(name))
            reached = inside.get(name)
            stored = reached and _tensor(evidence, observation, reached, problems.get(name))
            yield name, stored or read[name]
    yield from ((n, read[e.tensor]) for n, e in constraints.edges.items() if e.tensor in read)
    for name, constant in constraints.constants.items():
        if constant.value is not None:
            weight = problems.get(tensor_name(constant.value))
            yield name, _constant(evidence, constant, weight)


def _inside(evidence: Evidence) -> Iterator[tuple[TensorName, float]]:
    """Yield magnitudes of sums and squares inside the nodes that make tensors.

    In units of the tensor: for a root of squares, the root.
    """
    for node, observation in (*evidence.inside("sum"), *evidence.inside("square")):
        root = observation.kind == "square" and node.op_type == "ReduceL2"
        if node.op_type != "Softmax":
            limit = evidence.fmt.overflow_threshold / evidence.headroom
            yield (
                tensor_name(node.outputs[0]),
                math.sqrt(observation.value * limit) if root else observation.value,
            )


def _tensor(
    evidence: Evidence, observation: Observation, inside: float | None, weight: float | None
) -> Loss:
    """Return the cost of the exponents of an observed tensor.

    The limit keeps `headroom` times its range below the overflow threshold; there is none if masks
    are its largest elements. Sums inside its node count in it if they are low, else cost `SUM`. The
    loss is in bits of elements below the smallest normal number; without a `weight`, bits lost
    already do not count.
    """
    fmt, most = evidence.fmt, evidence.fmt.overflow_threshold / evidence.headroom
    limit = _limit(most, observation.absmax, strict=True)
    within = limit if inside is None else _limit(most, max(observation.absmax, inside), strict=True)
    summed: tuple[Line, ...] = ()
    if evidence.accumulate == "fp16":
        limit = within
    elif within is not None and within != limit:
        summed = ((-SUM * (within - ROOM * (within < 0)), -SUM),)
    if limit is not None and limit < 0 and weight is None:
        value = evidence.values.get(observation.tensor)
        edge = MASK_SHARE * fmt.max
        if value is None or (
            observation.absmax >= edge
            and selects_constants(value, evidence.roles, evidence.tensors, edge)
        ):
            limit = None
    if observation.detail is None or not observation.detail.histogram.counts:
        return Loss(limit, summed)
    lines = (*_lines(observation.detail.histogram.binades, fmt, weight), *summed)
    return Loss(limit, lines)


def _constant(evidence: Evidence, constant: Constant, weight: float | None) -> Loss:
    """Return the cost of the exponents of a constant; it does not grow, so without headroom.

    Bits of one that is added hardly count. One beyond the range that is not a problem, such as a
    mask, saturates.
    """
    fmt = evidence.fmt
    limit = _limit(fmt.max, constant.magnitudes[1])
    if limit is not None and limit < 0 and weight is None:
        limit = None
    added = constant.slot in ADDENDS.get(constant.node.op_type, ()) and weight is None
    lines = _lines(binades(constant.array), fmt, weight, ADDED if added else BIT)
    return Loss(limit, lines)


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


_LARGEST_FACTOR = 14
"""Exponent of a Mul: 2^±14 and everything between are normal in FP16."""
OVERFLOW = 1000.0
"""Cost of one octave beyond the range: more than everything else."""
MUL = 1.0
"""Cost of a Mul: the unit."""
ALONE = 8.0
"""The same where nothing may stay in FP32: two bits. FP16 has four more than the default tolerance
asks for, and what folds into weights is all that runtimes without ONNX take."""
_Terms = Mapping[int, float]
"""Coefficients of variables."""
_OCTAVE = 1e-3
"""Cost of one octave of a tensor: among equals, the smallest and fewest are chosen."""
_GAP = 1e-5
"""Maximum relative distance of a solution from the best one."""
_NODES = 1000
"""Nodes of the search tree for whole numbers, per program; most need one."""
_LARGEST = 10_000
"""Names of one program: above this, one may take minutes."""
WORK = 50_000
"""Names of all programs of one model together, counted once per program: about 10 s. Work is
limited, not time, so that the result is the same however busy a machine is."""


class Allowance(Struct):
    """Number of names that programs may still have."""

    remaining: int = WORK

    def take(self, size: int) -> bool:
        """Take what a program with this many names needs; return whether that was left."""
        enough = size <= min(self.remaining, _LARGEST)
        self.remaining -= size if enough else 0
        return enough


class Solution(Struct, frozen=True):
    """The exponents of names that are not 0.

    Attributes:
        exponents: By name, edges and constants included.
        worth: Their cost: Muls and losses, excluding the size of exponents.
    """

    exponents: Mapping[TensorName, int]
    worth: float


def multiplied(
    constraints: Relations, exponents: Mapping[TensorName, int]
) -> dict[TensorName, TensorName]:
    """Return the edges with a Mul, whose exponent is not their tensor's, and these tensors."""
    pairs = ((name, edge.tensor) for name, edge in constraints.edges.items())
    return {n: t for n, t in pairs if exponents.get(n, 0) != exponents.get(t, 0)}


def solve(
    constraints: Relations,
    free: frozenset[TensorName],
    losses: Mapping[TensorName, Loss],
    allowance: Allowance,
    muls: Set[TensorName] | None = None,
    mul: float = MUL,
) -> Solution:
    """Return the exponents of least cost; none if nothing is allowed for the program.

    Args:
        constraints: What they must satisfy.
        free: The names that may have an exponent; all others have 0.
        losses: Costs of exponents, by name; zero for others.
        allowance: What is left for programs.
        muls: The edges that may get a Mul; None for all.
        mul: The cost of a Mul.
    """
    if not free:
        return Solution({}, 0.0)
    if not allowance.take(len(free)):
        return Solution({}, math.inf)
    muls = constraints.edges.keys() if muls is None else muls
    return _Program(constraints, free, losses, muls, mul).solved()


def _carried(constraints: Relations, free: frozenset[TensorName]) -> dict[TensorName, TensorName]:
    """Return the names that take over the exponent of another one, by that name.

    What an operator passes on unchanged has one exponent before and behind: a Mul before it may as
    well be behind it.
    """
    first: dict[TensorName, TensorName] = {}
    read = Counter(edge.node for edge in constraints.edges.values())
    for relation in constraints.equations:
        edges = [n for n in relation.terms if n in constraints.edges]
        rest = [n for n in relation.terms if n not in constraints.edges]
        if len(edges) == len(rest) == 1 and sum(relation.terms.values()) == 0:
            (edge,), (result,) = edges, rest
            stored = constraints.edges[edge].tensor
            alone = result not in constraints.constants and read[constraints.edges[edge].node] == 1
            if alone and {edge, result, stored} <= free:
                first[edge] = first[result] = first.get(stored, stored)
    return first


class _Program:
    """The variables: exponents, their sizes, Muls behind tensors, losses."""

    def __init__(
        self,
        constraints: Relations,
        free: frozenset[TensorName],
        losses: Mapping[TensorName, Loss],
        muls: Set[TensorName],
        mul: float,
    ) -> None:
        self.mul = mul
        self.variables: list[tuple[float, float, float, bool]] = []
        self.rows: list[tuple[_Terms, float, float]] = []
        same = _carried(constraints, free)
        self.columns = {
            name: self._exponent(constraints, name) for name in sorted(free - same.keys())
        }
        self.columns |= {name: self.columns[stored] for name, stored in same.items()}
        for relation in constraints.equations:
            self._row(self._terms(relation.terms), 0, 0)
        self._read({n: e for n, e in constraints.edges.items() if n not in same}, muls)
        follow = {r.absorber for r in constraints.equations}
        for name, column in self.columns.items():
            if name not in follow and name not in constraints.edges:
                size = self._variable(_OCTAVE, 0, 2 * FARTHEST)
                self._within({column: 1.0}, {size: 1.0})
            if name not in constraints.edges or name not in same:
                self._lose(column, losses.get(name, NOTHING))

    def solved(self) -> Solution:
        """Return the exponents of least cost."""
        # Imported here: loading takes most of a second, and most runs scale nothing.
        from scipy.optimize import Bounds, LinearConstraint, milp  # noqa: PLC0415
        from scipy.sparse import csr_array  # noqa: PLC0415

        costs, lower, upper, whole = map(np.array, zip(*self.variables, strict=True))
        rows = [row for row, _, _ in self.rows]
        numbers = np.array([c for row in rows for c in row.values()])
        columns = [column for row in rows for column in row]
        ends = np.cumsum([0, *map(len, rows)])
        matrix = csr_array((numbers, columns, ends), shape=(len(rows), len(costs)))
        limits = np.array([[least, most] for _, least, most in self.rows]).reshape(-1, 2).T
        # HiGHS prints a line for itself, whatever its options say; SciPy warns of those that it
        # passes on. On many cores, threads that wait for such small programs take a second.
        with (
            Path(os.devnull).open("w") as nowhere,
            diverted(nowhere.fileno()),
            warnings.catch_warnings(action="ignore", category=RuntimeWarning),
        ):
            solution = milp(
                costs,
                integrality=whole,
                bounds=Bounds(lower, upper),
                constraints=LinearConstraint(matrix, *limits),
                options={"node_limit": _NODES, "mip_rel_gap": _GAP, "threads": 1},
            )
        if solution.x is None:
            return Solution({}, math.inf)
        exponents = {n: e for n, column in self.columns.items() if (e := round(solution.x[column]))}
        worth = float(np.where(costs == _OCTAVE, 0, costs) @ solution.x)
        return Solution(exponents, worth)

    def _read(self, edges: Mapping[TensorName, Edge], muls: Set[TensorName]) -> None:
        """Give reads the exponent of their tensor, or another one behind a Mul.

        All reads by one node have the same: a square stays one.
        """
        first: dict[object, TensorName] = {}
        placed: dict[TensorName, int] = {}
        for name, edge in edges.items():
            one = first.setdefault((edge.tensor, edge.node), name) if name in muls else edge.tensor
            if one != name:
                self._row(self._terms({name: 1, one: -1}), 0, 0)
            elif apart := self._terms({name: 1, edge.tensor: -1}):
                if edge.tensor not in placed:
                    placed[edge.tensor] = self._variable(self.mul, 0, 1, whole=True)
                self._within(apart, {placed[edge.tensor]: _LARGEST_FACTOR})

    def _lose(self, column: int, loss: Loss) -> None:
        if loss.limit is not None:
            over = self._variable(OVERFLOW, 0, np.inf)
            self._row({column: -1.0, over: 1.0}, -loss.limit)
        if lines := [line for line in loss.lines if line[1]]:
            lost = self._variable(1.0, 0, np.inf)
            for a, b in lines:
                self._row({lost: 1.0, column: b}, a)

    def _exponent(self, constraints: Relations, name: TensorName) -> int:
        low, high = -FARTHEST, FARTHEST
        if constant := constraints.constants.get(name):
            least, most = constant.exponents()
            low, high = max(2 * low, least), min(2 * high, most)
        return self._variable(0.0, low, high, whole=True)

    def _variable(self, cost: float, low: float, high: float, *, whole: bool = False) -> int:
        self.variables.append((cost, low, high, whole))
        return len(self.variables) - 1

    def _terms(self, terms: Mapping[TensorName, int]) -> _Terms:
        """Return a sum of exponents; those that are not free are 0."""
        total: dict[int, float] = {}
        for name, c in terms.items():
            if (column := self.columns.get(name)) is not None:
                total[column] = total.get(column, 0.0) + c
        return total if any(total.values()) else {}

    def _row(self, terms: _Terms, least: float, most: float = np.inf) -> None:
        if terms:
            self.rows.append((terms, least, most))

    def _within(self, terms: _Terms, size: _Terms) -> None:
        """Bound |terms| by `size`."""
        for sign in (1, -1):
            self._row({**{column: sign * c for column, c in terms.items()}, **size}, 0)
