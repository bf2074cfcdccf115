"""The graph: its nodes with all known facts, and how they fold into boxes."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from halfwise.page.columns import Interned, drawn, front_coded, sparse
from halfwise.page.data import Data
from halfwise.page.folding import fold
from halfwise.page.section import Section
from halfwise.page.stored import Stored
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
