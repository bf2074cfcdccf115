"""What an operator's refused nodes have in common that no built node has."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from halfwise.graph.taken import Feature, Refused, Test, forms

FEW = 2
"""Most numbers taken of an attribute for which all others count as refused, if any was."""
When = dict[str, Test]
Nodes = Sequence[Mapping[str, Feature]]

Literal = tuple[str, Test]
"""A feature, and values that it may have."""
_KINDS = ("attribute", "input", "value", "output", "type", "rank")


class Answer(NamedTuple):
    """Whether a node with these features was built; None if only a GPU could tell."""

    found: Mapping[str, Feature]
    built: bool | None


def order(feature: str) -> tuple[int, bool]:
    """Return where a feature comes among those that may be a reason: the plainest first."""
    return _KINDS.index(feature.split(maxsplit=1)[0]), "output" in feature


def conditions(answers: Sequence[Answer]) -> list[Refused]:
    """Return what refuses an operator's nodes: conjunctions of one or two features.

    The smallest set is sought, greedily, of conjunctions that no built node fits and that together
    fit the refused ones (separate and conquer: Fürnkranz, 1999). First come those whose features
    were seen to matter: some refused node is built when one alone changes. Only these are ever
    certain. Two features of which none was seen to matter say nothing.
    """
    refused = [a.found for a in answers if a.built is False]
    built = [a.found for a in answers if a.built]
    literals = list(_literals(refused, built))
    in_refused, in_built = (_fitting(literals, nodes) for nodes in (refused, built))
    matters = [_mattering(node, built) for node in refused]
    alone = np.array([[name in each for each in matters] for name, _ in literals], bool)
    mixed = in_built.any(axis=1)
    candidates = []
    for chosen in chain(combinations(np.where(~mixed)[0], 1), combinations(np.where(mixed)[0], 2)):
        at = [*chosen]
        fits = in_refused[at].all(axis=0)
        shown = (alone[at] & fits).any(axis=1).mean()
        if fits.any() and not in_built[at].all(axis=0).any() and (shown or len(at) == 1):
            plain = [-n for k in at for n in order(literals[k][0])]
            candidates.append((shown, -len(at), plain, fits, dict(literals[k] for k in at)))
    left = np.ones(len(refused), bool)
    certain, other = list[When](), list[When]()
    while some := [c for c in candidates if (c[3] & left).any()]:
        best = max(some, key=lambda c: (c[0], (c[3] & left).sum(), c[1], c[2]))
        (certain if best[0] == 1 else other).append(best[4])
        left &= ~best[3]
    return [
        *(Refused(when, seen_in(when, refused)) for when in _joined(certain)),
        *map(Refused, _joined(other)),
    ]


def _literals(refused: Nodes, built: Nodes) -> Iterator[Literal]:
    """Yield what may be a reason: that there is an operand, all numbers but a few, or a value."""
    for name in sorted({n for node in refused for n in node}, key=lambda n: (order(n), n)):
        values = sorted({node[name] for node in refused if name in node}, key=str)
        taken = {node[name] for node in built if name in node}
        numbers = all(isinstance(v, int | float) for v in values if v is not None)
        if name.startswith(("input", "output")) and not all(name in node for node in built):
            yield name, {"not": []}
        elif name.startswith("attribute") and numbers and len(taken) <= FEW:
            yield name, {"not": sorted(taken, key=str)}
        yield from ((name, [value]) for value in values)


def _fitting(literals: Sequence[Literal], nodes: Nodes) -> NDArray[np.bool_]:
    """Return whether literals hold, with shape [literals, nodes]."""
    rows = [[Refused({name: test}).fits(node) for node in nodes] for name, test in literals]
    return np.array(rows, bool).reshape(len(literals), len(nodes))


def _mattering(node: Mapping[str, Feature], built: Nodes) -> set[str]:
    """Return the features of a refused node whose change alone makes one that is built.

    With a type, other types may change, and an input of the graph gets a Cast; with an operand, all
    that it has. Types and ranks of outputs follow from the inputs.
    """
    found = set()
    for other in built:
        names = {n for n in {**node, **other} if node.get(n) != other.get(n)}
        names -= {n for n in names if " of output" in n}
        names -= {
            n
            for n in names
            if f"type of {n}" in names and {node.get(n), other.get(n)} == {"input", "computed"}
        }
        first = min(sorted(names), key=order, default="")
        together = first.split(" ")[0] in ("type", "rank")
        if names and all(n[:4] == first[:4] if together else n.endswith(first) for n in names):
            found.add(first)
    return found


def seen_in(when: When, refused: Nodes) -> Mapping[str, list[Feature]]:
    """Return the features that tell forms apart, with their values in refused nodes."""
    seen: defaultdict[str, set[Feature]] = defaultdict(set)
    for found in refused:
        if Refused(when).fits(found):
            for name in forms(found):
                seen[name].add(found[name])
    return {name: sorted(values, key=str) for name, values in sorted(seen.items())}


def _joined(reasons: Iterable[When]) -> list[When]:
    """Return reasons with values of one feature joined where all others are the same."""
    joined: list[When] = []
    for when in reasons:
        for other in joined:
            differing = [k for k in when if when.get(k) != other.get(k)]
            if when.keys() == other.keys() and len(differing) == 1:
                one, two = other[differing[0]], when[differing[0]]
                if isinstance(one, list) and isinstance(two, list):
                    other[differing[0]] = sorted({*one, *two}, key=str)
                    break
        else:
            joined.append(when)
    return joined
