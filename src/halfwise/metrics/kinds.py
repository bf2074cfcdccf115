"""What an output looks like: evidence from its shape, its values, its name and the inputs.

A look is `shown` where the evidence leaves little else that it could be: a metric that asks the
wrong question would accept what is wrong. What only its shape speaks for is told as a hint, and
no more. One sample that does not look like it is enough against.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from halfwise.metrics.box_layouts import boxes_in
from halfwise.metrics.difference import is_discrete
from halfwise.metrics.measures import Outputs
from halfwise.records import Boxes, Evidence, Kind

Inputs = Mapping[str, tuple[int, ...]]
"""Shape of every input of the model, on the first sample."""
Arrays = Sequence[NDArray[np.float64]]
"""One output of several samples."""

METRIC_OF: dict[Kind, str] = {
    "boxes": "detection-f1",
    "class-scores": "top1",
    "flow": "epe",
    "mask": "mask-iou",
}
"""The built-in metric of each kind."""
LOOKED_AT = 8
"""Samples looked at: enough to tell a mask from a feature map, and cheap for large outputs."""
_CLASSES = ("logit", "prob", "score", "class", "cls", "softmax", "pred")
"""Words in the names of outputs that are one number per class."""
_VECTORS = ("embed", "feat", "hidden", "pool", "latent", "vector", "repr", "token", "encod")
"""Words in the names of outputs that are a place in a space."""
_WEIGHTS = ("attention", "attn", "alignment", "weight", "gate")
"""Words in the names of outputs that say how much is taken from where."""
_SPACE = 32
"""Spaces have dimensions in multiples of it; sets of classes rarely do."""
_FEWEST_CLASSES = 10
_KNOWN_COUNTS = (1000, 1001, 21841, 21843)
"""Classes of ImageNet-1k and ImageNet-21k, without and with one for the background."""
_SUM_SLACK = 1e-2
"""How far a row of probabilities may be from 1: FP16 and BF16 outputs round every class."""
_SHARP = 0.5
"""Share of a mask's values above 0.1 that are above 0.9, at least. Of a Gaussian peak 5 % are, of
values that are even in [0, 1] 11 %."""
_OPACITY = ("alpha", "matte", "pha", "depth", "heat")
"""Words in the names of maps in [0, 1] whose values between count."""


class Look(NamedTuple):
    """What outputs look like.

    Attributes:
        kind: What.
        outputs: Their names.
        shape: Of the first of them, on the first sample.
        evidence: What was seen besides the shape.
        shown: Whether the evidence leaves little else that they could be.
        boxes: How boxes are read, where that is shown.
    """

    kind: Kind
    outputs: tuple[str, ...]
    shape: tuple[int, ...]
    evidence: tuple[Evidence, ...]
    shown: bool
    boxes: Boxes | None = None

    @property
    def fits(self) -> bool:
        """Whether the metric of the kind takes them as they are."""
        return "channels-last" not in self.evidence and (self.kind != "boxes" or self.shown)


def looks(references: Sequence[Outputs], inputs: Inputs | None = None) -> tuple[Look, ...]:
    """Return what the float outputs look like, boxes first.

    Outputs that hold NaN, and constants, look like nothing; so do weights of attention.

    Args:
        references: FP32 outputs by sample; the first eight are looked at. May be empty.
        inputs: Shapes of the inputs; where they are not known, less is shown.
    """
    if not len(references):
        return ()
    floats, discrete = _seen(references)
    boxes = boxes_in(floats, discrete, inputs or {})
    found: list[Look | None] = []
    if boxes is not None:
        shape = floats[boxes.outputs[0]][0].shape
        shown = boxes.how is not None
        found = [Look("boxes", boxes.outputs, shape, boxes.evidence, shown, boxes.how)]
    taken = () if boxes is None else boxes.outputs
    others = {name: a for name, a in floats.items() if name not in taken and _tells(a)}
    found += [_look(name, arrays, inputs or {}) for name, arrays in others.items()]
    return tuple(look for look in found if look is not None)


def first_of(references: Sequence[Outputs]) -> list[Outputs]:
    """Return the outputs of the samples that are looked at."""
    return [references[index] for index in range(min(LOOKED_AT, len(references)))]


def _seen(
    references: Sequence[Outputs],
) -> tuple[dict[str, list[NDArray[np.float64]]], dict[str, list[NDArray[Any]]]]:
    """Return the float outputs that have elements, widened, and the integer ones.

    Weights of attention are not among them.
    """
    first = first_of(references)
    floats: dict[str, list[NDArray[np.float64]]] = {}
    discrete: dict[str, list[NDArray[Any]]] = {}
    for name in first[0]:
        arrays = [outputs[name] for outputs in first if outputs[name].size]
        if not arrays:
            continue
        if not is_discrete(arrays[0].dtype):
            if not _named(name, _WEIGHTS):
                floats[name] = [array.astype(np.float64) for array in arrays]
        elif arrays[0].dtype.kind in "iu":
            discrete[name] = arrays
    return floats, discrete


def _named(name: str, words: Sequence[str]) -> bool:
    return any(word in name.lower() for word in words)


def _tells(arrays: Arrays) -> bool:
    """Return whether an output holds no NaN, and two different numbers unless it is one alone."""
    if any(np.isnan(array).any() for array in arrays):
        return False
    finite = np.concatenate([array[np.isfinite(array)] for array in arrays])
    return finite.size > 0 and (sum(a.size for a in arrays) == 1 or bool(np.ptp(finite)))


def _look(name: str, arrays: Arrays, inputs: Inputs) -> Look | None:
    def found(kind: Kind, *evidence: Evidence, shown: bool) -> Look:
        return Look(kind, (name,), arrays[0].shape, evidence, shown)

    if all(map(_is_probabilities, arrays)):
        return found("class-scores", "rows-sum", shown=True)
    if _may_be_logits(name, arrays):
        evidence = tuple(_of_logits(name, arrays))
        return found("class-scores", *evidence, shown=bool(evidence))
    if all(map(_is_map_in_unit, arrays)):
        shown = not _named(name, _OPACITY) and _is_sharp(arrays) and not _maps(arrays[0], inputs)
        return found("mask", "one-channel", *(("two-valued",) if shown else ()), shown=shown)
    if all(map(_is_two_maps, arrays)):
        pair: tuple[Evidence, ...] = ("pair-of-images",) if _are_pair(inputs) else ()
        named: tuple[Evidence, ...] = ("by-name",) if "flow" in name.lower() else ()
        return found("flow", "two-channels", *named, *pair, shown=bool(pair or named))
    if all(map(_is_two_maps, map(_channels_first, arrays))):
        return found("flow", "two-channels", "channels-last", shown=False)
    return None


def _within_unit(array: NDArray[np.float64]) -> bool:
    return bool(np.all((array >= 0) & (array <= 1)))


def _is_probabilities(array: NDArray[np.float64]) -> bool:
    array = _without_trailing_ones(array)
    if array.ndim == 0 or array.shape[-1] < 2 or not _within_unit(array):
        return False
    if array.ndim > 2 and array.shape[-1] == array.shape[-2]:
        return False  # [..., L, L] is what L places take from each other
    return bool(np.all(np.abs(array.sum(axis=-1) - 1) <= _SUM_SLACK))


def _may_be_logits(name: str, arrays: Arrays) -> bool:
    """Tell class scores [N, classes] from embeddings [N, dimensions]."""
    rows = [_without_trailing_ones(array) for array in arrays]
    if any(array.ndim != 2 or array.shape[-1] < _FEWEST_CLASSES for array in rows):
        return False
    if _named(name, _VECTORS):
        return False
    if _named(name, _CLASSES):
        return True
    if not all(np.isfinite(array).all() for array in rows):
        return False
    lengths = np.concatenate([np.linalg.norm(array, axis=-1) for array in rows])
    mean, other = lengths.mean(), {array.tobytes() for array in rows}
    if abs(mean - 1) <= _SUM_SLACK or (len(other) > 1 and np.ptp(lengths) <= _SUM_SLACK * mean):
        return False
    return bool(rows[0].shape[-1] % _SPACE)


def _of_logits(name: str, arrays: Arrays) -> Iterator[Evidence]:
    """Yield what shows that logits are such: of scores within [0, 1] several may hold at once."""
    rows = [_without_trailing_ones(array) for array in arrays]
    if all(map(_within_unit, rows)):
        return
    if _named(name, ("logit", "softmax", "prob")):
        yield "by-name"
    if rows[0].shape[-1] in _KNOWN_COUNTS:
        yield "known-count"
    with np.errstate(over="ignore", invalid="ignore"):
        sums = np.concatenate([np.exp(array).sum(axis=-1) for array in rows])
    if np.all(np.abs(sums - 1) <= _SUM_SLACK):
        yield "log-sum"


def _channels_first(array: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return NHWC as NCHW; what has not four axes as it is."""
    return np.moveaxis(array, -1, 1) if array.ndim == 4 else array


def _without_trailing_ones(array: NDArray[np.float64]) -> NDArray[np.float64]:
    # Convolutional classifiers give [N, classes, 1, 1]; `top1` reads it the same way.
    while array.ndim > 2 and array.shape[-1] == 1:
        array = array[..., 0]
    return array


def _is_map_in_unit(array: NDArray[np.float64]) -> bool:
    return array.ndim == 4 and 1 in (array.shape[1], array.shape[-1]) and _within_unit(array)


def _is_sharp(arrays: Arrays) -> bool:
    """Return whether maps have an inside and an outside, and little between."""
    risen = sum(int((array > 0.1).sum()) for array in arrays)
    inside = sum(int((array > 0.9).sum()) for array in arrays)
    return 0 < inside >= _SHARP * risen and risen < sum(array.size for array in arrays)


def _maps(array: NDArray[np.float64], inputs: Inputs) -> bool:
    """Return whether an input has this very shape: what is two-valued may be a restored page."""
    return array.shape in inputs.values()


def _is_two_maps(array: NDArray[np.float64]) -> bool:
    is_map = array.ndim == 4 and array.shape[1] == 2 and min(array.shape[2:]) >= 8
    # Two classes per pixel have the same shape, but stay within [0, 1] as probabilities.
    return is_map and not _within_unit(array)


def _are_pair(inputs: Inputs) -> bool:
    images = [shape for shape in inputs.values() if len(shape) == 4 and 3 in (shape[1], shape[3])]
    return len(images) == 2 and images[0] == images[1]
