"""How much a score rests on: one box, or ten thousand pixels."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from halfwise.errors import CaseError
from halfwise.metrics.boxes import detect
from halfwise.metrics.labelling import pixels_in, tokens_in
from halfwise.metrics.measures import Outputs
from halfwise.metrics.similarity import signals_in, vectors_in
from halfwise.metrics.targets import (
    by_target,
    class_output,
    class_rows,
    float_outputs,
    flow_outputs,
)
from halfwise.records import Recognised
from halfwise.records.judged import Unit

Labels = Sequence[Any] | None


class Support(NamedTuple):
    """What a score counts, and how many; fields as in `TaskScore`."""

    evidence: int | None = None
    unit: Unit | None = None


def support(metric: str, references: Sequence[Outputs], labels: Labels = None) -> Support:
    """Return what a built-in metric counts in the truth; empty for any other metric.

    Args:
        metric: Its name.
        references: FP32 outputs by sample, the truth if there are no labels.
        labels: One label per sample that fits, or None.
    """
    if metric not in _COUNTED:
        return Support()
    unit, count = _COUNTED[metric]
    try:
        return Support(count(references, labels), unit)
    except CaseError:
        return Support()  # outputs that the metric is not meant for


def support_of_boxes(one: Recognised, references: Sequence[Outputs]) -> Support:
    """Return how many boxes FP32 detects in recognised outputs of known layout."""
    if one.boxes is None:
        return Support()
    images = (found for of in references for found in detect(of, one.outputs, one.boxes))
    return Support(sum(map(len, images)), "boxes")


def _rows(references: Sequence[Outputs], _labels: Labels) -> int:
    names = [class_output(outputs) for outputs in references]
    return sum(len(class_rows(n, o[n])) for n, o in zip(names, references, strict=True))


Count = Callable[[Sequence[Outputs], Labels], int]


def _in_targets(
    counts: Callable[[NDArray[np.float64]], Any],
    outputs: Callable[[Outputs], Sequence[str]] = float_outputs,
) -> Count:
    """Return a function that counts what is true of the targets of some outputs."""

    def count(references: Sequence[Outputs], labels: Labels) -> int:
        targets = by_target(references, references, labels, outputs)
        return sum(int(counts(target).sum()) for _, target, _ in targets)

    return count


_COUNTED: dict[str, tuple[Unit, Count]] = {
    "top1": ("rows", _rows),
    "token-agreement": ("tokens", tokens_in),
    "mask-iou": ("mask pixels", _in_targets(lambda target: target > 0.5)),
    "mean-iou": ("pixels", lambda references, _: pixels_in(references)),
    "cosine": ("vectors", vectors_in),
    "si-sdr": ("signals", vectors_in),
    "snr": ("signals", signals_in),
    "psnr": ("values", _in_targets(np.isfinite)),
    "epe": ("pixels", _in_targets(lambda flow: np.isfinite(flow).all(axis=-3), flow_outputs)),
}
"""Unit and count of each metric that takes outputs directly."""
