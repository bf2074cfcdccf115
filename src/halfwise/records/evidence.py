"""What illustrates a run beyond its numbers: the graph, the sources of its nodes, and samples."""

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Literal, Self

from pydantic import model_validator

from halfwise.records.record import NodeName, Record, TensorName


class Graph(Record):
    """Structure of a model as columns, one set for nodes and one for tensors.

    Attributes:
        nodes: Names, in graph order; nodes of a body follow the node that has it.
        ops: Operator type of each node, prefixed with its domain unless that is ONNX's.
        scopes: Module of each node as an index into `scope_names`, from the outside in, joined by
            "/". A node without one has that of the producer of its first input.
        scope_names: All scopes that occur; "" is the model itself.
        reads: Tensors that each node reads, as indices; omitted inputs are left out.
        gives: Tensors that each node computes, as indices.
        bodies: For nodes in a body of If, Loop or Scan, the index of the node with the body.
        added: Nodes that the user's model lacks: Casts, and results of repairs and rewriting.
        sources: Index of each node into `RunEvidence.sources`; None if unknown.
        tensors: Names of the tensors.
        types: Element type of each tensor, as onnx-ir names it ("FLOAT16"); "" where unknown.
        shapes: Shape of each tensor, as an index into `shape_names`.
        shape_names: All shapes that occur, as `wording.dimensions` writes them: "1×3×height×?".
        constants: Tensors that are neither computed nor given.
        inputs: Tensors that the user gives.
        outputs: Tensors that the model returns.
    """

    nodes: tuple[NodeName, ...]
    ops: tuple[str, ...]
    scopes: tuple[int, ...]
    scope_names: tuple[str, ...]
    reads: tuple[tuple[int, ...], ...]
    gives: tuple[tuple[int, ...], ...]
    bodies: Mapping[int, int] = {}
    added: tuple[int, ...] = ()
    sources: tuple[int | None, ...]
    tensors: tuple[TensorName, ...]
    types: tuple[str, ...]
    shapes: tuple[int, ...]
    shape_names: tuple[str, ...]
    constants: tuple[int, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    @model_validator(mode="after")
    def _fits(self) -> Self:
        """Raise ValueError where columns differ in length, or an index is of nothing."""
        nodes, tensors = len(self.nodes), len(self.tensors)
        of_nodes = (self.ops, self.scopes, self.reads, self.gives, self.sources)
        if {len(c) for c in of_nodes} != {nodes} or {len(self.types), len(self.shapes)} != {
            tensors
        }:
            raise ValueError("columns have different lengths")
        ends = (self.constants, self.inputs, self.outputs)
        demand_indices(chain(*self.reads, *self.gives, *ends), tensors)
        demand_indices(chain(self.added, self.bodies), nodes)
        demand_indices(self.scopes, len(self.scope_names))
        demand_indices(self.shapes, len(self.shape_names))
        if not all(0 <= owner < node for node, owner in self.bodies.items()):
            raise ValueError("a node of a body comes before the node that has the body")
        return self


def demand_indices(found: Iterable[int | None], size: int) -> None:
    """Raise ValueError where an index is not below `size`, or negative; None is no index."""
    if not all(0 <= index < size for index in found if index is not None):
        raise ValueError("an index is of nothing")


class Frame(Record):
    """One call on the way to an operator, as the exporter wrote it.

    Attributes:
        file: Path on the machine of the export.
        line: Line number, from 1.
        function: The function with that line.
        text: The source line; "" if the exporter stored none.
    """

    file: str
    line: int
    function: str
    text: str = ""


class Source(Record):
    """The origin of a node in the framework's code.

    Attributes:
        module: Attribute path of its module, such as "blocks.0.attn"; "" for the model.
        kind: Class of that module, with its package; "" if unknown.
        frames: Calls that lead to it, outermost first, as indices into `RunEvidence.frames`.
        own: The innermost of these indices outside the framework: the line in the author's code.
            None if no call is known.
    """

    module: str
    kind: str = ""
    frames: tuple[int, ...] = ()
    own: int | None = None


class Preview(Record):
    """A preview of one input of a sample, an image.

    Attributes:
        sample: Identifier of the sample.
        input: Name of the input.
        shape: Its shape on that sample.
        why: Whether it is among the "worst" judged samples or a "typical" one of median error.
        png: The image, at most 128 pixels per side, as PNG in base64.
    """

    sample: str
    input: str
    shape: tuple[int, ...]
    why: Literal["worst", "typical"]
    png: str


class RunEvidence(Record):
    """What a page shows of a run that only model and data provide: `evidence.json`.

    Attributes:
        graph: Graph of the mixed model if the run delivers one, otherwise of the user's. None if it
            has more than `halfwise.evidence.MOST_NODES` nodes, or needs more than its `MOST_BYTES`.
        frames: All calls that `sources` refer to.
        sources: Origins of nodes, each once.
        replaced: Sources of nodes of the user's model that are no longer in `graph`, by name.
        previews: Sample previews; empty if samples are no images, or previews are off.
    """

    graph: Graph | None
    frames: tuple[Frame, ...] = ()
    sources: tuple[Source, ...] = ()
    replaced: Mapping[NodeName, int] = {}
    previews: tuple[Preview, ...] = ()

    @model_validator(mode="after")
    def _fits(self) -> Self:
        """Raise ValueError where an index is of nothing."""
        of_nodes = () if self.graph is None else self.graph.sources
        demand_indices((*of_nodes, *self.replaced.values()), len(self.sources))
        demand_indices(chain(*(source.frames for source in self.sources)), len(self.frames))
        if any(source.own not in (None, *source.frames) for source in self.sources):
            raise ValueError("a source's own call is none of its calls")
        return self

    def source_of(self, node: NodeName) -> Source | None:
        """Return the source of a node, even one that was replaced; None if unknown."""
        index = self.replaced.get(node)
        if index is None and self.graph is not None and node in self.graph.nodes:
            index = self.graph.sources[self.graph.nodes.index(node)]
        return None if index is None else self.sources[index]
