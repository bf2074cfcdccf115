"""Where values are rounded, and what each such site adds to the output error.

An edge is rounded where one of its ends is low. Two neighbours that are low round the value between
them once, so what nodes contribute alone cannot be added: both contain it. What edges add can,
in quadrature, since rounding errors of different values are nearly uncorrelated. `bench/plans.py`
tells how well that predicts.
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
"""The compute nodes, one or two, of which one has to be low for a rounding to take place."""

STEPS = 100
"""Updates of a fit; more change predictions by less than a percent (YOLOX nano, 708 sites)."""
LARGEST = 1e4
"""Errors beyond are taken for so much, infinities included: of a fit they would leave nothing."""


def sites_of(network: Network, roles: Roles) -> tuple[Site, ...]:
    """Return where values are rounded.

    Between two compute nodes, through data movement as well, at constants, and at what is always
    FP32.
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
    """What each site adds, fitted to errors of assignments."""

    def __init__(self, sites: Sequence[Site]) -> None:
        """Take the sites; nothing is known of them."""
        self.sites = tuple(sites)
        self.added: NDArray[np.float64] = np.zeros(len(self.sites))
        self._of: dict[NodeName, list[int]] = {}
        for index, site in enumerate(self.sites):
            for node in site:
                self._of.setdefault(node, []).append(index)

    def rounded(self, low: Nodes) -> NDArray[np.bool_]:
        """Return which sites round where these nodes are low: bool[sites]."""
        found = np.zeros(len(self.sites), bool)
        found[[i for node in low for i in self._of.get(node, ())]] = True
        return found

    def fit(self, measured: Mapping[Nodes, float]) -> None:
        """Fit what sites add to the errors of assignments, given by their low nodes.

        Multiplicative updates (Shepp and Vardi, "Maximum likelihood reconstruction for emission
        tomography", 1982) keep everything ≥ 0, and what no error tells apart stays equal. Each
        error counts alike by its ratio.
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
        """Return the error to expect where these nodes are low, all others in FP32."""
        return sqrt(float(self.added[self.rounded(low)].sum()))


def explained(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Return R², by the logarithms of errors, of pairs of a predicted and a measured one.

    Which factor all are off by is left out: only the order of plans matters. None where fewer than
    four pairs are positive and finite, or all measured are equal.
    """
    logs = np.array([(log(p), log(m)) for p, m in pairs if min(p, m) > 0 and isfinite(p + m)])
    if len(logs) < 4 or np.ptp(logs[:, 1]) == 0:
        return None
    predicted, measured = (logs - logs.mean(axis=0)).T
    return 1 - float(np.sum((measured - predicted) ** 2) / np.sum(measured**2))
