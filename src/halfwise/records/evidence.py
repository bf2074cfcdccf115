"""What shows a run beyond its numbers: the graph, where its nodes come from, and samples."""

from collections.abc import Mapping
from typing import Literal

from halfwise.records.record import NodeName, Record, TensorName


class Graph(Record):
    """The structure of a model, in columns: those of nodes and those of tensors have one length.

    Attributes:
        nodes: Names, in graph order; those in a body after the node that has it.
        ops: Operator type of each node, with its domain before it unless that is ONNX's.
        scopes: The module of each, from the outside in, joined by "/": an index into
            `scope_names`. Of a node that tells none, that of what makes the first thing it reads.
        scope_names: Every scope that occurs; "" is the model itself.
        reads: The tensors that each reads, as indices; those left out are not there.
        gives: The tensors that each computes.
        bodies: Of what lies in a body of If, Loop or Scan, the index of that node; by node.
        added: Those that the user's model lacks: Casts, and what repairs and rewriting made.
        sources: The place of each in `RunEvidence.sources`; None where nothing is known.
        tensors: Names.
        types: Element type of each tensor, as onnx-ir names it ("FLOAT16"); "" where unknown.
        shapes: Each shape, an index into `shape_names`.
        shape_names: Every shape that occurs, as `wording.dimensions` writes them: "1×3×height×?".
        constants: Those that no node computes and nobody gives.
        inputs: Those that the user gives.
        outputs: Those that the model gives back.
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


class Frame(Record):
    """One call on the way to an operator, as the exporter wrote it.

    Attributes:
        file: Path, on the machine of the export.
        line: Line number, from 1.
        function: The function that holds it.
        text: What stands there; "" where the exporter had no text.
    """

    file: str
    line: int
    function: str
    text: str = ""


class Source(Record):
    """Where in the framework's code a node comes from.

    Attributes:
        module: Its module as attributes lead to it, such as "blocks.0.attn"; "" for the model.
        kind: Class of that module, with its package; "" where nobody told.
        frames: The calls that lead to it, outermost first, as indices into `RunEvidence.frames`.
        own: Which of these indices is the innermost outside the framework: the line of whoever
            wrote the model. None where no call is known.
    """

    module: str
    kind: str = ""
    frames: tuple[int, ...] = ()
    own: int | None = None


class Preview(Record):
    """What one input of a sample looks like.

    Attributes:
        sample: Identifier of the sample.
        input: Name of the input.
        shape: Its shape on that sample.
        kind: What it is taken for, by its shape and values.
        why: What of the judged samples it is: a "worst" one, or a "typical" one of median error.
        png: The image, at most 128 pixels each way, as PNG in base64; "" for a wave.
        low: The smallest value in each of at most 128 stretches of a wave; none of an image.
        high: The largest.
    """

    sample: str
    input: str
    shape: tuple[int, ...]
    kind: Literal["image", "wave"]
    why: Literal["worst", "typical"]
    png: str = ""
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()


class RunEvidence(Record):
    """What a page shows of a run that only model and data can tell: `evidence.json`.

    Attributes:
        graph: The graph: of the mixed model where the run delivers one, else of the user's. None
            where it has more than `halfwise.evidence.MOST_NODES` nodes.
        frames: Every call that `sources` name.
        sources: Where nodes come from, each place once.
        replaced: The sources of nodes of the user's model that `graph` has no longer, by name.
        previews: Samples; none where they are neither images nor waves, or were not wanted.
    """

    graph: Graph | None
    frames: tuple[Frame, ...] = ()
    sources: tuple[Source, ...] = ()
    replaced: Mapping[NodeName, int] = {}
    previews: tuple[Preview, ...] = ()

    def source_of(self, node: NodeName) -> Source | None:
        """Return where a node comes from, whether it is still there or not; None if unknown."""
        index = self.replaced.get(node)
        if index is None and self.graph is not None and node in self.graph.nodes:
            index = self.graph.sources[self.graph.nodes.index(node)]
        return None if index is None else self.sources[index]
