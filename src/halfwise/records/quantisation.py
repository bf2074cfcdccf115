"""What quantisation loses, and by which pairs of QuantizeLinear and DequantizeLinear."""

from typing import Literal

from halfwise.records.calibrated import RangeFault
from halfwise.records.record import NodeName, Record, TensorName

PairFault = Literal[RangeFault, "scale", "channels", "rounding"]
"""What is wrong with a pair that loses too much: with its range, where a better scale was shown to
make the error of the outputs smaller, or could not be tried; or else

"scale": one of its scales is no positive number; "channels": weights with one scale whose channels
differ by 100 times; "rounding": none of these.
"""
Right = Literal["original", "framework", "floats"]
"""Whose outputs a quantised model is judged by: the original's, what the framework gave, or those
of the model without its pairs, in which weights that are stored as integers stay."""


class PairLoss(Record):
    """A pair that the outputs are wrong without leaving out, or several alike of one tensor.

    Errors are those of the outputs over what is allowed; with a metric, 1 plus what it falls beyond
    its allowance.

    Attributes:
        tensor: What is quantised; of stored integers, what they are dequantised to.
        node: Its DequantizeLinear, the first of several.
        readers: Who reads it.
        fault: What is wrong with it.
        alone: Error where this pair alone quantises, on the worst sample; with a metric, over the
            default tolerance.
        restored: Error where all pairs of the finding but this one are left out: what it costs.
        beyond: Share of the values that are beyond the ends of its type by over half a step; None
            of weights.
        clipped: Share of its own squared error that these make, from a histogram; None of weights.
        limit: The end of its range that is further from zero; 0 of weights with many scales.
        ends: Both ends, the lower first; None of weights with many scales, and of older records.
        bits: How many it has per value.
        reach: Largest magnitude that was seen, with no pair before it.
        usual: The one that all but a thousandth of the values, or all but one, stay below.
        rescale: Factor on its scale that helps: of an outlier, the one that makes `usual` the end
            of its range, else the one with which its own squared error is smallest.
        rescaled: As `restored`, with that scale; None where there is no such factor.
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
    """What the pairs of a quantised model do to its outputs.

    Attributes:
        pairs: How many there are that can be left out, those alike of one tensor as one.
        samples: How many samples were looked at, the worst among them.
        error: Error of the model as it is; see `PairLoss`.
        without_all: Error with all pairs left out.
        explained: Whether the outputs are acceptable then.
        needed: How many pairs have to be left out so that they are, as found; None where they are
            too many to be a cause, or leaving out all is not enough.
        gravest: The tensors of the pairs that do most harm alone, gravest first.
        without: Error with the needed ones left out, else with the gravest; None where leaving out
            all is not enough.
        causes: The needed ones, gravest first, at most 8; where `needed` is None, those with a
            fault that are most of the error, which is `without` without them.
        foreign: Tensors of stored integers that are no rounded floats of the original, where even
            leaving out all is not enough.
        right: What the outputs should be; None of older records.
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
