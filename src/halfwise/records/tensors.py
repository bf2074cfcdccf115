"""What tensors of the FP32 reference look like, and how those of two computations differ."""

from typing import Literal

from halfwise.records.calibrated import CalibrationCheck
from halfwise.records.planned import AdjustedConstant
from halfwise.records.record import Facts, GuardKind, NodeName, Record, TensorName


class Histogram(Record):
    """Counts of log2 |x|: `counts[i]` values in [2^(first+i), 2^(first+i+1)); zeros apart."""

    first: int
    counts: tuple[int, ...]
    zeros: int


class Detail(Record):
    """Statistics of one tensor that need its elements; taken on at most 32 samples.

    Attributes:
        smallest_nonzero: Smallest non-zero magnitude, inf where all elements are zero.
        overflow: Fraction of elements that round to infinity in the low format.
        flush: Fraction of non-zero elements that round to zero.
        subnormal: Fraction of elements that become subnormal, zero not counted.
        histogram: log2 histogram of the magnitudes of finite elements.
        samples: Number of samples these figures come from.
    """

    smallest_nonzero: float
    overflow: float
    flush: float
    subnormal: float
    histogram: Histogram
    samples: int


class Observation(Record):
    """What one tensor of the FP32 reference looked like over all samples.

    Attributes:
        tensor: Name of the tensor.
        producer: Node that computes it; None for a graph input.
        absmax: Largest finite magnitude over all samples (0 for an empty tensor).
        nonfinite: Number of NaN and infinite elements over all samples.
        worst_sample: Index, among the observed samples, of the one that holds `absmax`.
        detail: Element statistics, None where they were not taken.
        op: Operator type of the producer; empty for a graph input, and in old records.
    """

    tensor: TensorName
    producer: NodeName | None
    absmax: float
    nonfinite: int
    worst_sample: int
    detail: Detail | None = None
    op: str = ""


class InnerObservation(Record):
    """A number about the inside of an op, which no single tensor shows.

    Attributes:
        node: The node.
        op: Its operator type.
        kind: What `value` is. "square": the largest x² (or Σx²) inside Pow, ReduceL2 and
            ReduceSumSquare. "sum": the largest Σ|x| that a running sum can reach in ReduceSum,
            ReduceMean, GlobalAveragePool, MatMul, Gemm, Conv, Softmax. "cancellation": median over
            elements of max(|a|, |b|) / |a ± b| in Add and Sub, inf where results are mostly zero
            (those of a constant operand do not count). "margin": for ArgMax, ArgMin and TopK, the
            smallest gap between the last chosen and the first rejected score divided by the low
            format's spacing at that score; for NonMaxSuppression that between any two scores that
            compete. "roundoff": behind what logarithms, denominators and negative powers read, the
            largest relative error of a result where everything is rounded to the low format's
            precision.
        value: The number.
        worst_sample: Index of the sample where it occurs.
    """

    node: NodeName
    op: str
    kind: Literal["square", "sum", "cancellation", "margin", "roundoff"]
    value: float
    worst_sample: int


class Observations(Record):
    """What the FP32 reference looked like on the observed samples.

    Attributes:
        tensors: One record per float tensor that a node computes or the graph takes as input, in
            graph order.
        inner: Numbers about the inside of ops, in graph order.
        samples: Identifiers of the observed samples; `worst_sample` indexes them.
        constants: Those beyond the low format's range, and single ones that it makes zero, where
            something that may be low reads them.
        summed: Number of samples that "sum" in `inner` is of; None in records before this field.
        calibration: A calibration cache beside them; None where none was given.
        mended: Guards on the model as it was given that repairs of the plan answer.
        before: Their tensors, as that model has them; all else here is of the repaired one.
    """

    tensors: tuple[Observation, ...]
    inner: tuple[InnerObservation, ...]
    samples: tuple[str, ...]
    constants: tuple[AdjustedConstant, ...] = ()
    summed: int | None = None
    calibration: CalibrationCheck | None = None
    mended: tuple["Guard", ...] = ()
    before: tuple[Observation, ...] = ()


_OF_A_TENSOR: frozenset[GuardKind] = frozenset(("overflow", "square", "headroom"))
"""Guards on the range of a tensor: all nodes of one but its producer read the tensor."""


class Guard(Facts):
    """A suspicion with numbers: something in the low format that may go wrong. The output decides.

    Attributes:
        kind: Class of the suspicion.
        node: The node where it arises.
        tensor: The tensor or constant concerned, None where it lies inside an op.
        message: One sentence with the numbers, for readers of the record: the report makes it of
            the facts. "" before a run is put on record.
        names: Names that it tells: "low" format; "sample" with the largest number; "op" and what
            is "inside" a body; the tensor that is "squared"; the "reader" that it is about; what
            values that are too small "becomes" (zero, subnormal). None in records before this
            field.
        numbers: Its numbers, by what they are: the "value" that was seen and the "limit" of the low
            format that it passes or is close to; "share" of all elements, of a constant's non-zero
            ones or of a stream; how many "elements" or additions it concerns, of "size"; how many
            "samples" statistics are of, where not of all; the "error" of what is stored or summed
            up, and of what is "read"; the share of a constant that is "zeroed"; the "smallest" sum
            that rests on an eps, and what one that vanishes is "stored" as.
        fix: The usual repair, empty where none is known.
        nodes: Every node that would have to stay in FP32 if the suspicion is true: the producer
            and the consumers of the tensor.
        severity: How far beyond the limit, ≥ 1 for certain loss, below 1 for possible loss.
    """

    kind: GuardKind
    node: NodeName
    tensor: TensorName | None
    message: str = ""
    fix: str
    nodes: tuple[NodeName, ...]
    severity: float

    def is_read_by(self, node: NodeName) -> bool:
        """Return whether it is about the range of a tensor that `node` reads and did not make."""
        about = self.kind in _OF_A_TENSOR and self.tensor is not None
        return about and node != self.node and node in self.nodes


class Growth(Record):
    """Relative RMS error of one tensor with little or nothing in FP32, in graph order.

    Attributes:
        node: The node that produces the tensor.
        depth: Longest path from an input, in nodes.
        error: RMS(error) / RMS(reference) on one sample; inf where non-finite values appear.
        inherited: The largest `error` among the node's inputs.
    """

    node: NodeName
    depth: int
    error: float
    inherited: float


TensorStatus = Literal[
    "good", "born", "amplified", "inherited", "constant", "fused", "missing", "refused", "skipped"
]
SideName = Literal["a", "b"]


class NodeComparison(Record):
    """One node: how far its output differs between the two, and where that comes from.

    Attributes:
        node: The node.
        op: Its operator.
        tensor: Its output with the largest error.
        status: "good": within the tolerance; "born": the error arises here, since the node's own
            function of what it was given is another; "amplified": its inputs are within the
            tolerance, and it is not, although its own function of them is the same; "inherited": an
            input is beyond the tolerance already;
            "constant": folded away, since no input of the model reaches it; "fused": the engine has
            no such tensor, as far as it tells; "missing": a model or file has no tensor of that
            name; "refused": no engine could be built that gives it out; "skipped": not looked at.
        error: Relative RMS error over all samples, B against A; None where it was not compared.
        inherited: The largest error among the tensors that it reads.
        born: Relative RMS error against the node's own function in FP32, applied to what it was
            given; of the side that is further off. None where that cannot be told.
        side: The side on which the error is born.
        factor: Where "amplified", how many times the largest error among the tensors that it reads
            its own is; None where those have none, so that it amplifies roundings alone.
        region: Where "born" or "amplified", the nodes among which it arises: the node itself where
            all that it reads is known, else those back to the nearest tensors that are.
        worst_sample: Identifier of the sample with the largest error; None where not compared.
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
    """Two computations of one model, tensor by tensor.

    Attributes:
        a: What the first is.
        b: What the second is.
        samples: Identifiers of the samples.
        tolerance: Relative RMS error up to which a tensor is good.
        nodes: Every node that was compared, or whose tensor one of the two lacks, in graph order.
        first: Nodes among which the first divergence lies, in graph order: the first error that is
            born and leads to an output; one node where its inputs are known. Empty where there is
            none.
        path: Nodes on the way of the error from there to the worst output.
        amplified: Nodes on the way of an error that leads to an output and leaves the tolerance
            ahead of `first`, where no error is born: from the node that amplifies it as far as
            `first`, or the worst output. Empty where there is none.
        outputs: Relative RMS error of each output of the model that both have.
        builds: Engines that were built for it.
        notes: What else to know, such as whether marking tensors changed an engine's outputs.
    """

    a: str
    b: str
    samples: tuple[str, ...]
    tolerance: float
    nodes: tuple[NodeComparison, ...]
    first: tuple[NodeName, ...]
    path: tuple[NodeName, ...]
    outputs: dict[TensorName, float]
    builds: int = 0
    notes: tuple[str, ...] = ()
    amplified: tuple[NodeName, ...] = ()

    @property
    def different(self) -> bool:
        """Whether an output is beyond the tolerance, or an error is born anywhere."""
        return self.differs or bool(self.first)

    @property
    def differs(self) -> bool:
        """Whether an output is beyond the tolerance."""
        return any(error > self.tolerance for error in self.outputs.values())
