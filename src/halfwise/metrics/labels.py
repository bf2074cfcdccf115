"""Labels that no built-in metric can be meant for, before anything runs."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfwise.errors import CaseError
from halfwise.metrics.task import BUILT_IN


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
