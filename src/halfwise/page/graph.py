"""The graph of the page: folded into scopes, laid out, with what the run found about its nodes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from typing import TypeAlias

from halfwise.page.data import Data, Interned, Section, Stored, drawn, front_coded, sparse
from halfwise.records import Graph, NodeName, PrecisionProof, RunEvidence
from halfwise.reporting.nodes import (
    TYPES,
    NodeFacts,
    engine_proof,
    grown_with,
    node_facts,
    planned_words,
    type_words,
)
from halfwise.wording import WIDEST_NAME


def passing(graph: Graph) -> list[int]:
    """Return for each node how many tensors are made before it and read at or after it."""
    last = {t: i for i, tensors in enumerate(graph.reads) for t in tensors}
    changes = [0] * (len(graph.nodes) + 1)
    for i, tensors in enumerate(graph.gives):
        for t in tensors:
            if last.get(t, 0) > i:
                changes[i + 1] += 1
                changes[last[t] + 1] -= 1
    return list(accumulate(changes))


MOST_INSIDE = 36
"""Largest number of boxes and nodes in one box, unless it holds a body: a reader can take in that
many, and they are laid out instantly. So many scopes of a name are boxes; the rest is one."""
_TO = " … "


@dataclass(frozen=True)
class Box:
    """A part of the graph that can be folded into one box.

    Attributes:
        label: Its label.
        parent: The box around it, as an index into `Folding.boxes`; -1 for none.
    """

    label: str
    parent: int


@dataclass(frozen=True)
class Folding:
    """All boxes, each after the one around it, and the box of each node, -1 for none."""

    boxes: tuple[Box, ...]
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
    cut into stretches where the fewest tensors pass.
    """
    root = _by_scope(graph)
    _tidy(root)
    _cut(root, graph, passing(graph))
    boxes: list[Box] = []
    places = [-1] * len(graph.nodes)
    waiting = [(item, -1) for item in reversed(root.inside)]
    while waiting:
        item, parent = waiting.pop()
        if isinstance(item, int):
            places[item] = parent
            continue
        boxes.append(Box(item.label[: 2 * WIDEST_NAME], parent))
        waiting += [(child, len(boxes) - 1) for child in reversed(item.inside)]
    return Folding(tuple(boxes), tuple(places))


def short(name: str) -> str:
    """Return the last part of a name."""
    return name.rstrip("/").rpartition("/")[2] or name


def _by_scope(graph: Graph) -> _Part:
    root = _Part("")
    parts: dict[tuple[object, ...], _Part] = {(): root}
    owners = set(graph.bodies.values())
    paths: list[tuple[object, ...]] = []
    for i, scope in enumerate(graph.scopes):
        names = [name for name in graph.scope_names[scope].split("/") if name]
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


def _tidy(part: _Part) -> None:
    """Open the boxes in `part` that hold a single item."""
    for i, item in enumerate(part.inside):
        if isinstance(item, int):
            continue
        _tidy(item)
        if len(item.inside) == 1:
            only = item.inside[0]
            if isinstance(only, _Part):
                only.label = f"{item.label}/{only.label}"
            part.inside[i] = only


def _first(item: _Item) -> int:
    """Return the index of an item's first node."""
    while isinstance(item, _Part):
        item = item.inside[0]
    return item


def _cut(part: _Part, graph: Graph, passing: Sequence[int]) -> None:
    """Cut an overfull `part` into stretches, where the fewest tensors pass."""
    for item in part.inside:
        if isinstance(item, _Part):
            _cut(item, graph, passing)
    while len(part.inside) > MOST_INSIDE:
        firsts = list(map(_first, part.inside))
        count = -(-len(firsts) // (MOST_INSIDE * 2 // 3))
        step, slack = len(firsts) / count, len(firsts) // count // 4
        places = [0]
        for k in range(1, count):
            near = range(round(k * step) - slack, round(k * step) + slack + 1)
            places.append(min(near, key=lambda i: (passing[firsts[i]], abs(i - k * step))))
        stretches = [part.inside[a:b] for a, b in pairwise([*places, len(firsts)])]
        part.inside = [_Part(_label(items, graph), items) for items in stretches]


def _label(items: Sequence[_Item], graph: Graph) -> str:
    first, last = (
        item.label if isinstance(item, _Part) else short(graph.nodes[item])
        for item in (items[0], items[-1])
    )
    # For nested stretches the outer ends count.
    first, last = first.partition(_TO)[0], last.rpartition(_TO)[2]
    return f"{first[: WIDEST_NAME // 2]}{_TO}{last[-WIDEST_NAME // 2 :]}"


_SCRIPTS = ("model", "measures", "scene", "drawing", "panel", "controls")
Facts = Mapping[NodeName, NodeFacts]


def graph(stored: Stored) -> Section | None:
    """Return the section of the graph; None if the run folder has no graph."""
    if stored.evidence is None or (shown := stored.evidence.graph) is None or not shown.nodes:
        return None
    facts = node_facts(stored.run, stored.observations)
    low = stored.low
    data: dict[str, Data] = {
        **_structure(shown),
        **_tensors(shown),
        **_columns(shown, facts),
        **_engine(shown, engine_proof(stored.run)),
        **_sources(shown, stored.evidence),
        "isOriginal": stored.run.plan is None,
        "grown": grown_with(stored.run) if stored.run.growth else "",
        "samples": stored.observations.samples if stored.observations is not None else (),
        "low": {"name": low.name, "max": low.max, "smallest": low.smallest_normal},
    }
    return Section(
        "graph",
        "Graph",
        data,
        scripts=("columns", "source", *(f"graph-{part}" for part in _SCRIPTS)),
        libraries=("dagre",),
        is_open=True,
    )


def _structure(graph: Graph) -> dict[str, Data]:
    folding, ops = fold(graph), Interned[str]()
    return {
        "nodes": front_coded(graph.nodes),
        "op": [ops.of(op) for op in graph.ops],
        "ops": ops.all,
        "reads": graph.reads,
        "gives": graph.gives,
        "bodies": [*graph.bodies.items()],
        "added": graph.added,
        "place": folding.places,
        "boxes": {
            "labels": [box.label for box in folding.boxes],
            "parents": [box.parent for box in folding.boxes],
        },
    }


def _tensors(graph: Graph) -> dict[str, Data]:
    types = Interned[str]()
    return {
        "tensors": front_coded(graph.tensors),
        "type": [types.of(name) for name in graph.types],
        "types": [TYPES.get(name, name) for name in types.all],
        "shape": graph.shapes,
        "shapes": graph.shape_names,
        "constants": graph.constants,
        "inputs": graph.inputs,
        "outputs": graph.outputs,
    }


def _columns(graph: Graph, facts: Facts) -> dict[str, Data]:
    """Return what the run knows about nodes: numbers in columns, words by node index."""
    keys, texts, precisions = Interned[str](), Interned[str](), Interned[str]()
    words: dict[str, Data] = {}
    for i, name in enumerate(graph.nodes):
        if name in facts and (spoken := tuple(_words(facts[name]))):
            words[str(i)] = [place for k, text in spoken for place in (keys.of(k), texts.of(text))]

    def column(value: Callable[[NodeFacts], float | None]) -> list[float | None]:
        return sparse(
            [drawn(value(facts[name])) if name in facts else None for name in graph.nodes]
        )

    def marked(has: Callable[[NodeFacts], object]) -> list[int]:
        return [i for i, name in enumerate(graph.nodes) if name in facts and has(facts[name])]

    return {
        "precision": [precisions.of(_precision(graph, facts, i)) for i in range(len(graph.nodes))],
        "precisions": precisions.all,
        "kept": marked(lambda known: known.kept),
        "repaired": marked(lambda known: known.repairs),
        "suspected": marked(lambda known: known.guards or known.faults),
        "error": column(lambda known: known.growth.error if known.growth else None),
        "inherited": column(lambda known: known.growth.inherited if known.growth else None),
        "largest": column(lambda known: known.seen.absmax if known.seen else None),
        "worst": column(lambda known: known.seen.worst_sample if known.seen else None),
        "nonfinite": column(lambda known: known.nonfinite or None),
        "words": words,
        "keys": keys.all,
        "texts": texts.all,
    }


def _words(node: NodeFacts) -> Iterator[tuple[str, str]]:
    """Yield the words on a node, except the suspicion for which it is kept."""
    cause = None if node.kept is None else node.kept.guard
    reason = next((guard for guard in node.guards if guard.kind == cause), None)
    yield from planned_words(replace(node, guards=[g for g in node.guards if g is not reason]))


def _precision(graph: Graph, facts: Facts, node: int) -> str:
    entry = facts.get(graph.nodes[node])
    if entry is not None and entry.int8:
        return "INT8"
    read, written = (
        [graph.types[t] for t in ts[node] if graph.types[t]] for ts in (graph.reads, graph.gives)
    )
    return type_words(graph.ops[node], read, written)


def _engine(graph: Graph, proof: PrecisionProof | None) -> dict[str, Data]:
    """Return the engine's layers with nodes of the graph, and each node's precision.

    A nameless layer is named after its nodes, joined by " + ", as TensorRT names most.
    """
    if proof is None:
        return {"engine": [], "layers": []}
    places = {name: i for i, name in enumerate(graph.nodes)}
    precisions = {node.node: node.precision for node in proof.nodes}
    layers: list[Data] = []
    for layer in proof.layers:
        nodes = [places[name] for name in layer.nodes if name in places]
        name = "" if layer.name == " + ".join(graph.nodes[i] for i in nodes) else layer.name
        if nodes:
            facts = {"name": name, "type": layer.type, "ms": drawn(layer.milliseconds)}
            layers.append({**facts, "nodes": nodes})
    return {"engine": sparse([precisions.get(name) for name in graph.nodes]), "layers": layers}


def _sources(graph: Graph, evidence: RunEvidence) -> dict[str, Data]:
    """Return where nodes come from."""
    lines = Interned[tuple[str | int, ...]]()
    line: list[Data] = []
    for source in evidence.sources:
        at = (source.file, source.line, source.function, source.text) if source.file else ()
        line.append(lines.of((source.kind, *at)))
    return {
        "source": sparse(graph.sources),
        "modules": front_coded(source.module for source in evidence.sources),
        "line": line,
        "lines": lines.all,
    }
