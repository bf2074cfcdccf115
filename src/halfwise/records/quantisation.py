"""What 8-bit ranges lose: those of a calibration cache, and of Q/DQ pairs in a model."""

from typing import Literal

from halfwise.records.record import NodeName, Record, TensorName

RangeFault = Literal["saturated", "outlier", "wide"]
"""What is wrong with an 8-bit range. "saturated": values beyond its ends cause half of the squared
error or more; "outlier": all but a thousandth of the values, or all but one, stay in a quarter of
it; "wide": all values do."""


PairFault = Literal[RangeFault, "scale", "channels", "rounding"]
"""Why a pair loses too much. A fault of its range, if a better scale was shown to reduce the error
of the outputs or could not be tried; otherwise "scale": one of its scales is not a positive number;
"channels": weights with one scale for channels that differ by 100 times; "rounding": none of these.
"""
Right = Literal["original", "framework", "floats"]
"""The outputs that a quantised model is judged against: those of the original, of the framework, or
("floats") of the model without its pairs, where weights stored as integers remain."""


class PairLoss(Record):
    """A pair that must be left out for correct outputs, or several alike on one tensor.

    Errors are errors of the outputs relative to what is allowed; with a metric, 1 plus the drop
    beyond its allowance.

    Attributes:
        tensor: The quantised tensor; for stored integers, the dequantised one.
        node: Its DequantizeLinear, the first of several.
        readers: Nodes that read it.
        fault: What is wrong with the pair.
        alone: Error if only this pair quantises, on the worst sample; with a metric, relative to
            the default tolerance.
        restored: Error if all pairs of the finding but this one are left out: what it costs.
        beyond: Share of values more than half a step beyond the ends of its type; None for weights.
        clipped: Share of its squared error from those values, from a histogram; None for weights.
        limit: The end of its range that is further from zero; 0 for weights with several scales.
        ends: Both ends, the lower first; None for weights with several scales.
        bits: Bits per value.
        reach: Largest observed magnitude, without any pair before it.
        usual: Magnitude that all but a thousandth of the values, or all but one, stay below.
        rescale: Factor on its scale that helps: for an outlier, the one that makes `usual` the end
            of the range, otherwise the one that minimises its squared error.
        rescaled: `restored` with that scale; None without such a factor.
    """

    tensor: TensorName
    node: NodeName
    readers: tuple[NodeName, ...]
    fault: PairFault
    alone: float
    restored: float
    beyond: float | None = None
    clipped: float | None = None
    limit: float = 0.0
    ends: tuple[float, float] | None = None
    bits: int = 8
    reach: float = 0.0
    usual: float = 0.0
    rescale: float | None = None
    rescaled: float | None = None


class QuantisationLoss(Record):
    """Effect of a quantised model's pairs on its outputs.

    Attributes:
        pairs: Number of pairs that can be left out; pairs alike on one tensor count once.
        samples: Number of samples examined, including the worst.
        error: Error of the model as it is; see `PairLoss`.
        without_all: Error with all pairs left out.
        explained: Whether the outputs are acceptable with all pairs left out.
        needed: Number of pairs found that must be left out for that; None if they are too many to
            be a cause, or leaving out all is not enough.
        gravest: Tensors of the pairs that do most harm alone, worst first.
        without: Error without the needed pairs, or without the worst; None if leaving out all is
            not enough.
        causes: The needed pairs, worst first, at most 8; if `needed` is None, the faulty pairs
            that make up most of the error, which is `without` without them.
        foreign: Stored integers that are not rounded floats of the original, if even leaving out
            all pairs is not enough.
        right: What the outputs are judged against.
        cut: Whether the budget ended the search for pairs: `gravest` is then what was known, and
            `needed`, `without` and `causes` are unknown.
    """

    pairs: int
    samples: int
    error: float
    without_all: float
    explained: bool
    needed: int | None = None
    gravest: tuple[TensorName, ...] = ()
    without: float | None = None
    causes: tuple[PairLoss, ...] = ()
    foreign: tuple[TensorName, ...] = ()
    right: Right | None = None
    cut: bool = False
