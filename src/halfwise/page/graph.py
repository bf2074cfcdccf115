"""The graph of the page: folded into scopes, with what the run found about its nodes."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from halfwise.page.data import Data, Section, Stored
from halfwise.records import Graph, NodeName, PrecisionProof
from halfwise.reporting.causes import TYPES, engine_proof, grown_with, told_of_nodes, type_words
from halfwise.wording import WIDEST_NAME

MOST_INSIDE = 36
"""Largest number of boxes and nodes in one box, unless it holds a body: a reader can take in that
many, and they are laid out instantly. So many scopes of a name are boxes; the rest is one."""
_TO = " … "


@dataclass(frozen=True)
class Folding:
    """Parts of the graph, each of which can be folded into a box.

    Attributes:
        labels: Of the boxes, each after the one around it.
        parents: The box around each box, as an index; -1 for none.
        places: The box of each node; -1 for none.
    """

    labels: tuple[str, ...]
    parents: tuple[int, ...]
    places: tuple[int, ...]


@dataclass
class _Part:
    label: str
    inside: "list[_Item]" = field(default_factory=list)


_Item: TypeAlias = "_Part | int"
"""A part, or the index of a node in the graph."""


def fold(graph: Graph) -> Folding:
    """Return the boxes of a graph.

    Nodes are grouped by scope, those in a body with the node that owns it. What is still flat is
    cut into stretches of like length.
    """
    root = _by_scope(graph)
    _tidy(root, graph)
    labels, parents = list[str](), list[int]()
    places = [-1] * len(graph.nodes)
    waiting = [(item, -1) for item in reversed(root.inside)]
    while waiting:
        item, parent = waiting.pop()
        if isinstance(item, int):
            places[item] = parent
            continue
        labels.append(item.label[: 2 * WIDEST_NAME])
        parents.append(parent)
        waiting += [(child, len(labels) - 1) for child in reversed(item.inside)]
    return Folding(tuple(labels), tuple(parents), tuple(places))


def short(name: str) -> str:
    """Return the last part of a name."""
    return name.rstrip("/").rpartition("/")[2] or name


def _by_scope(graph: Graph) -> _Part:
    root = _Part("")
    parts: dict[tuple[object, ...], _Part] = {(): root}
    owners = set(graph.bodies.values())
    paths: list[tuple[object, ...]] = []
    for i, scope in enumerate(graph.scopes):
        names = [name for name in scope.split("/") if name]
        path: tuple[object, ...] = (*names[:MOST_INSIDE], "/".join(names[MOST_INSIDE:]))
        path = path if path[-1] else path[:-1]
        if i in graph.bodies:
            # Owners come before the nodes in their bodies.
            path = paths[graph.bodies[i]]
        paths.append((*path, i) if i in owners else path)
        for depth in range(1, len(paths[i]) + 1):
            if (here := paths[i][:depth]) not in parts:
                last = here[-1]
                parts[here] = _Part(
                    short(graph.nodes[last]) if isinstance(last, int) else str(last)
                )
                parts[here[:-1]].inside.append(parts[here])
        parts[paths[i]].inside.append(i)
    return root


def _tidy(part: _Part, graph: Graph) -> None:
    """Open the boxes in `part` that hold a single item, and cut what is overfull."""
    for i, item in enumerate(part.inside):
        if isinstance(item, int):
            continue
        _tidy(item, graph)
        if len(item.inside) == 1:
            only = item.inside[0]
            if isinstance(only, _Part):
                only.label = f"{item.label}/{only.label}"
            part.inside[i] = only
    while (size := len(part.inside)) > MOST_INSIDE:
        stretch = -(-size // -(-size // MOST_INSIDE))
        cuts = [part.inside[i : i + stretch] for i in range(0, size, stretch)]
        part.inside = [_Part(_label(items, graph), items) for items in cuts]


def _label(items: Sequence[_Item], graph: Graph) -> str:
    first, last = (
        item.label if isinstance(item, _Part) else short(graph.nodes[item])
        for item in (items[0], items[-1])
    )
    # For nested stretches the outer ends count.
    first, last = first.partition(_TO)[0], last.rpartition(_TO)[2]
    return f"{first[: WIDEST_NAME // 2]}{_TO}{last[-WIDEST_NAME // 2 :]}"


_SCRIPTS = ("model", "measures", "scene", "drawing", "panel", "controls")
_STRUCTURE = {
    *("ops", "reads", "gives", "added", "tensors", "shapes"),
    *("constants", "inputs", "outputs", "sources"),
}


def graph(stored: Stored) -> Section | None:
    """Return the section of the graph; None if the run folder has no graph."""
    run, evidence, low = stored.run, stored.evidence, stored.low
    if evidence is None or (shown := evidence.graph) is None or not shown.nodes:
        return None
    folding, proof = fold(shown), engine_proof(run)
    data: dict[str, Data] = {
        **shown.model_dump(include=_STRUCTURE),
        "names": shown.nodes,
        "types": [TYPES.get(name, name) for name in shown.types],
        "bodies": [*shown.bodies.items()],
        "origins": [source.model_dump() for source in evidence.sources],
        "place": folding.places,
        "boxes": {"labels": folding.labels, "parents": folding.parents},
        "precision": _precisions(shown, set(() if run.plan is None else run.plan.int8)),
        "facts": _facts(shown, stored),
        **({"engine": {}, "layers": []} if proof is None else _engine(shown, proof)),
        "isOriginal": run.plan is None,
        "grown": grown_with(run) if run.growth else "",
        "low": {"name": low.name, "max": low.max, "smallest": low.smallest_normal},
    }
    return Section(
        "graph",
        "Graph",
        data,
        scripts=("source", *(f"graph-{part}" for part in _SCRIPTS)),
        libraries=("dagre",),
    )


def _precisions(graph: Graph, int8: set[NodeName]) -> list[str]:
    """Return what each node computes in, by the types of its tensors."""

    def types(tensors: Sequence[int]) -> list[str]:
        return [graph.types[tensor] for tensor in tensors if graph.types[tensor]]

    nodes = zip(graph.nodes, graph.ops, graph.reads, graph.gives, strict=True)
    return [
        "INT8" if name in int8 else type_words(op, types(reads), types(gives))
        for name, op, reads, gives in nodes
    ]


def _facts(graph: Graph, stored: Stored) -> dict[str, Data]:
    """Return what the run knows about nodes, by index; of others, nothing is known."""
    seen, told = stored.observations, told_of_nodes(stored.run, stored.observations)
    growth = {o.node: o.model_dump(include={"error", "inherited"}) for o in stored.run.growth}
    # Of a node's tensors, the one that reaches furthest comes last, and stays.
    tensors = sorted(seen.tensors if seen else (), key=lambda t: (t.nonfinite > 0, t.absmax))
    largest = {
        one.producer: {
            **one.model_dump(include={"absmax", "nonfinite"}),
            "sample": seen.samples[one.worst_sample] if seen else "",
        }
        for one in tensors
    }
    known = (
        {**({"told": told[n]} if n in told else {}), **growth.get(n, {}), **largest.get(n, {})}
        for n in graph.nodes
    )
    return {str(i): facts for i, facts in enumerate(known) if facts}


def _engine(graph: Graph, proof: PrecisionProof) -> dict[str, Data]:
    """Return the engine's layers with nodes of the graph, and the precision of nodes by index."""
    places = {name: i for i, name in enumerate(graph.nodes)}
    layers: list[Data] = []
    for layer in proof.layers:
        if nodes := [places[name] for name in layer.nodes if name in places]:
            facts = layer.model_dump(include={"name", "type"})
            layers.append({**facts, "ms": layer.milliseconds, "nodes": nodes})
    precisions = {str(places[n.node]): n.precision for n in proof.nodes if n.node in places}
    return {"engine": precisions, "layers": layers}
