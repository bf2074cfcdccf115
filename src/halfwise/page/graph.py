"""The graph of the page: folded into scopes, laid out, with what the run found about its nodes."""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain, pairwise
from typing import TypeAlias

import numpy as np

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
from halfwise.wording import listed


class Structure:
    """The wiring of a graph.

    Attributes:
        names: Names of its nodes.
        passing: For each node, how many tensors are made before it and read at or after it.
    """

    def __init__(self, graph: Graph) -> None:
        self.names = graph.nodes
        self._graph = graph
        self._constants = frozenset(graph.constants)
        self._maker = {t: (i, k) for i, ts in enumerate(graph.gives) for k, t in enumerate(ts)}
        self._passed = frozenset(i for i in graph.added if self._is_cast(i))
        self._kinds: dict[Hashable, int] = {}
        self.passing = self._count_passing()

    def is_passed(self, nodes: Sequence[int]) -> bool:
        """Return whether all nodes are Casts that the user's model lacks."""
        return self._passed.issuperset(nodes)

    def kind(self, nodes: Sequence[int]) -> int:
        """Return a number that is the same for parts of the same structure.

        That is: the same operators in the same order, which read each other, constants of the same
        shapes, and outside values in the same way. Casts that the user's model lacks are ignored.

        Args:
            nodes: Indices of the part's nodes, ascending.
        """
        solid = [i for i in nodes if i not in self._passed]
        here = {node: place for place, node in enumerate(solid)}
        outside: dict[int, int] = {}
        found: list[Hashable] = []
        for node in solid:
            sources = tuple(self._source(t, here, outside) for t in self._graph.reads[node])
            found.append((self._graph.ops[node], len(self._graph.gives[node]), sources))
        return self._kinds.setdefault(tuple(found), len(self._kinds))

    def _source(self, tensor: int, here: dict[int, int], outside: dict[int, int]) -> Hashable:
        tensor = self._behind_casts(tensor)
        if tensor in self._constants:
            return "constant", self._graph.shapes[tensor]
        maker = self._maker.get(tensor)
        if maker is not None and maker[0] in here:
            return here[maker[0]], maker[1]
        return "outside", outside.setdefault(tensor, len(outside))

    def _is_cast(self, node: int) -> bool:
        """Return whether a node is a Cast of something; in a damaged record it may read itself."""
        read = self._graph.reads[node][:1]
        made = (self._maker[t][0] for t in read if t in self._maker)
        return self._graph.ops[node] == "Cast" and bool(read) and all(i < node for i in made)

    def _behind_casts(self, tensor: int) -> int:
        while (maker := self._maker.get(tensor)) is not None and maker[0] in self._passed:
            tensor = self._graph.reads[maker[0]][0]
        return tensor

    def _count_passing(self) -> list[int]:
        graph = self._graph
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
many, and they are laid out instantly."""
_DEPTH = 12
"""Largest number of scopes in a name; the rest of a longer name is one scope."""
_PERIOD = 300
"""Largest number of boxes and nodes in a block that is found by its structure alone."""
_LEAST = 4
"""Smallest number of nodes that folding a repeated block must hide."""
_TRIED = 8
"""How often a node's wiring may be compared in the search for blocks."""
_LABEL = 60
"""Largest number of characters in a label."""
_TO = " … "


@dataclass(frozen=True)
class Box:
    """A part of the graph that can be folded into one box.

    Attributes:
        label: Its label.
        parent: The box around it, as an index into `Folding.boxes`; -1 for none.
        times: How often a block repeats whose copies the box holds; else 1.
    """

    label: str
    parent: int
    times: int = 1


@dataclass(frozen=True)
class Folding:
    """All boxes, each after the one around it, and the box of each node, -1 for none."""

    boxes: tuple[Box, ...]
    places: tuple[int, ...]


@dataclass
class _Part:
    label: str
    inside: "list[_Item]" = field(default_factory=list)
    times: int = 1


_Item: TypeAlias = "_Part | int"
"""A part, or the index of a node in the graph."""


def fold(graph: Graph) -> Folding:
    """Return the boxes of a graph.

    Nodes are grouped by scope first, those in a body with the node that owns it. Consecutive blocks
    of the same structure become one box, whether they are scopes or not; Casts that the user's
    model lacks are ignored. What is still flat is cut into stretches where the fewest tensors pass.
    """
    structure = Structure(graph)
    root = _by_scope(graph)
    _tidy(root)
    _repeat_inside(root, structure)
    _cut(root, structure, graph)
    boxes: list[Box] = []
    places = [-1] * len(graph.nodes)
    waiting = [(item, -1) for item in reversed(root.inside)]
    while waiting:
        item, parent = waiting.pop()
        if isinstance(item, int):
            places[item] = parent
            continue
        boxes.append(Box(item.label[: 2 * _LABEL], parent, item.times))
        waiting += [(child, len(boxes) - 1) for child in reversed(item.inside)]
    return Folding(tuple(boxes), tuple(places))


def short(name: str) -> str:
    """Return the last part of a name."""
    return name.rstrip("/").rpartition("/")[2] or name


def _by_scope(graph: Graph) -> _Part:
    root = _Part("")
    known: dict[tuple[object, ...], _Part] = {(): root}
    owners = set(graph.bodies.values())
    paths: list[tuple[object, ...]] = []
    for i, scope in enumerate(graph.scopes):
        names = [name for name in graph.scope_names[scope].split("/") if name]
        path: tuple[object, ...] = (*names[:_DEPTH], "/".join(names[_DEPTH:]))
        path = path if path[-1] else path[:-1]
        if i in graph.bodies:
            # Owners come before the nodes in their bodies.
            path = paths[graph.bodies[i]]
        paths.append((*path, i) if i in owners else path)
        for depth in range(1, len(paths[i]) + 1):
            if (here := paths[i][:depth]) not in known:
                last = here[-1]
                known[here] = _Part(
                    short(graph.nodes[last]) if isinstance(last, int) else str(last)
                )
                known[here[:-1]].inside.append(known[here])
        known[paths[i]].inside.append(i)
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


def _nodes(items: Sequence[_Item]) -> list[int]:
    """Return the indices of all nodes in items, ascending."""
    found: list[int] = []
    waiting = list(items)
    while waiting:
        item = waiting.pop()
        if isinstance(item, int):
            found.append(item)
        else:
            waiting += item.inside
    return sorted(found)


def _repeat_inside(part: _Part, structure: Structure) -> None:
    for item in part.inside:
        if isinstance(item, _Part):
            _repeat_inside(item, structure)
    part.inside = _repeated(part.inside, structure)


def _repeated(items: list[_Item], structure: Structure) -> list[_Item]:
    """Return items with each row of copies of a block in its own box."""
    solid = [i for i, item in enumerate(items) if not structure.is_passed(_nodes([item]))]
    found: list[_Item] = []
    done = 0
    for start, period, times in _rows([_nodes([items[i]]) for i in solid], structure):
        ends = [solid[start + k * period] for k in range(times)]
        ends.append(solid[start + times * period - 1] + 1)
        copies = [_copy(items[a:b], structure) for a, b in pairwise(ends)]
        if all(isinstance(items[a], _Part) and b - a == 1 for a, b in pairwise(ends)):
            label = listed([copy.label for copy in copies], most=2, width=_LABEL // 2)
        else:
            label = _label(items[ends[0] : ends[-1]], structure)
        found += [*items[done : ends[0]], _Part(label, list(copies), times)]
        done = ends[-1]
    return [*found, *items[done:]]


def _copy(items: list[_Item], structure: Structure) -> _Part:
    if len(items) == 1 and isinstance(items[0], _Part):
        return items[0]
    return _Part(_label(items, structure), _repeated(items, structure))


def _label(items: Sequence[_Item], structure: Structure) -> str:
    first, last = (
        item.label if isinstance(item, _Part) else short(structure.names[item])
        for item in (items[0], items[-1])
    )
    # For nested stretches the outer ends count.
    first, last = first.partition(_TO)[0], last.rpartition(_TO)[2]
    return f"{first[: _LABEL // 2]}{_TO}{last[-_LABEL // 2 :]}"


def _rows(parts: Sequence[Sequence[int]], structure: Structure) -> list[tuple[int, int, int]]:
    """Return the start of each row of copies, the parts per copy, and the number of copies.

    Rows do not overlap; those that hide the most nodes in all copies but one take precedence.

    Args:
        parts: The nodes of each part, in order.
        structure: The graph's structure.
    """
    kinds = np.array([structure.kind(nodes) for nodes in parts])
    weights = np.array([len(nodes) for nodes in parts])
    taken = np.zeros(len(parts), bool)
    found = []
    work = _TRIED * int(weights.sum())
    for start, period, times in _candidates(kinds, weights):
        span = slice(start, start + times * period)
        if taken[span].any() or work < 0:
            continue
        work -= int(weights[span].sum())
        blocks = [
            structure.kind(sorted(chain.from_iterable(parts[at : at + period])))
            for at in range(start, start + times * period, period)
        ]
        ends = [k for k in range(1, times) if blocks[k] != blocks[k - 1]]
        runs = zip([0, *ends], [*ends, times], strict=True)
        first, beyond = max(runs, key=lambda run: run[1] - run[0])
        if beyond - first > 1:
            found.append((start + first * period, period, beyond - first))
            taken[start + first * period : start + beyond * period] = True
    return sorted(found)


def _candidates(
    kinds: "np.ndarray[tuple[int], np.dtype[np.int_]]",
    weights: "np.ndarray[tuple[int], np.dtype[np.int_]]",
) -> list[tuple[int, int, int]]:
    """Return start, period and times of rows of equal kinds, most hidden nodes first."""
    found: list[tuple[int, int, int, int]] = []
    before = np.concatenate(([0], np.cumsum(weights)))
    for period in range(1, min(len(kinds) // 2, _PERIOD) + 1):
        for start, length in _runs(kinds[period:] == kinds[:-period]):
            times = length // period + 1
            size = int(before[start + period] - before[start])
            if times > 1 and size > 1 and (times - 1) * size >= _LEAST:
                found.append(((times - 1) * size, start, period, times))
    found.sort(key=lambda one: (-one[0], one[2], one[1]))
    return [one[1:] for one in found]


def _runs(same: "np.ndarray[tuple[int], np.dtype[np.bool_]]") -> Iterator[tuple[int, int]]:
    """Yield the start and length of each run of True."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], same, [False])).astype(np.int8)))
    for start, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        yield start, end - start


def _cut(part: _Part, structure: Structure, graph: Graph) -> None:
    """Cut an overfull `part` into stretches, where the fewest tensors pass."""
    for item in part.inside:
        if isinstance(item, _Part):
            _cut(item, structure, graph)
    while len(part.inside) > MOST_INSIDE:
        firsts = [item if isinstance(item, int) else _nodes([item])[0] for item in part.inside]
        count = -(-len(firsts) // (MOST_INSIDE * 2 // 3))
        step, slack = len(firsts) / count, len(firsts) // count // 4
        places = [0]
        for k in range(1, count):
            near = range(round(k * step) - slack, round(k * step) + slack + 1)
            places.append(
                min(near, key=lambda i: (structure.passing[firsts[i]], abs(i - k * step)))
            )
        ends = [*places[1:], len(firsts)]
        stretches = [part.inside[a:b] for a, b in zip(places, ends, strict=True)]
        part.inside = [_Part(_label(items, structure), items) for items in stretches]


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
        **_known(shown, facts),
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
            "times": [box.times for box in folding.boxes],
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


def _known(graph: Graph, facts: Facts) -> dict[str, Data]:
    """Return what the run knows about nodes: numbers in columns, words by node index."""
    keys, texts, precisions = Interned[str](), Interned[str](), Interned[str]()
    words: dict[str, Data] = {}
    for i, name in enumerate(graph.nodes):
        if name in facts and (told := tuple(_words(facts[name]))):
            words[str(i)] = [place for k, text in told for place in (keys.of(k), texts.of(text))]

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


def _words(known: NodeFacts) -> Iterator[tuple[str, str]]:
    """Yield the words on a node, except the suspicion for which it is kept."""
    cause = None if known.kept is None else known.kept.guard
    told = next((guard for guard in known.guards if guard.kind == cause), None)
    yield from planned_words(replace(known, guards=[g for g in known.guards if g is not told]))


def _precision(graph: Graph, facts: Facts, node: int) -> str:
    known = facts.get(graph.nodes[node])
    if known is not None and known.int8:
        return "INT8"
    read, given = (
        [graph.types[t] for t in ts[node] if graph.types[t]] for ts in (graph.reads, graph.gives)
    )
    return type_words(graph.ops[node], read, given)


def _engine(graph: Graph, proof: PrecisionProof | None) -> dict[str, Data]:
    """Return the engine's layers with nodes of the graph, and each node's precision.

    A nameless layer is named after its nodes, joined by " + ", as TensorRT names most.
    """
    if proof is None:
        return {"engine": [], "layers": []}
    places = {name: i for i, name in enumerate(graph.nodes)}
    found = {node.node: node.precision for node in proof.nodes}
    layers: list[Data] = []
    for layer in proof.layers:
        nodes = [places[name] for name in layer.nodes if name in places]
        name = "" if layer.name == " + ".join(graph.nodes[i] for i in nodes) else layer.name
        if nodes:
            told = {"name": name, "type": layer.type, "ms": drawn(layer.milliseconds)}
            layers.append({**told, "nodes": nodes})
    return {"engine": sparse([found.get(name) for name in graph.nodes]), "layers": layers}


def _sources(graph: Graph, evidence: RunEvidence) -> dict[str, Data]:
    """Return where nodes come from; only the section of causes has the calls leading there."""
    lines = Interned[tuple[str | int, ...]]()
    line: list[Data] = []
    for source in evidence.sources:
        frame = None if source.own is None else evidence.frames[source.own]
        own = () if frame is None else (frame.file, frame.line, frame.function, frame.text)
        line.append(lines.of((source.kind, *own)))
    return {
        "source": sparse(graph.sources),
        "modules": front_coded(source.module for source in evidence.sources),
        "line": line,
        "lines": lines.all,
    }
