"""What an output looks like: evidence from its shape, its values, its name and the inputs.

A look is `shown` if the evidence leaves hardly any other kind: a metric that does not fit would
accept wrong results. If only the shape suggests a kind, the look is no more than a hint. A single
sample that does not fit rules out a kind, and so does a name that says otherwise (`evidence`).
The rules, with what rules each out, are in `box_layouts`, `row_kinds` and `map_kinds`.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfwise.metrics.box_layouts import boxes_in
from halfwise.metrics.difference import is_discrete
from halfwise.metrics.evidence import Arrays, Inputs, Look, Seen, is_against, is_weights
from halfwise.metrics.map_kinds import class_map, flow, heat_map, image, mask, segmentation
from halfwise.metrics.measures import Outputs
from halfwise.metrics.row_kinds import class_scores, embeddings, spectrum, token_ids, waveform
from halfwise.records import Kind

METRIC_OF: dict[Kind, str] = {
    "boxes": "detection-f1",
    "class-scores": "top1",
    "embedding": "cosine",
    "flow": "epe",
    "heat-map": "psnr",
    "image": "psnr",
    "mask": "mask-iou",
    "segmentation": "mean-iou",
    "spectrum": "snr",
    "tokens": "token-agreement",
    "waveform": "snr",
}
"""The built-in metric of each kind."""
_RULES: tuple[Callable[[Seen], Look | None], ...] = (
    class_scores,
    token_ids,
    embeddings,
    class_map,
    segmentation,
    mask,
    flow,
    heat_map,
    image,
    spectrum,
    waveform,
)
"""The first rule that shows a kind counts, otherwise the first that suggests one."""
LOOKED_AT = 8
"""Samples examined: enough to distinguish a mask from a feature map."""
_LOOKED_AT_ELEMENTS = 2**22
"""Elements of all outputs examined, 32 MiB as f64; of larger outputs, one sample is examined."""


def looks(references: Sequence[Outputs], inputs: Inputs | None = None) -> tuple[Look, ...]:
    """Return what the outputs look like, boxes first, others in order.

    Outputs with NaN, constants and attention weights look like nothing.

    Args:
        references: FP32 outputs by sample; the first eight are examined. May be empty.
        inputs: Shapes of the inputs; if they are unknown, less is shown.
    """
    if not len(references):
        return ()
    known, (floats, discrete) = inputs or {}, _seen(references)
    boxes = boxes_in(floats, discrete, known)
    found = [] if boxes is None else [boxes]
    taken = () if boxes is None else boxes.outputs
    shapes = {name: array.shape for name, array in references[0].items()}
    for name in references[0]:
        arrays: Arrays = floats.get(name) or discrete.get(name) or ()
        if arrays and name not in taken and _tells(arrays):
            beside = {other: shape for other, shape in shapes.items() if other != name}
            seen = Seen(name, arrays, name in discrete, known, beside)
            told = [rule(seen) for rule in _RULES]
            fits = (each for each in told if each and not is_against(each.kind, name))
            if (one := max(fits, key=lambda each: each.shown, default=None)) is not None:
                found.append(one)
    return tuple(found)


def looked_at(first: Outputs, samples: int) -> int:
    """Return how many of the samples are examined, given the outputs of the first."""
    fit = _LOOKED_AT_ELEMENTS // max(1, sum(array.size for array in first.values()))
    return min(LOOKED_AT, max(1, fit), samples)


def first_of(references: Sequence[Outputs]) -> list[Outputs]:
    """Return the outputs of the examined samples."""
    return [references[index] for index in range(looked_at(references[0], len(references)))]


def _seen(
    references: Sequence[Outputs],
) -> tuple[dict[str, list[NDArray[np.float64]]], dict[str, list[NDArray[Any]]]]:
    """Return the non-empty float outputs, widened, and the integer ones.

    Attention weights are excluded.
    """
    first = first_of(references)
    floats: dict[str, list[NDArray[np.float64]]] = {}
    discrete: dict[str, list[NDArray[Any]]] = {}
    for name in first[0]:
        arrays = [outputs[name] for outputs in first if outputs[name].size]
        if not arrays:
            continue
        if not is_discrete(arrays[0].dtype):
            if not is_weights(name):
                floats[name] = [array.astype(np.float64) for array in arrays]
        elif arrays[0].dtype.kind in "iu":
            discrete[name] = arrays
    return floats, discrete


def _tells(arrays: Arrays) -> bool:
    """Return whether an output holds no NaN, and two different numbers unless it is one alone."""
    low, high = np.inf, -np.inf
    for array in arrays:
        if np.isnan(array).any():
            return False
        finite = array[np.isfinite(array)]
        if finite.size:
            low, high = min(low, float(finite.min())), max(high, float(finite.max()))
    return bool(low < high or (low == high and sum(a.size for a in arrays) == 1))
