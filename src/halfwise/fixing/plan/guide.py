"""Plans to try if nothing stands out: those of least predicted cost for their error."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, cached_property
from math import inf, sqrt

import numpy as np
from numpy.typing import NDArray

from halfwise.graph.cut import Cut, Site, Terms
from halfwise.graph.model import Network, node_name
from halfwise.graph.roles import Role, Roles, is_float
from halfwise.records import NodeName

Nodes = frozenset[NodeName]

Classes = Mapping[NodeName, int]
"""Structural class of each node; equal for the same place in repeated blocks."""

COARSE_GROUPS = 8
"""Groups whose contributions are measured first: with three trials they give a plan. Our choice."""


def union(groups: Sequence[Nodes]) -> Nodes:
    """Return everything in any of them."""
    return frozenset[NodeName]().union(*groups)


def stretches(nodes: Sequence[NodeName], classes: Classes) -> list[list[NodeName]]:
    """Return a few groups by place if blocks repeat, else by stretches of the graph."""
    groups = places(nodes, classes)
    if len(groups) * 3 <= len(nodes):
        nodes = [n for place in groups for n in nodes if n in place]
    length = max(1, -(-len(nodes) // COARSE_GROUPS))
    return [list(nodes[i : i + length]) for i in range(0, len(nodes), length)]


def suspicions(suspects: Sequence[Nodes], classes: Classes) -> list[Nodes]:
    """Return guards about the same places as one group each, mildest first."""
    merged: dict[tuple[int, ...], Nodes] = {}
    for group in suspects:
        key = tuple(sorted({classes[n] for n in group}))
        merged[key] = merged.get(key, frozenset()) | group
    return list(reversed(merged.values()))


def places(nodes: Sequence[NodeName], classes: Classes) -> list[Nodes]:
    """Return nodes of one class as a group each, in the order of their first nodes."""
    groups: dict[int, list[NodeName]] = {}
    for node in nodes:
        groups.setdefault(classes[node], []).append(node)
    return [frozenset(place) for place in groups.values()]


STEPS = 100
"""Updates of a fit; more change predictions by less than a percent (YOLOX nano, 708 sites)."""
LARGEST_ERROR = 1e4
"""Errors are clipped here, infinities included: they would dominate the fit."""


def sites_of(network: Network, roles: Roles) -> tuple[Site, ...]:
    """Return the sites where values are rounded.

    Between two compute nodes, also through data movement, at constants, and at nodes that are
    always FP32.
    """
    sites: dict[Site, None] = {}
    sources: dict[object, set[NodeName]] = {}

    def read(by: NodeName | None, values: Iterable[object]) -> None:
        for value in values:
            for source in sorted(sources.get(value, ())) or (None,):
                ends = dict.fromkeys(n for n in (source, by) if n is not None)
                if ends:
                    sites[tuple(ends)] = None

    for node in network.all_nodes():
        name, inputs = node_name(node), [v for v in node.inputs if is_float(v)]
        role = roles[name].role
        if role is Role.MOVEMENT:
            made = set[NodeName]().union(*(sources.get(v, set()) for v in inputs))
        else:
            computes = role is Role.COMPUTE
            read(name if computes else None, inputs)
            made = {name} if computes else set()
        sources |= dict.fromkeys(node.outputs, made)
    read(None, (v for graph in network.graphs() for v in graph.outputs))
    return tuple(sites)


class Sites:
    """Contributions of sites, fitted to errors of assignments."""

    def __init__(self, sites: Sequence[Site]) -> None:
        """Take the sites; nothing is fitted yet."""
        self.sites = tuple(sites)
        self.added: NDArray[np.float64] = np.zeros(len(self.sites))
        self._of: dict[NodeName, list[int]] = {}
        for index, site in enumerate(self.sites):
            for node in site:
                self._of.setdefault(node, []).append(index)

    def rounded(self, low: Nodes) -> NDArray[np.bool_]:
        """Return which sites round with these nodes low: bool[sites]."""
        mask = np.zeros(len(self.sites), bool)
        mask[[i for node in low for i in self._of.get(node, ())]] = True
        return mask

    def fit(self, measured: Mapping[Nodes, float]) -> None:
        """Fit contributions of sites to the errors of assignments, given by their low nodes.

        Multiplicative updates (Shepp and Vardi, "Maximum likelihood reconstruction for emission
        tomography", 1982) keep everything ≥ 0, and sites that no error distinguishes stay equal.
        Errors are weighted equally, by their ratio.
        """
        errors = np.nan_to_num(np.array(list(measured.values()), float), nan=LARGEST_ERROR)
        squares = np.clip(errors, 1 / LARGEST_ERROR, LARGEST_ERROR) ** 2
        rows = np.array([self.rounded(low) for low in measured], float) / squares[:, None]
        counts = rows.sum(axis=0)
        where = counts > 0
        self.added = np.where(where, squares.min() / max(1, len(self.sites)), 0.0)
        for _ in range(STEPS):
            predicted = np.maximum(rows @ self.added, 1e-30)
            ratios = (rows / predicted[:, None]).sum(axis=0)
            self.added[where] *= ratios[where] / counts[where]

    def predicted(self, low: Nodes) -> float:
        """Return the expected error with these nodes low and all others in FP32."""
        return sqrt(float(self.added[self.rounded(low)].sum()))


WEIGHTS = tuple(10.0 ** (i / 8 - 4) for i in range(96))
"""Prices of all error, in multiples of all other costs: from keeping nothing to everything."""


class Guide:
    """Predicts errors of plans from contributions, and proposes plans.

    Attributes:
        is_fitted: Whether contributions were taken.
    """

    def __init__(self, sites: Sequence[Site], terms: Callable[[], Terms]) -> None:
        """Take where values are rounded, and the terms of costs."""
        self._all, self._terms = tuple(sites), terms
        self._sites = Sites(sites)
        self.is_fitted = False

    @cached_property
    def _cut(self) -> Cut:
        return Cut(self._terms(), self._all)

    def fit(self, contributions: Mapping[Nodes, float]) -> None:
        """Fit to the errors of assignments, given by their low nodes."""
        self._sites.fit(contributions)
        self.is_fitted = True

    def predicted(self, low: Nodes) -> float:
        """Return the excess expected with these nodes low; 0 before any fit."""
        return self._sites.predicted(low)

    def merit(self, low: Nodes, node: NodeName, saved: float) -> float:
        """Return the squared error that lowering one more node adds per unit of cost saved.

        Infinite if it saves none.
        """
        added = self.predicted(low | {node}) ** 2 - self.predicted(low) ** 2
        return added / saved if saved > 0 else inf

    def plans(self, nodes: Nodes, always: Nodes) -> list[Nodes]:
        """Return plans that keep `always` and some of `nodes`; the cheapest and worst first."""

        @cache
        def kept(place: int) -> Nodes:
            cut = self._cut.kept(self._sites.added, WEIGHTS[place], always)
            return cut & nodes | always

        def between(first: int, last: int) -> list[Nodes]:
            # A larger weight only grows a plan.
            if last - first < 2 or kept(first) == kept(last):
                return [kept(first), kept(last)]
            middle = (first + last) // 2
            return [*between(first, middle), *between(middle, last)]

        return list(dict.fromkeys(between(0, len(WEIGHTS) - 1)))

    def cheapest(self, always: Nodes) -> Nodes:
        """Return the plan of least cost of all that keep at least `always`."""
        return self._cut.kept(np.zeros(len(self._all)), 0.0, always)
