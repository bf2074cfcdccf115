"""Minimum cuts: the cheapest precision of nodes if each has a cost, and so has each difference."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from halfwise.records import NodeName

Nodes = frozenset[NodeName]
Site = tuple[NodeName, ...]
"""One or two compute nodes; rounding takes place if any of them is low."""

End = NodeName | bool
"""What sets the precision: a node, or a constant: always FP32 (True) or always low (False)."""

_ENTIRE = 2**28
"""Sum of all costs as integers; flows must fit 32 bits."""
_NEVER = 2**29
"""Capacity of an edge that must not be cut."""
NO_ERROR: NDArray[np.float64] = np.zeros(0)
"""The error that no sites add."""


@dataclass
class Terms:
    """The terms of costs.

    Attributes:
        nodes: Extra cost of a node in FP32 over low, ≥ 0.
        values: Cost if the two ends differ: of a producer and its readers, once per direction for
            all readers.
    """

    nodes: dict[NodeName, float] = field(default_factory=dict)
    values: list[tuple[End, tuple[End, ...], float]] = field(default_factory=list)


class Cut:
    """Minimum cuts for given terms and sites.

    Vertex 0 is FP32, vertex 1 low; nodes on the side of vertex 0 are kept.
    """

    def __init__(self, terms: Terms, sites: Sequence[Site] = ()) -> None:
        """Take the costs, and where values are rounded."""
        self._vertex: dict[End, int] = {True: 0, False: 1}
        self._size = 2
        self._arcs: list[tuple[int, int]] = []
        self._costs: list[float] = []
        for name, cost in terms.nodes.items():
            self._add(self._at(name), 1, cost)
        for producer, readers, cost in terms.values:
            self._add_value(producer, readers, cost)
        whole = sum(c for c in self._costs if c != _NEVER) or 1.0
        unit = _ENTIRE / whole
        self._costs = [c if c == _NEVER else c * unit for c in self._costs]
        self._noise = [self._add_site(site) for site in sites]
        self._ends = np.array(self._arcs, int).reshape(-1, 2)
        self._nodes = {n: v for n, v in self._vertex.items() if not isinstance(n, bool)}

    def _at(self, end: End) -> int:
        if end not in self._vertex:
            self._vertex[end] = self._new()
        return self._vertex[end]

    def _new(self) -> int:
        self._size += 1
        return self._size - 1

    def _add(self, source: int, target: int, cost: float) -> int:
        self._arcs.append((source, target))
        self._costs.append(cost)
        return len(self._arcs) - 1

    def _add_value(self, producer: End, readers: Sequence[End], cost: float) -> None:
        made, (low, fp32) = self._at(producer), (self._new(), self._new())
        self._add(made, low, cost)
        self._add(fp32, made, cost)
        for reader in readers:
            self._add(low, self._at(reader), _NEVER)
            self._add(self._at(reader), fp32, _NEVER)

    def _add_site(self, site: Site) -> int:
        if len(site) == 1:
            return self._add(0, self._at(site[0]), 0.0)
        inside = self._new()
        for node in site:
            self._add(inside, self._at(node), _NEVER)
        return self._add(0, inside, 0.0)

    def kept(
        self,
        added: NDArray[np.float64] = NO_ERROR,
        weight: float = 0.0,
        always: Nodes = frozenset(),
    ) -> Nodes:
        """Return the plan of least cost when error has a price too.

        Of several, it is the one with the fewest nodes: the intersection of two would be another.

        Args:
            added: Squared error that each site adds, ≥ 0.
            weight: Price of the total error, in multiples of all other costs.
            always: Nodes that are always kept.
        """
        # Imported here: it takes a third of a second, and most searches need none.
        from scipy.sparse import coo_array, csr_matrix  # noqa: PLC0415
        from scipy.sparse.csgraph import (  # noqa: PLC0415
            breadth_first_order,
            maximum_flow,
        )

        costs = np.array(self._costs)
        costs[self._noise] = added * (weight * _ENTIRE / (added.sum() or 1.0))
        ruled = [(0, self._vertex[n]) for n in always if n in self._vertex]
        whole = np.append(costs, np.full(len(ruled), _NEVER))
        whole = np.minimum(np.rint(whole), _NEVER).astype(np.int64)
        source, target = np.append(self._ends, np.array(ruled, int).reshape(-1, 2), axis=0).T
        inner = (source != target) & (target != 0) & (source != 1)
        shape = (self._size, self._size)
        joined = coo_array((whole[inner], (source[inner], target[inner])), shape=shape).tocsr()
        joined.data = np.minimum(joined.data, _NEVER).astype(np.int32)
        capacity = csr_matrix(joined)
        residual = capacity - maximum_flow(capacity, 0, 1).flow
        residual.data = np.maximum(residual.data, 0)
        residual.eliminate_zeros()
        reached = set(breadth_first_order(residual, 0, return_predecessors=False).tolist())
        return always.union(n for n, vertex in self._nodes.items() if vertex in reached)
