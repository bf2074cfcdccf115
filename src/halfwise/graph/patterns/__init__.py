"""Find operators that an exporter decomposed into several nodes.

A matcher starts at the one node that every variant has (the root of a normalisation, the sum of
exponentials of a Softmax, the gate of an activation) and reads on from there. So one matcher serves
all variants: squares as `Pow` or `Mul`, roots as `Sqrt` or `Pow`, division or multiplication by a
reciprocal, operands in either order, axes as attribute or input, and data movement (`Reshape`,
`Expand`, `Transpose`, …) anywhere in between.
"""

from collections.abc import Callable, Iterator, Mapping

from halfwise.graph.model import Network, is_standard, node_name
from halfwise.graph.norms import NORMALISATIONS, normalisations
from halfwise.graph.patterns.activations import (
    gelus,
    hard_swishes,
    log_softmaxes,
    mishes,
    softmaxes,
    softpluses,
    swishes,
)
from halfwise.graph.reading import Nodes
from halfwise.records import NodeName

_MATCHERS: Mapping[str, Callable[[Network], Iterator[Nodes]]] = {
    "Gelu": gelus,
    "HardSwish": hard_swishes,
    "LogSoftmax": log_softmaxes,
    "Mish": mishes,
    "Silu": swishes,
    "Softmax": softmaxes,
    "Softplus": softpluses,
    "Swish": swishes,
}

PATTERNS: tuple[str, ...] = tuple(sorted((*NORMALISATIONS, *_MATCHERS)))
"""Operators whose decomposed forms are known; `Silu` is another name for ONNX's `Swish`."""


def written_out(network: Network, op: str) -> list[frozenset[NodeName]]:
    """Return the groups of nodes that form a decomposed operator `op`.

    Nodes that only move data between the nodes of a group belong to it, and so do the weight and
    bias of a normalisation if they are constants. Not returned: one-node (native) forms, and
    groups with an operator of a custom domain.

    Normalisations share one structure and differ in the axes they reduce; see
    `halfwise.graph.patterns.normalisations` for the rules and where they can be wrong.

    Args:
        network: The model; only its main graph is searched.
        op: One of `PATTERNS`.

    Returns:
        One set of node names per occurrence, in graph order of its starting node. Sets of one
        operator are usually disjoint, but two norms may share a mean.

    Raises:
        KeyError: `op` is not in `PATTERNS`.
    """
    found: Iterator[Nodes]
    if op in NORMALISATIONS:
        found = (nodes for kind, nodes in normalisations(network) if kind == op)
    else:
        found = _MATCHERS[op](network)
    # The matchers compare names only; another domain's operator may compute anything.
    own = (nodes for nodes in found if all(map(is_standard, nodes)))
    return list(dict.fromkeys(frozenset(node_name(n) for n in nodes) for nodes in own))
