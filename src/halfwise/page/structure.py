"""What parts of a graph compute, regardless of names, to find those that are alike."""

from collections.abc import Hashable, Sequence
from itertools import accumulate

from halfwise.records import Graph


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
