"""A calibration cache beside what a model's tensors reach on samples."""

from typing import Literal

from halfwise.records.record import Record, TensorName

RangeFault = Literal["saturated", "outlier", "wide"]
"""What is wrong with a range of 8 bits. "saturated": half of the squared error or more is of values
beyond its ends; "outlier": all but a thousandth of the values, or all but one, stay in a quarter of
it; "wide": all do."""


class CalibratedRange(Record):
    """One tensor of a cache that the model has.

    Attributes:
        tensor: Its name.
        scale: What the cache has for it; 0, infinities and NaN are no scale.
        limit: The end of its range, 127 times that.
        reach: Largest finite magnitude on the samples.
        usual: The one that all but a thousandth of the values, or all but one, stay below.
        beyond: Share of the values beyond the range by over half a step; 1 where it is unset.
        fault: What is wrong with it; "unset" where the cache has no scale and values are not all
            zero, None where nothing is.
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
        calibrator: Which of its calibrators.
        samples: How many samples were run.
        tensors: Tensors that both have, in graph order.
        unknown: Names that the model does not have, but for those that TensorRT makes up.
        uncalibrated: Float tensors of the model that the cache lacks; constants left out.
    """

    source: str
    tensorrt: str
    calibrator: str
    samples: int
    tensors: tuple[CalibratedRange, ...]
    unknown: tuple[str, ...] = ()
    uncalibrated: tuple[TensorName, ...] = ()
