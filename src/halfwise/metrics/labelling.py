"""Metrics for outputs with one class for each of many places: tokens of a text, pixels."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halfwise.errors import CaseError
from halfwise.metrics.difference import is_discrete
from halfwise.metrics.measures import Outputs
from halfwise.metrics.targets import (
    OWN_METRIC,
    at_least_one,
    by_sample,
    class_output,
    token_outputs,
)

Classes = NDArray[np.int64]
_NONE = -1
"""The class of a place that has none, because it is not finite or missing."""


def token_agreement(
    reference: Sequence[Outputs],
    candidate: Sequence[Outputs],
    labels: Sequence[Any] | None,
) -> float:
    """Return the fraction of tokens that are right, in [0, 1].

    Tokens are the elements of every integer output; without one, the indices of the largest scores
    along the last axis of the class output (see `top1`), the first among equals. If sequences
    differ in length, places that only one of them has are wrong; so is a place with NaN. A token
    that makes up more than half of the right ones, for example CTC's blank or padding, proves
    nothing where both sides have it: such places do not count. 1 if no place counts.

    Args:
        reference: Integer outputs [*, tokens] or scores [*, tokens, vocabulary].
        candidate: The same outputs, of any number of tokens.
        labels: Per sample the right tokens, in the shape of the reference's; places with a label
            below 0 are left out. Or None.

    Raises:
        CaseError: No output holds tokens, there are none at all, or a label has another shape.
    """
    right = count = places = 0
    for truth, guess in _pairs(reference, candidate, labels):
        told = ~((truth == guess) & _is_filler(truth))
        right += int(((truth == guess) & told & (truth != _NONE)).sum())
        count += int(told.sum())
        places += truth.size
    at_least_one("token-agreement", places)
    return right / count if count else 1.0


def mean_iou(
    reference: Sequence[Outputs],
    candidate: Sequence[Outputs],
    labels: Sequence[Any] | None,
) -> float:
    """Return the intersection over union of pixels, averaged over classes, then images, in [0, 1].

    The class of a pixel is the index of the largest score along axis 1 of the class output [N,
    classes, height, width] (see `top1` for which output that is), or the element of an integer
    output. The average is over the classes in an image's target, then over images, so the loss of a
    small region in one image shows. Without labels, images of one class that keep it are left out;
    1 if all are. A pixel with NaN has no class, and neither has any pixel of a candidate of another
    shape.

    Args:
        reference: One output as above; the target where there are no labels.
        candidate: The same output.
        labels: Per sample the class of each pixel, [N, height, width] up to axes of length 1; those
            outside 0 to classes - 1 are left out. Or None.

    Raises:
        CaseError: No output has this form, or a label is missing or of another shape.
    """
    shares, seen = [], 0
    for expected, found, label in by_sample(reference, candidate, labels):
        name = _pixel_output(expected)
        truth, guess = _pixels(expected[name]), _pixels(found[name])
        if guess.shape != truth.shape:
            guess = np.full(truth.shape, _NONE)
        if label is not None:
            most = expected[name].shape[1] if not is_discrete(expected[name].dtype) else np.inf
            truth = _labels("mean-iou", label, truth.shape, name)
            truth = np.where(truth < most, truth, _NONE)
        for wanted, given in zip(truth, guess, strict=True):
            known = wanted >= 0 if label is not None else ...
            ours, theirs = wanted[known], given[known]
            kinds = [kind for kind in np.unique(ours) if kind != _NONE]
            seen += len(kinds)
            if kinds and (len(kinds) > 1 or label is not None or (ours != theirs).any()):
                shares.append(fmean([_overlap(ours == kind, theirs == kind) for kind in kinds]))
    at_least_one("mean-iou", seen)
    return fmean(shares) if shares else 1.0


def tokens_in(references: Sequence[Outputs], labels: Sequence[Any] | None) -> int:
    """Return how many tokens `token_agreement` compares if the candidate equals the target."""
    pairs = _pairs(references, references, labels)
    return sum(int((~_is_filler(truth)).sum()) for truth, _ in pairs)


def pixels_in(references: Sequence[Outputs]) -> int:
    """Return how many pixels `mean_iou` compares without labels."""
    return sum(_pixels(outputs[_pixel_output(outputs)]).size for outputs in references)


def classes_in(references: Sequence[Outputs]) -> int:
    """Return how many classes pixels have, as `mean_iou` reads them."""
    found: set[int] = set()
    for outputs in references:
        found.update(np.unique(_pixels(outputs[_pixel_output(outputs)])).tolist())
    return len(found - {_NONE})


def _overlap(ours: NDArray[np.bool_], theirs: NDArray[np.bool_]) -> float:
    return int(np.count_nonzero(ours & theirs)) / int(np.count_nonzero(ours | theirs))


def _pairs(
    reference: Sequence[Outputs], candidate: Sequence[Outputs], labels: Sequence[Any] | None
) -> list[tuple[Classes, Classes]]:
    """Return the right and the actual class of each output at all places of all samples."""
    pairs: dict[str, list[tuple[Classes, Classes]]] = {}
    for expected, found, label in by_sample(reference, candidate, labels):
        for name in token_outputs(expected):
            truth, guess = _tokens(expected[name]), _tokens(found[name])
            if label is not None:
                truth = _labels("token-agreement", label, truth.shape, name)
            if guess.ndim != truth.ndim:
                guess = np.full(truth.shape, _NONE)
            truth, guess = _of_one_length(truth, guess)
            known = truth >= 0 if label is not None else ...
            pairs.setdefault(name, []).append((truth[known].ravel(), guess[known].ravel()))
    return [
        (np.concatenate([t for t, _ in each]), np.concatenate([g for _, g in each]))
        for each in pairs.values()
    ]


def _is_filler(truth: Classes) -> NDArray[np.bool_]:
    """Return where the token is the majority token."""
    tokens, counts = np.unique(truth[truth != _NONE], return_counts=True)
    return np.isin(truth, tokens[counts > counts.sum() / 2])


def _tokens(array: NDArray[Any]) -> Classes:
    return _largest(array, -1) if not is_discrete(array.dtype) else array.astype(np.int64)


def _pixels(array: NDArray[Any]) -> Classes:
    if is_discrete(array.dtype):
        return array.astype(np.int64)
    return _largest(array, 1) if array.ndim == 4 else np.full(array.shape, _NONE)


def _largest(scores: NDArray[Any], axis: int) -> Classes:
    if not scores.ndim or not scores.shape[axis]:
        return np.full(scores.shape[:-1], _NONE)
    # The largest of values with a NaN is NaN, which is no class.
    bad = np.isnan(scores.max(axis=axis))
    return np.asarray(np.where(bad, _NONE, scores.argmax(axis=axis)), np.int64)


def _pixel_output(outputs: Outputs) -> str:
    maps = [n for n, a in outputs.items() if a.dtype.kind in "iu" and a.ndim >= 3]
    if len(maps) == 1:
        return maps[0]
    name = class_output(outputs)
    if outputs[name].ndim != 4 or outputs[name].shape[1] < 2:
        raise CaseError(
            f"The metric mean-iou needs scores [N, classes, height, width] with at least two "
            f"classes, but output {name!r} has shape {list(outputs[name].shape)}.",
            OWN_METRIC,
        )
    return name


def _of_one_length(truth: Classes, guess: Classes) -> tuple[Classes, Classes]:
    """Return both padded to the larger size along each axis, with places of no class."""
    shape = np.maximum(truth.shape, guess.shape).astype(int)
    padded = [np.full(shape, _NONE) for _ in range(2)]
    for whole, part in zip(padded, (truth, guess), strict=True):
        whole[tuple(slice(length) for length in part.shape)] = part
    return padded[0], padded[1]


def _labels(metric: str, label: object, shape: tuple[int, ...], name: str) -> Classes:
    classes = np.asarray(label)
    if classes.dtype.kind not in "biuf" or classes.size != np.prod(shape):
        raise CaseError(
            f"The metric {metric} needs one class for each place of output {name!r}, shape "
            f"{list(shape)}, but the label has shape {list(classes.shape)} and type "
            f"{classes.dtype}.",
            "Give one integer per place; negative ones are ignored.",
        )
    return classes.reshape(shape).astype(np.int64)
