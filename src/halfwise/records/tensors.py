"""Tensors as observed and compared, and the graph as the evidence of a run shows it."""

from collections.abc import Mapping
from math import isfinite
from typing import Literal

from halfwise.records.planned import AdjustedConstant, Blame
from halfwise.records.record import Facts, GuardKind, NodeName, Record, Step, TensorName


class Histogram(Record):
    """Histogram of log2 |x|: `counts[i]` values in [2^(first+i), 2^(first+i+1)); zeros apart."""

    first: int
    counts: tuple[int, ...]
    zeros: int

    @property
    def binades(self) -> dict[int, int]:
        """Number of elements by exponent, where there are any."""
        return {k: count for k, count in enumerate(self.counts, self.first) if count}


class Detail(Record):
    """Element statistics of one tensor, from at most 32 samples.

    They are those of 16,384 elements drawn from a larger tensor on each sample.

    Attributes:
        smallest_nonzero: Smallest non-zero magnitude; inf if all elements are zero.
        overflow: Fraction of elements that round to infinity in the low format.
        flush: Fraction of non-zero elements that round to zero.
        subnormal: Fraction of elements that become subnormal, not counting zeros.
        histogram: log2 histogram of the magnitudes of finite elements.
        samples: Number of samples behind these figures.
        integers: Whether those within the low format's range are three or more whole numbers, some
            of which it rounds.
    """

    smallest_nonzero: float
    overflow: float
    flush: float
    subnormal: float
    histogram: Histogram
    samples: int
    integers: bool = False


class Observation(Record):
    """Range of one tensor of the FP32 reference over all samples.

    Attributes:
        tensor: Name of the tensor.
        producer: The node that computes it; None for a graph input.
        absmax: Largest finite magnitude over all samples (0 for an empty tensor).
        nonfinite: Number of NaN and infinite elements over all samples.
        worst_sample: Index, among the observed samples, of the one with `absmax`.
        detail: Element statistics; None if not taken.
        op: Operator type of the producer; empty for a graph input.
    """

    tensor: TensorName
    producer: NodeName | None
    absmax: float
    nonfinite: int
    worst_sample: int
    detail: Detail | None = None
    op: str = ""


InnerKind = Literal["square", "sum", "cancellation", "margin", "score", "residual", "mean-square"]


class InnerObservation(Record):
    """A value inside an op that no single tensor shows.

    Attributes:
        node: The node.
        op: Its operator type.
        kind: What `value` is. "square": the largest Σx² inside ReduceL2, which follows from its
            output and is not recorded. "sum": the largest Σ|x| that a running sum can reach in
            ReduceSum, ReduceMean, GlobalAveragePool, MatMul, Gemm, Conv, Softmax. "score": the
            largest magnitude of scaled products of queries and keys in an attention of one node,
            masked ones included. "residual": that of the sum that a SkipLayerNormalization
            normalises.
            "mean-square": the largest mean of its squares. "cancellation": median over
            elements of max(|a|, |b|) / |a ± b| in Add, Sub and norms, which subtract a mean, and of
            Σ|a||b| / |Σab| in products before a logarithm; inf if most results are zero (zeros of a
            constant operand do not count). Of max(|a|, |b|)
            if the result is only an exponent of e, over the exponents that matter. "margin": for
            ArgMax, ArgMin and TopK, the smallest gap between the last chosen and the first rejected
            score divided by the low format's spacing at that score; for NonMaxSuppression, the gap
            between any two competing scores.
        value: The number.
        worst_sample: Index of the sample with that value.
    """

    node: NodeName
    op: str
    kind: InnerKind
    value: float
    worst_sample: int


_OF_A_TENSOR: frozenset[GuardKind] = frozenset(("overflow", "square", "headroom"))
"""Guards on the range of a tensor; all their nodes but the producer read it."""


class Guard(Facts):
    """A suspected loss of precision in the low format, with numbers. Only outputs prove it.

    Attributes:
        kind: Class of the suspicion.
        node: The node where it arises.
        tensor: The tensor or constant concerned; None if it is inside an op.
        message: One sentence with the numbers, which the report makes of the facts. "" until the
            run is recorded.
        names: Names in the sentence: the "low" format; the "sample" with the largest number; the
            "op" and what is "inside" a body; "what" is too large there (scores, sums, mean
            squares); the tensor that is "squared"; the "reader" concerned; what values that are too
            small "becomes" (zero, subnormal).
        numbers: Numbers by name: the observed "value" and the "limit" of the low format that it
            exceeds or approaches; "share" of all elements, of a constant's non-zero ones or of a
            stream; the number of "elements" or additions concerned, out of "size"; the number of
            "samples" behind the statistics, if not all; the "error" of what is stored or summed,
            and of what is "read"; the share of a constant that is "zeroed"; the "smallest" sum that
            relies on an eps, and the value as which a vanishing eps is "stored".
        fix: The usual repair; empty if none is known.
        nodes: All nodes that must stay in FP32 if the suspicion is true: the producer and the
            consumers of the tensor.
        severity: Distance beyond the limit: ≥ 1 for certain loss, < 1 for possible loss.
    """

    kind: GuardKind
    node: NodeName
    tensor: TensorName | None
    message: str = ""
    fix: str
    nodes: tuple[NodeName, ...]
    severity: float

    def is_read_by(self, node: NodeName) -> bool:
        """Return whether it concerns the range of a tensor that `node` reads but does not make."""
        about = self.kind in _OF_A_TENSOR and self.tensor is not None
        return about and node != self.node and node in self.nodes


class Observations(Record):
    """Statistics of the FP32 reference on the observed samples.

    Attributes:
        tensors: One record per float tensor that is computed or a graph input, in graph order.
        inner: Values inside ops, in graph order.
        samples: Identifiers of the observed samples; `worst_sample` indexes them.
        constants: Constants beyond the low format's range, and single values that it rounds to
            zero, if a node that may be low reads them.
        mended: Guards on the original model that the plan's repairs resolve.
        before: Their tensors in the original model; everything else here describes the repaired
            one.
    """

    tensors: tuple[Observation, ...]
    inner: tuple[InnerObservation, ...]
    samples: tuple[str, ...]
    constants: tuple[AdjustedConstant, ...] = ()
    mended: tuple[Guard, ...] = ()
    before: tuple[Observation, ...] = ()


class Growth(Record):
    """Relative RMS error of one tensor with little or nothing in FP32.

    Attributes:
        node: The node that produces the tensor.
        error: RMS(error) / RMS(reference) on one sample; inf if non-finite values appear.
        inherited: Largest `error` among the node's inputs.
    """

    node: NodeName
    error: float
    inherited: float


TensorStatus = Literal[
    "good", "born", "amplified", "inherited", "constant", "fused", "missing", "skipped"
]
SideName = Literal["a", "b"]


class NodeComparison(Record):
    """Error of one node's output between two computations, and its origin.

    Attributes:
        node: The node.
        op: Its operator type.
        tensor: The output with the largest error.
        status: "good": within tolerance; "born": the error arises here, as the node computes
            something else from the same inputs; "amplified": beyond tolerance although its inputs
            are within it and the node computes the same function; "inherited": an input is already
            beyond tolerance; "constant": folded, as no input of the model reaches it; "fused": the
            engine reports no such tensor; "missing": a model or file has no tensor of that name;
            "refused": no engine could be built with it as output; "skipped": not examined.
        error: Relative RMS error over all samples, B against A; None if not compared.
        inherited: Largest error among the tensors that it reads.
        born: Relative RMS error against the node's own function in FP32 on its actual inputs, for
            the side that is further off. None if unknown.
        side: The side on which the error arises.
        factor: If "amplified": its error divided by the largest error among the tensors that it
            reads; None if those have none, so that it amplifies rounding only.
        region: If "born" or "amplified": the nodes among which the error arises. This is the node
            itself if all its inputs are known, otherwise all nodes back to the nearest known
            tensors.
        worst_sample: Identifier of the sample with the largest error; None if not compared.
    """

    node: NodeName
    op: str
    tensor: TensorName
    status: TensorStatus
    error: float | None = None
    inherited: float = 0.0
    born: float | None = None
    side: SideName | None = None
    factor: float | None = None
    region: tuple[NodeName, ...] = ()
    worst_sample: str | None = None


class Comparison(Record):
    """Two computations of one model, compared tensor by tensor.

    Attributes:
        a: Name of the first.
        b: Name of the second.
        samples: Identifiers of the samples.
        tolerance: Largest relative RMS error of a good tensor.
        nodes: All nodes that were compared, or whose tensor is missing on one side, in graph order.
        first: The nodes of the first divergence, in graph order: the first error that arises and
            reaches an output. One node if its inputs are known; empty if there is no divergence.
        path: Nodes on the error's way from there to the worst output.
        amplified: Nodes on the way of an error that reaches an output and exceeds the tolerance
            before `first`, although none arises there: from the node that amplifies it to `first`
            or the worst output. Empty if there is none.
        outputs: Relative RMS error of each output that both have.
        notes: Further remarks, such as that samples fail.
        excess: Largest error of the outputs divided by what `fix` allows by default; None if not
            measured: one is missing, or a side is an engine.
        beyond: Outputs with a larger error than that, also in a part that has a scale of its own.
        blame: Which parts of a quantised model its error comes from; None for others, and if the
            outputs are within what is allowed.
        next_step: What to do next.
    """

    a: str
    b: str
    samples: tuple[str, ...]
    tolerance: float
    nodes: tuple[NodeComparison, ...]
    first: tuple[NodeName, ...]
    path: tuple[NodeName, ...]
    outputs: dict[TensorName, float]
    notes: tuple[str, ...] = ()
    amplified: tuple[NodeName, ...] = ()
    excess: float | None = None
    beyond: tuple[TensorName, ...] = ()
    blame: Blame | None = None
    next_step: tuple[Step, ...] = ()

    @property
    def nothing_to_fix(self) -> bool:
        """Whether the outputs are within what `fix` allows, without an infinite error inside."""
        errors = (node.error for node in self.nodes if node.error is not None)
        return self.excess is not None and self.excess <= 1 and all(map(isfinite, errors))

    @property
    def different(self) -> bool:
        """Whether an output is beyond tolerance or an error arises anywhere."""
        return self.differs or bool(self.first)

    @property
    def differs(self) -> bool:
        """Whether an output is beyond tolerance, its own or what `fix` allows."""
        return bool(self.beyond) or any(e > self.tolerance for e in self.outputs.values())


class Graph(Record):
    """Structure of a model as columns, one set for nodes and one for tensors.

    Attributes:
        nodes: Names, in graph order; nodes of a body follow the node that has it.
        ops: Operator type of each node, prefixed with its domain unless that is ONNX's.
        scopes: Module of each node, from the outside in, joined by "/"; "" is the model itself. A
            node without one has that of the producer of its first input.
        reads: Tensors that each node reads, as indices; omitted inputs are left out.
        gives: Tensors that each node computes, as indices.
        bodies: For nodes in a body of If, Loop or Scan, the index of the node with the body.
        added: Nodes that the user's model lacks: Casts, and results of repairs and rewriting.
        sources: Index of each node into `RunEvidence.sources`; None if unknown.
        tensors: Names of the tensors.
        types: Element type of each tensor, as onnx-ir names it ("FLOAT16"); "" where unknown.
        shapes: Shape of each tensor, as `wording.dimensions` writes it: "1×3×height×?".
        constants: Tensors that are neither computed nor given.
        inputs: Tensors that the user gives.
        outputs: Tensors that the model returns.
    """

    nodes: tuple[NodeName, ...]
    ops: tuple[str, ...]
    scopes: tuple[str, ...]
    reads: tuple[tuple[int, ...], ...]
    gives: tuple[tuple[int, ...], ...]
    bodies: Mapping[int, int] = {}
    added: tuple[int, ...] = ()
    sources: tuple[int | None, ...]
    tensors: tuple[TensorName, ...]
    types: tuple[str, ...]
    shapes: tuple[str, ...]
    constants: tuple[int, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


class Source(Record):
    """The origin of a node in the framework's code.

    Attributes:
        module: Attribute path of its module, such as "blocks.0.attn"; "" for the model.
        kind: Class of that module, with its package; "" if unknown.
        file: Path, on the machine of the export, of the innermost call outside the framework: the
            author's code; "" if unknown.
        line: Line number there, from 1; 0 if unknown.
        function: The function with that line.
        text: The source line; "" if the exporter stored none.
    """

    module: str
    kind: str = ""
    file: str = ""
    line: int = 0
    function: str = ""
    text: str = ""


class RunEvidence(Record):
    """What a page shows of a run that only model and data provide: `evidence.json`.

    Attributes:
        graph: Graph of the mixed model if the run delivers one, otherwise of the user's. None if it
            has more nodes than `MOST_NODES` of `halfwise.page.finish`.
        sources: Origins of nodes, each once.
        replaced: Sources of nodes of the user's model that are no longer in `graph`, by name.
    """

    graph: Graph | None
    sources: tuple[Source, ...] = ()
    replaced: Mapping[NodeName, int] = {}
