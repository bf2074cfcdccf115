"""How far a built-in metric may fall where the user does not say, and whose convention that is.

A metric that moves continuously falls with any rounding, so a drop of 0 would ask for the FP32
model itself. No default can be derived; each is a convention of its field:

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

from typing import NamedTuple

from halfwise.metrics.task import PSNR_CAP_DB


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
