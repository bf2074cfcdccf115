"""Built-in metrics: their direction, default drop, and the outputs and labels they take.

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
from halfwise.metrics.difference import is_discrete
from halfwise.metrics.evidence import without_trailing_ones
from halfwise.metrics.measures import Outputs
from halfwise.wording import count

PSNR_CAP_DB = 100.0
"""PSNR of equal images: infinite by definition, but differences of values must stay finite."""
SI_SDR_CAP_DB = 100.0
"""SI-SDR of equal signals, as `PSNR_CAP_DB`."""
_ERRORS = ("epe", "rel-max")
_CLASS_OUTPUTS = ("logits", "prob", "score", "output")
_SIDE = 8
"""Least height and width of a map."""
OWN_METRIC = "Write your own metric and give it as --metric file.py:function."


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


def at_least_one(metric: str, count: int) -> int:
    """Return `count`; raise CaseError unless it is above 0."""
    if not count:
        raise CaseError(f"The metric {metric} has nothing to compare: the outputs are empty.")
    return count


def float_outputs(outputs: Outputs) -> tuple[str, ...]:
    """Return the names of the float outputs; CaseError without any."""
    names = tuple(name for name, array in outputs.items() if not is_discrete(array.dtype))
    if not names:
        raise CaseError(
            f"The metric needs a float output, but the model has only {shapes_of(outputs)}.",
            OWN_METRIC,
        )
    return names


def map_outputs(outputs: Outputs) -> tuple[str, ...]:
    """Return the names of the float outputs; CaseError if none has two axes of 8 or more."""
    names = float_outputs(outputs)
    if not any(sum(length >= _SIDE for length in outputs[name].shape) > 1 for name in names):
        raise CaseError(
            f"The metric psnr needs an image or a map [..., height, width], but the model has only "
            f"{shapes_of(outputs)}.",
            OWN_METRIC,
        )
    return names


def flow_outputs(outputs: Outputs) -> tuple[str, ...]:
    """Return the names of the outputs [*, 2, height, width]; CaseError without any."""
    names = tuple(
        name
        for name in float_outputs(outputs)
        if outputs[name].ndim >= 3 and outputs[name].shape[-3] == 2
    )
    if not names:
        raise CaseError(
            f"The metric epe needs a flow output [..., 2, height, width], but the model has only "
            f"{shapes_of(outputs)}.",
            OWN_METRIC,
        )
    return names


def token_outputs(outputs: Outputs) -> tuple[str, ...]:
    """Return the names of integer outputs, or else of sequence scores; CaseError if there are none.

    Scores are the class output if it is [*, tokens, vocabulary], with three or more axes.
    """
    integers = tuple(name for name, array in outputs.items() if array.dtype.kind in "iu")
    if integers:
        return integers
    name = class_output(outputs)
    if outputs[name].ndim < 3 or outputs[name].shape[-1] == 1:
        raise CaseError(
            f"The metric token-agreement needs integers or scores [..., tokens, vocabulary], but "
            f"the model has only {shapes_of(outputs)}.",
            OWN_METRIC,
        )
    return (name,)


def class_output(outputs: Outputs) -> str:
    """Return the name of the class output, chosen as in `top1`; CaseError if there is none."""
    names = float_outputs(outputs)
    if len(names) == 1:
        return names[0]
    for word in _CLASS_OUTPUTS:
        exact = [name for name in names if name.lower() == word]
        matches = exact or [name for name in names if word in name.lower()]
        if len(matches) == 1:
            return matches[0]
    raise CaseError(
        f"The metric top1 cannot tell which output holds the classes: {shapes_of(outputs)}.",
        OWN_METRIC,
    )


def class_rows(name: str, array: NDArray[Any]) -> NDArray[np.float64]:
    """Return f64[rows, classes] of a class output [*rows, classes, 1, …]."""
    shape = without_trailing_ones(array).shape
    if not shape or shape[-1] < 2:
        raise CaseError(
            f"The metric top1 needs at least two classes along the last axis, but output {name!r} "
            f"has shape {list(array.shape)}.",
            OWN_METRIC,
        )
    return array.reshape(-1, shape[-1]).astype(np.float64)


def class_labels(label: object, scores: NDArray[np.float64], name: str) -> NDArray[Any]:
    """Return the classes [rows] that a label of output `name` holds.

    Args:
        label: A number or numbers.
        scores: [rows, classes].
        name: The output.

    Raises:
        CaseError: they are not one number for each row, or not in [0, classes).
    """
    classes, (rows, known) = np.ravel(np.asarray(label)), scores.shape
    if classes.size != rows or classes.dtype.kind not in "iuf":
        raise CaseError(
            f"The metric top1 needs {count(rows, 'class number')} for a sample of output {name!r}, "
            f"but the label holds {classes.size} of type {classes.dtype}.",
            "Give one integer class per row of the class output.",
        )
    fits = (classes >= 0) & (classes < known)
    if not fits.all():
        raise CaseError(
            f"A label is class {classes[~fits][0]}, but output {name!r} has {known} classes: 0 to "
            f"{known - 1}.",
            "Count classes from 0, and remove samples without a class.",
        )
    return classes


def target_of(
    output: NDArray[Any], label: object, name: str, names: Sequence[str]
) -> NDArray[np.float64]:
    """Return the label of output `name` in the output's shape; without a label, the output itself.

    Raises:
        CaseError: the label is of another shape or type, or does not name its outputs.
    """
    if label is None:
        return output.astype(np.float64)
    if isinstance(label, Mapping) and name in label:
        label = label[name]
    elif isinstance(label, Mapping) or len(names) > 1:
        raise CaseError(
            f"A label must give a target for each of the outputs {', '.join(names)}.",
            "Give one array for a single output, or a mapping of output names to arrays.",
        )
    array = np.asarray(label)
    if array.dtype.kind not in "biuf" or _lengths(array.shape) != _lengths(output.shape):
        raise CaseError(
            f"The label for output {name!r} has shape {list(array.shape)} and type {array.dtype}, "
            f"but the output has shape {list(output.shape)}."
        )
    return array.reshape(output.shape).astype(np.float64)


def _lengths(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(length for length in shape if length != 1)


def shapes_of(outputs: Outputs) -> str:
    """Return the outputs with their types and shapes, for messages."""
    return ", ".join(
        f"{name} ({array.dtype} {list(array.shape)})" for name, array in outputs.items()
    )
