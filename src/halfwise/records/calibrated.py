"""A calibration cache, compared with what a model's tensors reach on samples."""

from typing import Literal

from halfwise.records.record import Record, TensorName

RangeFault = Literal["saturated", "outlier", "wide"]
"""What is wrong with an 8-bit range. "saturated": values beyond its ends cause half of the squared
error or more; "outlier": all but a thousandth of the values, or all but one, stay in a quarter of
it; "wide": all values do."""


class CalibratedRange(Record):
    """One tensor of a cache that the model has too.

    Attributes:
        tensor: Its name.
        scale: Its scale in the cache; 0, infinities and NaN are not scales.
        limit: The end of its range: 127 times the scale.
        reach: Largest finite magnitude on the samples.
        usual: Magnitude that all but a thousandth of the values, or all but one, stay below.
        beyond: Share of values beyond the range by more than half a step; 1 if unset.
        fault: What is wrong with it; "unset" if the cache has no scale and values are not all zero,
            None if nothing is wrong.
    """

    tensor: TensorName
    scale: float
    limit: float
    reach: float
    usual: float
    beyond: float
    fault: RangeFault | Literal["unset"] | None


class CalibrationCheck(Record):
    """A cache, compared with data.

    Attributes:
        source: The file.
        tensorrt: Version of TensorRT that wrote it.
        calibrator: The calibrator that wrote it.
        samples: Number of samples run.
        tensors: Tensors that both have, in graph order.
        unknown: Names that the model lacks, except names that TensorRT generates.
        uncalibrated: Float tensors of the model that the cache lacks, excluding constants.
    """

    source: str
    tensorrt: str
    calibrator: str
    samples: int
    tensors: tuple[CalibratedRange, ...]
    unknown: tuple[str, ...] = ()
    uncalibrated: tuple[TensorName, ...] = ()
