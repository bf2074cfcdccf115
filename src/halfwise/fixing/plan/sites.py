"""Where values are rounded, and how much each such site adds to the output error.

An edge is rounded if one of its ends is low. Two low neighbours round the value between them once,
so the contributions of single nodes cannot be added: both include it. Contributions of edges can,
in quadrature, because rounding errors of different values are nearly uncorrelated. `bench/plans.py`
measures how well that predicts.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import isfinite, log, sqrt

import numpy as np
from numpy.typing import NDArray

from halfwise.graph.model import Network, node_name
from halfwise.graph.roles import Role, Roles, is_float
from halfwise.records import NodeName

Nodes = frozenset[NodeName]
Site = tuple[NodeName, ...]
"""One or two compute nodes; rounding takes place if any of them is low."""

STEPS = 100
"""Updates of a fit; more change predictions by less than a percent (YOLOX nano, 708 sites)."""
LARGEST = 1e4
"""Errors are clipped here, infinities included: they would dominate the fit."""


def sites_of(network: Network, roles: Roles) -> tuple[Site, ...]:
    """Return the sites where values are rounded.

    Between two compute nodes, also through data movement, at constants, and at nodes that are
    always FP32.
    """
    found: dict[Site, None] = {}
    sources: dict[object, set[NodeName]] = {}

    def read(by: NodeName | None, values: Iterable[object]) -> None:
        for value in values:
            for source in sorted(sources.get(value, ())) or (None,):
                ends = dict.fromkeys(n for n in (source, by) if n is not None)
                if ends:
                    found[tuple(ends)] = None

    for node in network.nodes():
        name, inputs = node_name(node), [v for v in node.inputs if is_float(v)]
        role = roles[name].role
        if role is Role.MOVEMENT:
            made = set[NodeName]().union(*(sources.get(v, set()) for v in inputs))
        else:
            computes = role is Role.COMPUTE
            read(name if computes else None, inputs)
            made = {name} if computes else set()
        sources |= dict.fromkeys(node.outputs, made)
    read(None, network.graph.outputs)
    return tuple(found)


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
        found = np.zeros(len(self.sites), bool)
        found[[i for node in low for i in self._of.get(node, ())]] = True
        return found

    def fit(self, measured: Mapping[Nodes, float]) -> None:
        """Fit contributions of sites to the errors of assignments, given by their low nodes.

        Multiplicative updates (Shepp and Vardi, "Maximum likelihood reconstruction for emission
        tomography", 1982) keep everything ≥ 0, and sites that no error distinguishes stay equal.
        Errors are weighted equally, by their ratio.
        """
        errors = np.array(list(measured.values()), float)
        squares = np.clip(np.nan_to_num(errors, nan=LARGEST), 1e-6, LARGEST) ** 2
        rows = np.array([self.rounded(low) for low in measured], float) / squares[:, None]
        seen = rows.sum(axis=0)
        where = seen > 0
        self.added = np.where(where, squares.min() / max(1, len(self.sites)), 0.0)
        for _ in range(STEPS):
            predicted = np.maximum(rows @ self.added, 1e-30)
            ratios = (rows / predicted[:, None]).sum(axis=0)
            self.added[where] *= ratios[where] / seen[where]

    def predicted(self, low: Nodes) -> float:
        """Return the expected error with these nodes low and all others in FP32."""
        return sqrt(float(self.added[self.rounded(low)].sum()))


def explained(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Return R² of pairs of predicted and measured errors, on their logarithms.

    A common factor is ignored: only the order of plans matters. None if fewer than four pairs are
    positive and finite, or if all measured errors are equal.
    """
    logs = np.array([(log(p), log(m)) for p, m in pairs if min(p, m) > 0 and isfinite(p + m)])
    if len(logs) < 4 or np.ptp(logs[:, 1]) == 0:
        return None
    predicted, measured = (logs - logs.mean(axis=0)).T
    return 1 - float(np.sum((measured - predicted) ** 2) / np.sum(measured**2))
