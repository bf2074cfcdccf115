"""Part of a model, for searches that are limited to some of its nodes."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import onnx_ir as ir

from halfwise.graph.model import Network
from halfwise.records import NodeName


@dataclass(frozen=True, eq=False)
class Part(Network):
    """A model of which only some nodes are searched.

    Attributes:
        names: Names of the nodes that `nodes` yields.
    """

    names: frozenset[NodeName] = frozenset()

    @staticmethod
    def of(model: ir.Model, names: Iterable[NodeName]) -> "Part":
        """Return a part of a model in normal form, or of a model that is being changed."""
        return Part(model, None, "", {}, names=frozenset(names))

    def nodes(self) -> Iterator[ir.Node]:
        """Yield these nodes of the main graph in topological order."""
        return (n for n in self.graph if n.name in self.names)
