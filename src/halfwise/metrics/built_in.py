"""Built-in metrics before anything runs: which way each moves, how far it may fall, its labels.

Every metric of halfwise is such that higher is better, so one that is an error is its negative.

Default drops: a metric that moves continuously falls with any rounding, so a drop of 0 would ask
for the FP32 model itself. No default can be derived; each is a convention of its field:

- `top1`, `mask-iou`: 0.01. MLPerf Inference demands 99 % of the FP32 model's accuracy, of DICE for
  segmentation (its rules, "Benchmarks"); Wu et al., "Integer Quantization for Deep Learning
  Inference" (2020), call a model quantised well within 1 % of FP32. One point of a value up to 1
  is just that where FP32's own value is 1, as it is without labels.
- `psnr` without labels: 60 dB below the cap of 100, so 40 dB against FP32's own image. Coded images
  of 8 bits have 30 to 50 dB, and 40 is where differences are commonly taken to be invisible.
- `psnr` with labels: 0.1 dB. Super-resolution networks are ranked by tenths of a dB; less is no
  difference that their papers claim.
- `epe`: 0.1 pixel on average, a fifth of the smallest error that the Middlebury flow benchmark
  counts as one (R0.5: Baker et al., "A Database and Evaluation Methodology for Optical Flow",
  2011). By the triangle inequality a flow that is that near to FP32's is at most that much further
  from the truth.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from halfwise.errors import CaseError
from halfwise.metrics.task import BUILT_IN, PSNR_CAP_DB

_ERRORS = ("epe",)


def rises(name: str) -> bool:
    """Return whether what a metric's field calls by that name rises as outputs get worse."""
    return name in _ERRORS


def usual(name: str, value: float) -> float:
    """Return a metric's value as its field writes it: of one that `rises`, minus the value.

    Zero is 0.0, never -0.0, NaN stays NaN, and infinities change sign with all others.
    """
    return (0.0 - value if rises(name) else value) + 0.0


class DefaultDrop(NamedTuple):
    """How far a metric may fall unless the user says, and why just that.

    Attributes:
        drop: In the metric's own unit, > 0.
        source: Where it comes from, in a few words.
    """

    drop: float
    source: str


_POINT = DefaultDrop(0.01, "MLPerf's 99 % of FP32")


_PIXELS = DefaultDrop(0.1, "a fifth of Middlebury's R0.5")


_NEAR_FP32: dict[str, DefaultDrop] = {
    "top1": _POINT,
    "mask-iou": _POINT,
    "psnr": DefaultDrop(PSNR_CAP_DB - 40.0, "40 dB against FP32's own output, taken as invisible"),
    "epe": _PIXELS,
}


_LABELLED: dict[str, DefaultDrop] = {
    **_NEAR_FP32,
    "psnr": DefaultDrop(0.1, "less is no difference in the literature"),
}


def default_drop(metric: str, *, labelled: bool) -> DefaultDrop | None:
    """Return the drop of a built-in metric; None for any other, whose scale is the user's.

    Args:
        metric: Its name.
        labelled: Whether it compares with labels; without, FP32's own outputs are the truth.
    """
    return (_LABELLED if labelled else _NEAR_FP32).get(metric)


def check_labels(metric: str | None, labels: Sequence[Any]) -> None:
    """Check that labels are numbers where the metric is built in; shapes show with the outputs.

    Args:
        metric: Its name; any other than a built-in one takes what it likes.
        labels: One per sample.

    Raises:
        CaseError: a label is text or nothing; a class is no integer from 0 on, or a mask holds NaN.
    """
    if metric not in BUILT_IN:
        return
    for index, label in enumerate(labels):
        for value in label.values() if isinstance(label, Mapping) else (label,):
            if isinstance(value, str) or value is None:
                raise CaseError(
                    f"The metric {metric} takes numbers as labels, and label {index} is {value!r}.",
                    "For top1, give the number of the class, counted from 0; for other metrics, "
                    "arrays of the output's shape.",
                )
            _check_values(metric, np.asarray(value), index)


def _check_values(metric: str, values: NDArray[Any], index: int) -> None:
    """Check what a label holds; unknown pixels of an image or a flow may be NaN."""
    if values.dtype.kind not in "biuf":
        return
    if metric == "top1":
        wrong = values[~((values >= 0) & (values == np.floor(values)))]
    elif metric == "mask-iou":
        wrong = values[np.isnan(values)]
    else:
        return
    if wrong.size:
        raise CaseError(
            f"Label {index} holds {wrong[0]}, and {metric} takes "
            f"{'classes, counted from 0' if metric == 'top1' else 'masks of numbers'}.",
            "Correct it, or leave the sample out.",
        )
