"""Evidence for the kinds of outputs: an output, what is observed of it, and its name.

A name that speaks against a kind outweighs what the values look like. Landmarks, portfolio shares
or quantiles can have values like class scores and boxes; their names differ.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from halfwise.metrics.targets import required, sigmoid, softmax, without_trailing_ones
from halfwise.records import Boxes, Cells, Evidence, Kind, Recognised

_WORD = re.compile(r"[A-Z]*[a-z]+|[A-Z]+")
_LONG = 5
"""Letters from which a word is searched for anywhere in a name; shorter ones must begin a word."""
_PLACES = (
    "landmark", "keypoint", "kpt", "kps", "joint", "pose", "coord", "offset", "delta", "displac",
    "mesh", "vertices", "rotat", "transl", "quat", "angle", "velocity", "traject", "normals",
    "gaze", "xyz",
)  # fmt: skip
_AMOUNTS = (
    "depth", "dispar", "quantile", "percentile", "regress", "forecast", "price", "distance",
    "height", "param", "coef", "alloc", "portfolio", "mixture", "mixing", "proportion", "fraction",
    "histogram", "variance", "uncert", "count", "length", "router", "expert",
)  # fmt: skip
_SPACES = ("embed", "feat", "latent", "hidden", "descriptor", "represent")
_DECISIONS = ("logit", "prob", "score", "class", "label", "token")
_NO_BOXES = (*(word for word in _PLACES if word != "coord"), *_AMOUNTS, *_SPACES)
_AGAINST: Mapping[Kind, tuple[str, ...]] = {
    "boxes": _NO_BOXES,
    "cells": _NO_BOXES,
    "class-scores": (
        *_PLACES, *_AMOUNTS, *_SPACES, "multilabel", "multi_label", "attribute", "tags",
    ),
    "tokens": (*_PLACES, *_AMOUNTS, *_SPACES, "num", "track", "cluster"),
    "embedding": (*_PLACES, *_AMOUNTS, *_DECISIONS, "box"),
    "mask": (
        *_AMOUNTS, "alpha", "matte", "pha", "disp", "heat", "anomal", "salien", "confid", "error",
        "visib", "ratio", "irm", "gain", "energy", "dist", "sdf", "spec", "stft", "mel", "audio",
        "speech",
    ),
    "segmentation": (*_AMOUNTS, *_SPACES, "disp", "cost", "heat", "flow", "instance"),
    "keypoints": (
        *_AMOUNTS, *_DECISIONS, "offset", "displac", "delta", "flow", "size", "veloc", "angle",
        "match",
    ),
    "heatmap": (
        *_AMOUNTS, *_SPACES, "offset", "displac", "transl", "anomal", "salien", "disp", "confid",
        "mask", "seg", "uncert", "error", "edge", "densit", "occup", "centerness", "centreness",
    ),
    "flow": (*_DECISIONS, *_SPACES, "mask", "seg", "change", "dispar", "depth", "uncert", "confid",
             "occl", "visib", "flower"),
    "image": (
        *_PLACES, *_AMOUNTS, *_SPACES, *_DECISIONS, "alpha", "matte", "pha", "disp", "heat",
        "normal", "mask", "seg", "point", "position", "flow", "grad", "confid", "salien", "anomal",
        "edge", "spec", "stft", "mel",
    ),
}  # fmt: skip
_FOR: Mapping[Kind, tuple[str, ...]] = {
    "class-scores": ("logit", "prob", "class", "cls", "softmax"),
    "tokens": ("logit", "prob", "class", "cls", "softmax", "token"),
    "embedding": ("embed", "latent", "represent"),
    "segmentation": ("seg", "semantic", "class"),
}
"""Words that outweigh those against: joint embeddings, probabilities of landmarks."""
_WEIGHTS = ("attention", "attn", "alignment", "weight", "gate")


def begins(name: str, *words: str) -> bool:
    """Return whether a word of a name begins with one of `words`.

    Words end at punctuation, a digit or a capital: "perspective" is not a spectrum.
    """
    parts = [part.lower() for part in _WORD.findall(name)]
    return any(part.startswith(word) for part in parts for word in words)


def is_against(kind: Kind, name: str) -> bool:
    """Return whether a name says that an output is not of a kind."""
    return _tells(name, _AGAINST[kind]) and not begins(name, *_FOR.get(kind, ()))


def is_decision(name: str) -> bool:
    """Return whether a name says that an output scores choices, and calls nothing a box."""
    return _tells(name, _DECISIONS) and "box" not in name.lower()


def is_weights(name: str) -> bool:
    """Return whether a name says that an output holds weights, which are of no kind."""
    return any(word in name.lower() for word in _WEIGHTS)


def _tells(name: str, words: tuple[str, ...]) -> bool:
    short = tuple(word for word in words if len(word) < _LONG)
    return any(w in name.lower() for w in words if len(w) >= _LONG) or begins(name, *short)


Inputs = Mapping[str, tuple[int, ...]]
"""Shape of every input of the model, on the first sample."""
Arrays = Sequence[NDArray[np.float64]]
"""One output of several samples."""
SUM_SLACK = 4e-3
"""Largest distance of a row's sum of probabilities, or of a length, from 1: BF16 rounds each number
by up to 2^-9 of itself."""
_STATES = ("cache", "state", "memory", "past", "present", "hn", "cn", "h0", "c0")
"""Words in the names of outputs that become inputs of the next call."""


METRIC_OF: dict[Kind, str] = {
    "boxes": "detection-f1",
    "cells": "cells",
    "class-scores": "top1",
    "embedding": "cosine",
    "flow": "epe",
    "heatmap": "peaks",
    "image": "psnr",
    "keypoints": "keypoints",
    "mask": "mask-iou",
    "segmentation": "mean-iou",
    "tokens": "token-agreement",
}
"""The built-in metric of each kind."""


def of_kind(
    kind: Kind,
    outputs: tuple[str, ...],
    evidence: tuple[Evidence, ...],
    boxes: Boxes | None = None,
    cells: Cells | None = None,
) -> Recognised:
    """Return recognised outputs, with the metric of their kind; see `Recognised`."""
    return Recognised(
        kind=kind,
        metric=METRIC_OF[kind],
        outputs=outputs,
        required=required(METRIC_OF[kind]),
        evidence=evidence,
        boxes=boxes,
        cells=cells,
    )


class Seen(NamedTuple):
    """One output of the examined samples.

    Attributes:
        name: Its name.
        arrays: Its values, f64; none of them empty or NaN, and not all equal.
        discrete: Whether it holds integers.
        inputs: Shapes of the inputs.
        beside: Shapes of the other outputs, by name, on the first sample.
    """

    name: str
    arrays: Arrays
    discrete: bool
    inputs: Inputs
    beside: Mapping[str, tuple[int, ...]]

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape on the first sample."""
        return self.arrays[0].shape

    def called(self, *words: str) -> bool:
        """Return whether a word of its name starts with one of these, as evidence for a kind."""
        return begins(self.name, *words)

    def mentions(self, *words: str) -> bool:
        """Return whether its name contains one of these words, as evidence against a kind."""
        return any(word in self.name.lower() for word in words)

    @property
    def is_state(self) -> bool:
        """Whether it looks like a state for the next call: by its name, and an input's shape.

        In such an output every number counts, and so does its scale.
        """
        return self.shape in self.inputs.values() and self.mentions(*_STATES)

    def shows(self, kind: Kind, *evidence: Evidence) -> Recognised:
        """Return it as recognised by a rule."""
        return of_kind(kind, (self.name,), evidence)

    def rows(self) -> list[NDArray[np.float64]]:
        """Return the arrays without trailing axes of length 1 beyond two, as `top1` reads them."""
        return [without_trailing_ones(array) for array in self.arrays]


def within_unit(array: NDArray[np.float64]) -> bool:
    """Return whether all values are within [0, 1]; NaN is not."""
    return bool(np.all((array >= 0) & (array <= 1)))


def whole_numbers(arrays: Sequence[NDArray[Any]]) -> bool:
    """Return whether all values are whole numbers; NaN is not."""
    return all(bool(np.all(array == np.rint(array))) for array in arrays)


def sums_to_one(array: NDArray[np.float64], axis: int) -> bool:
    """Return whether all values are within [0, 1] and add up to 1 along an axis."""
    return within_unit(array) and bool(np.all(np.abs(array.sum(axis=axis) - 1) <= SUM_SLACK))


def is_share_of(logits: NDArray[np.float64], shares: NDArray[np.float64]) -> bool:
    """Return whether `shares` are the softmax of `logits` along the last axis, or its sigmoid."""
    if logits.shape != shares.shape or not np.isfinite(logits).all():
        return False
    both = (softmax(logits), sigmoid(logits))
    return any(bool(np.all(np.abs(one - shares) <= SUM_SLACK)) for one in both)


def image_sizes(inputs: Inputs, channels: tuple[int, ...] = (1, 3)) -> list[tuple[int, int]]:
    """Return height and width of inputs that are images with one of these numbers of channels."""
    sizes = []
    for shape in inputs.values():
        if len(shape) == 4 and shape[1] in channels:
            sizes.append((shape[2], shape[3]))
        elif len(shape) == 4 and shape[3] in channels:
            sizes.append((shape[1], shape[2]))
    return sizes


def correlation(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """Return the correlation of two vectors; 0 if one is constant or not finite."""
    varied = all(np.isfinite(each).all() and np.ptp(each) for each in (one, other))
    return float(np.corrcoef(one, other)[0, 1]) if varied else 0.0
