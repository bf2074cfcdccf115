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
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields

import numpy as np
from numpy.typing import NDArray

from halfwise.fixing.repair.exponent_losses import FARTHEST, NOTHING, Loss
from halfwise.graph.scaling import Relations
from halfwise.records import TensorName

Vector = NDArray[np.float64]
Places = Mapping[TensorName, frozenset[TensorName]]
_Problem = Callable[[], tuple[Vector | None, bool]]

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
            values = self._solved(self.program.weighed(weights))
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
        values = self._solved(self.program.placed(places))
        if values is None or self.program.cost(values) >= self.lowest - _LEAST:
            return False
        self.lowest, self.worth = self.program.cost(values), self.program.worth(values)
        self.best = self.program.exponents(values)
        return True

    def _solved(self, problem: "_Problem") -> Vector | None:
        values, whole = None, False
        if self.allowance.covers(self.size):
            self.allowance.left -= self.size
            values, whole = problem()
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

    def copy(self) -> "_Rows":
        return _Rows(*(list(getattr(self, f.name)) for f in fields(self)))

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

    def weighed(self, weights: Vector) -> "_Problem":
        """Return the program in which one octave of a Mul costs `weights`."""
        costs = np.array(self.costs)
        costs[list(self.sizes.values())] += weights
        return self._problem(costs, self.rows)

    def placed(self, places: Places) -> "_Problem":
        """Return the program with Muls behind the tensors `places`, for these edges of each."""
        rows = self.rows.copy()
        for tensor in self.sizes:
            first = None
            for name in self.edges[tensor]:
                tied = tensor
                if name in places.get(tensor, ()):
                    first, tied = first or name, first
                if tied is not None:
                    terms = ((name, 1.0), (tied, -1.0))
                    rows.add({self.of[n]: c for n, c in terms if n in self.of}, 0, 0)
        return self._problem(np.array(self.costs), rows)

    def _problem(self, costs: Vector, rows: "_Rows") -> "_Problem":
        # Imported here: loading takes most of a second, and most runs scale nothing.
        from scipy.optimize import Bounds, LinearConstraint, milp  # noqa: PLC0415
        from scipy.sparse import csr_array  # noqa: PLC0415

        shape = (len(rows.lower), len(costs))
        matrix = csr_array((rows.values, rows.columns, rows.ends), shape=shape)
        bounds = Bounds(np.array(self.lower), np.array(self.upper))
        limits = LinearConstraint(matrix, np.array(rows.lower), np.array(rows.upper))

        def solved() -> tuple[Vector | None, bool]:
            options = {"node_limit": _NODES, "mip_rel_gap": _GAP}
            found = milp(
                costs, integrality=self.whole, bounds=bounds, constraints=limits, options=options
            )
            return None if found.x is None else np.asarray(found.x), found.status != _LIMITED

        return solved

    def factors(self, values: Vector) -> Vector:
        """Return the largest factor behind each tensor, in octaves."""
        return values[list(self.sizes.values())]

    def cost(self, values: Vector) -> float:
        """Return the cost of a solution, counting every Mul as one."""
        return float(np.array(self.costs) @ values) + MUL * len(self.multiplied(values))

    def worth(self, values: Vector) -> float:
        """Return the same without the size of exponents."""
        costs = np.array(self.costs)
        costs[costs == _OCTAVE] = 0
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
