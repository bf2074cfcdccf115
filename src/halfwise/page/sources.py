"""Where nodes come from, as data for scripts: each call and each place once."""

from halfwise.page.data import Data
from halfwise.records import NodeName, RunEvidence


class Places:
    """The places that a section names."""

    def __init__(self, evidence: RunEvidence | None) -> None:
        self._evidence = evidence
        self._frames: dict[int, int] = {}
        self._places: dict[int | str, int] = {}
        self._told: list[Data] = []
        graph = evidence.graph if evidence is not None else None
        self._sources: dict[NodeName, int | None] = {}
        self._scopes: dict[NodeName, str] = {}
        if graph is not None:
            self._sources = dict(zip(graph.nodes, graph.sources, strict=True))
            scopes = (graph.scope_names[i] for i in graph.scopes)
            self._scopes = dict(zip(graph.nodes, scopes, strict=True))
        if evidence is not None:
            self._sources.update(evidence.replaced)

    def of(self, node: NodeName | None) -> int | None:
        """Return the index of a node's place in `data`; None if unknown."""
        if node is None or self._evidence is None:
            return None
        index, scope = self._sources.get(node), self._scopes.get(node, "")
        key = scope if index is None else index
        if key == "":
            return None
        if key not in self._places:
            self._places[key] = len(self._told)
            self._told.append(self._place(index, scope))
        return self._places[key]

    def _place(self, index: int | None, scope: str) -> Data:
        if index is None:
            return {"module": scope, "kind": "", "frames": [], "own": None}
        assert self._evidence is not None
        source = self._evidence.sources[index]
        frames = [self._frames.setdefault(i, len(self._frames)) for i in source.frames]
        own = None if source.own is None else self._frames[source.own]
        return {"module": source.module, "kind": source.kind, "frames": frames, "own": own}

    @property
    def data(self) -> dict[str, Data]:
        """Calls as `frames`, and places as `places`, which refer to calls by index."""
        every = self._evidence.frames if self._evidence is not None else ()
        frames = [every[i].model_dump() for i in self._frames]
        return {"frames": frames, "places": self._told}
