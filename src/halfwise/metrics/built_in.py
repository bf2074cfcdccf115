"""Built-in metrics: their direction, their default drop, and the kind of labels they take.

For every metric of halfwise, higher is better, so an error counts as its negative.

Default drops: a continuous metric falls with any rounding, so a drop of 0 would demand the FP32
model itself. No default can be derived; each is a convention of its field:

- `top1`, `token-agreement`, `mask-iou`, `mean-iou`, `detection-f1`, `map`: 0.01. MLPerf Inference
  demands 99 % of the FP32 model's accuracy: class accuracy, DICE for segmentation, COCO's mAP for
  detection, text quality for language models (its rules, "Benchmarks"); Wu et al., "Integer
  Quantization for Deep Learning Inference" (2020), call a model quantised well within 1 % of FP32.
  A drop of 0.01 is exactly 1 % if FP32's own value is 1, as it is without labels.
- `cosine`: 0.001, of the worst embedding. Published FP16 exports of embedding models accept it
  (upshift/siglip2-base-patch16-512-text-onnx: a smallest cosine of 0.999 against PyTorch). It is an
  angle of 2.6 degrees.
- `si-sdr` without labels: 70 dB below the cap of 100, so 30 dB against FP32's own signal. For a
  model at 14 dB against the truth, independent noise of that level costs 0.1 dB, the smallest
  difference that papers claim (Le Roux et al., "SDR - half-baked or well done?", 2019, criticise
  it); at 20 dB, it costs 0.4 dB.
- `si-sdr` with labels: 0.1 dB, for the same reason.
- `snr`: as `si-sdr`, to which it is equal if the loudness is right.
- `psnr` without labels: 60 dB below the cap of 100, so 40 dB against FP32's own image. Coded images
  of 8 bits have 30 to 50 dB, and 40 is where differences are commonly taken to be invisible.
- `psnr` with labels: 0.1 dB. Super-resolution networks are ranked by tenths of a dB; their papers
  claim no smaller difference.
- `epe`: 0.1 pixel on average, a fifth of the smallest error that the Middlebury flow benchmark
  counts as one (R0.5: Baker et al., "A Database and Evaluation Methodology for Optical Flow",
  2011). By the triangle inequality, a flow that close to FP32's is at most that much further from
  the truth.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from halfwise.errors import CaseError

PSNR_CAP_DB = 100.0
"""PSNR of equal images: infinite by definition, but differences of values must stay finite."""
SI_SDR_CAP_DB = 100.0
"""SI-SDR of equal signals, as `PSNR_CAP_DB`."""
_ERRORS = ("epe", "rel-max")


def rises(name: str) -> bool:
    """Return whether the metric, as its field defines it, rises as outputs get worse."""
    return name in _ERRORS


def usual(name: str, value: float) -> float:
    """Return a metric's value as its field states it: negated for a metric that `rises`.

    Zero is 0.0, never -0.0, NaN stays NaN, and infinities change sign like other values.
    """
    return (0.0 - value if rises(name) else value) + 0.0


class DefaultDrop(NamedTuple):
    """How far a metric may fall by default, and why.

    Attributes:
        drop: In the metric's own unit, > 0.
        source: Its origin, in a few words.
    """

    drop: float
    source: str


_POINT = DefaultDrop(0.01, "MLPerf's 99 % of FP32")
_PIXELS = DefaultDrop(0.1, "a fifth of Middlebury's R0.5")


class _Convention(NamedTuple):
    """Defaults of a built-in metric.

    Attributes:
        best: Its value for the FP32 outputs if they are the truth.
        near_fp32: Allowed drop from that.
        labelled: Allowed drop from FP32's value if labels are the truth.
        is_share: Whether it is within [0, 1].
    """

    best: float
    near_fp32: DefaultDrop
    labelled: DefaultDrop
    is_share: bool = False


_SHARE = _Convention(1.0, _POINT, _POINT, is_share=True)
_TENTH = DefaultDrop(0.1, "the literature claims no smaller difference")
_TURN = DefaultDrop(0.001, "what FP16 exports of embedding models are held to")
_SIGNAL = _Convention(
    SI_SDR_CAP_DB,
    DefaultDrop(SI_SDR_CAP_DB - 30.0, "30 dB against FP32's own signal, 0.1 dB of the truth"),
    _TENTH,
)
_CONVENTIONS: dict[str, _Convention] = {
    "top1": _SHARE,
    "token-agreement": _SHARE,
    "mask-iou": _SHARE,
    "mean-iou": _SHARE,
    "detection-f1": _SHARE,
    "map": _SHARE,
    "cosine": _Convention(1.0, _TURN, _TURN),
    "si-sdr": _SIGNAL,
    "snr": _SIGNAL,
    "psnr": _Convention(
        PSNR_CAP_DB,
        DefaultDrop(PSNR_CAP_DB - 40.0, "40 dB against FP32's own output, taken as invisible"),
        _TENTH,
    ),
    "epe": _Convention(0.0, _PIXELS, _PIXELS),
}

BUILT_IN = tuple(_CONVENTIONS)
"""Names of the built-in metrics."""
SHARES = tuple(name for name, holds in _CONVENTIONS.items() if holds.is_share)
"""Built-in metrics with values in [0, 1]."""


def default_drop(metric: str, *, labelled: bool) -> DefaultDrop | None:
    """Return the drop of a built-in metric; None for others, whose scale only the user knows.

    Args:
        metric: Its name.
        labelled: Whether it uses labels; otherwise the FP32 outputs are the truth.
    """
    holds = _CONVENTIONS.get(metric)
    return holds and (holds.labelled if labelled else holds.near_fp32)


def required(metric: str) -> float:
    """Return the smallest passing value of a built-in metric if FP32's outputs are the truth."""
    holds = _CONVENTIONS[metric]
    return holds.best - holds.near_fp32.drop


def check_labels(metric: str | None, labels: Sequence[Any]) -> None:
    """Check that labels of a built-in metric are numbers; shapes are checked with the outputs.

    Args:
        metric: Its name; metrics that are not built in accept any labels.
        labels: One per sample.

    Raises:
        CaseError: a label is text or None; a class is not an integer ≥ 0, or a mask holds NaN.
    """
    if metric not in BUILT_IN:
        return
    for index, label in enumerate(labels):
        for value in label.values() if isinstance(label, Mapping) else (label,):
            if isinstance(value, str) or value is None:
                raise CaseError(
                    f"The metric {metric} takes numbers as labels, but label {index} is {value!r}.",
                    "For top1, give the number of the class, from 0; for other metrics, arrays of "
                    "the output's shape.",
                )
            _check_values(metric, np.asarray(value), index)


def _check_values(metric: str, values: NDArray[Any], index: int) -> None:
    """Check the values of a label; unknown pixels of an image or a flow may be NaN."""
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
            f"Label {index} holds {wrong[0]}, but {metric} takes "
            f"{'classes, from 0' if metric == 'top1' else 'masks of numbers'}.",
            "Correct it, or remove the sample.",
        )
