"""Where an error comes from that no guard explains."""

from halfwise.records.judged import Flip
from halfwise.records.record import NodeName, Record, TensorName


class Origin(Record):
    """Where most of an error arises, as a trial showed.

    Attributes:
        node: The node at which the error appears.
        kept: What was FP32 in that trial: the node, and the neighbours that it needed.
        error: Error of the outputs with `kept` in FP32 too, relative to what the search allows: the
            largest over the samples that `Followed.samples` counts.
        read: If `kept` holds producers of what the node reads, so that the node enlarges an error
            instead of making it: the relative RMS error of what it reads, on one sample.
        made: Then also that of its result.
    """

    node: NodeName
    kept: tuple[NodeName, ...]
    error: float
    read: float | None = None
    made: float | None = None


class Decided(Record):
    """Decisions that differ from the reference, and that cause most of an error.

    Attributes:
        flips: The decisions, and how many of their values differ from the reference.
        nodes: Compute nodes that lead to them, in graph order, themselves included.
        error: Error of the outputs relative to what is allowed, on the worst of `samples`; with a
            metric, relative to the default tolerance.
        left: The same with the reference's decisions and everything else as before.
        samples: Number of samples behind this: all that were searched.
        read: Largest relative RMS error of a float that the decisions read, on the samples with the
            largest errors; None if it is unknown.
    """

    flips: tuple[Flip, ...]
    nodes: tuple[NodeName, ...]
    error: float
    left: float
    samples: int
    read: float | None = None


class Channel(Record):
    """A channel of a tensor through which most of an error reaches the outputs, as a trial showed.

    Attributes:
        tensor: The tensor.
        axis: Its axis of channels, from 0.
        index: The channel, from 0.
        size: Number of channels.
        error: Relative RMS error of the channel, on the sample with the largest error.
        rest: That of all other channels.
        left: Error of the outputs with the reference's values in the channel alone, relative to
            what the search allows: the largest over the samples that `Followed.samples` counts.
        nodes: Compute nodes that lead to the tensor, in graph order, the one that makes it
            included.
    """

    tensor: TensorName
    axis: int
    index: int
    size: int
    error: float
    rest: float
    left: float
    nodes: tuple[NodeName, ...]


class Followed(Record):
    """Where an error comes from that no guard explains, as far as that was found.

    Attributes:
        kept: What was FP32 meanwhile: the kept nodes that guards or rules explain.
        error: Error of the outputs then, relative to what the search allows (with a metric,
            relative to the default tolerance), on the worst of the samples; inf with new NaN or
            infinities.
        tried: Nodes that were tried as the origin, largest relative error first.
        origin: The first of them that halves the error in FP32, on all samples (see
            `halfwise.fixing.following`); None if there is none.
        accumulates: Whether no single node causes most of the relative error at the outputs.
        samples: Number of samples behind these largest errors.
        out_of_time: Whether the time budget ended the trials.
        decided: Decisions that cause it; then no origin was sought.
        channel: Sought if there is no origin: a channel that carries most of the error.
    """

    kept: tuple[NodeName, ...]
    error: float
    tried: tuple[NodeName, ...]
    origin: Origin | None
    accumulates: bool
    samples: int = 1
    out_of_time: bool = False
    decided: Decided | None = None
    channel: Channel | None = None
