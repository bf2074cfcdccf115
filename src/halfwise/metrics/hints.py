"""Remarks for a user who took the default tolerance where the outputs call for something else.

The default compares every number. That is the wrong question where the outputs are a decision
(classes, masks, boxes), where a few numbers may differ by right (integers), or where a constant
would pass. What an output means is guessed from its shape and values, so every hint says what it
saw.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from halfwise.metrics.difference import is_discrete
from halfwise.metrics.measures import DEFAULT_REL_MAX, Outputs, is_default, totals
from halfwise.metrics.slices import runs
from halfwise.metrics.unvarying import unvarying_hint
from halfwise.records import Criterion
from halfwise.wording import listed, number, percent, verb

_LOOKED_AT = 8
"""Samples looked at: enough to tell a mask from a feature map, and cheap for large outputs."""
_CLASSES = ("logit", "prob", "score", "class", "cls", "softmax", "pred")
"""Words in the names of outputs that are one number per class."""
_VECTORS = ("embed", "feat", "hidden", "pool", "latent", "vector", "repr", "token", "encod")
"""Words in the names of outputs that are a place in a space."""
_WEIGHTS = ("attention", "attn", "alignment")
"""Words in the names of outputs that say how much is taken from where."""
_SPACE = 32
"""Spaces have dimensions in multiples of it; sets of classes rarely do."""
_FEWEST_CLASSES = 10
_SUM_SLACK = 1e-2
"""How far a row of probabilities may be from 1: FP16 and BF16 outputs round every class."""


class _Hint(NamedTuple):
    """A remark on an output.

    Attributes:
        metric: The built-in metric that fits; None where none does.
        what: What it looks like.
        seen: Its shape, and what else tells it.
        advice: What to do, a clause; `{it}` stands for the outputs.
        by_shape: Whether nothing but the shape speaks for it.
    """

    metric: str | None
    what: str
    seen: str
    advice: str
    by_shape: bool = False


_BY_CLASS = "if only the predicted class matters, judge {it} with --metric top1"


def criterion_hints(criterion: Criterion, references: Sequence[Outputs]) -> tuple[str, ...]:
    """Return one sentence for every output, or set of outputs, that the default may misjudge.

    Looks for, in this order: integers and Booleans (judged by agreement); boxes next to scores, in
    one output or in two (a detection metric); class probabilities and logits (top1); single-channel
    maps in [0, 1] (mask-iou); two-channel maps (epe). Outputs of which the same is to be
    said share a sentence. Non-finite values match nothing that is told by its values; outputs with
    NaN and constants match nothing. Logits are told from embeddings by the output's name; without a
    telling name, rows of equal length, or of a multiple of 32 numbers, may be either, and nothing
    is said.

    Args:
        criterion: As the user gave it, before `effective`.
        references: FP32 outputs by sample; the first eight are looked at. May be empty.

    Returns:
        Sentences in the order of the outputs. With a metric there are none; with thresholds but
        `rel_max` one for each output whose slices have several scales.
    """
    if not len(references):
        return ()
    if not is_default(criterion):
        return _scale_hints(criterion, references)
    seen = {name: _looked_at(references, name) for name in references[0]}
    integers = [name for name, arrays in seen.items() if is_discrete(arrays[0].dtype)]
    floats = _floats(seen)
    found = [_integer_hint(name, criterion.agreement) for name in integers]
    detection = _detection_hint(floats)
    if detection:
        return (*found, detection)
    return (*found, *_merged(_float_hints(floats)))


def verdict_hints(criterion: Criterion, references: Sequence[Outputs]) -> tuple[str, ...]:
    """Return `unvarying_hint` and `criterion_hints`."""
    return (*unvarying_hint(criterion, references), *criterion_hints(criterion, references))


def fitting_metric(criterion: Criterion, references: Sequence[Outputs]) -> str | None:
    """Return the built-in metric that an output looks made for, as `criterion_hints` sees it.

    None where the user gave a metric, and where nothing built in fits.
    """
    if criterion.metric is not None or not len(references):
        return None
    floats = _floats({name: _looked_at(references, name) for name in references[0]})
    if _detection_hint(floats):
        return None
    return next((hint.metric for hint in _float_hints(floats).values() if hint.metric), None)


def _floats(
    seen: Mapping[str, Sequence[NDArray[Any]]],
) -> dict[str, list[NDArray[np.float64]]]:
    """Return the float outputs that have elements, widened; but for weights of attention."""
    return {
        name: [array.astype(np.float64) for array in arrays if array.size]
        for name, arrays in seen.items()
        if not is_discrete(arrays[0].dtype)
        and any(array.size for array in arrays)
        and not any(word in name.lower() for word in _WEIGHTS)
    }


def _looked_at(references: Sequence[Outputs], name: str) -> list[NDArray[Any]]:
    count = min(_LOOKED_AT, len(references))
    return [references[index][name] for index in range(count)]


def _integer_hint(name: str, agreement: float) -> str:
    return (
        f"Output {name!r} does not hold floats, so at least {number(agreement, 4)} of its "
        "elements must "
        "equal the reference's; --agreement sets another fraction."
    )


def _detection_hint(floats: Mapping[str, Sequence[NDArray[np.float64]]]) -> str | None:
    advice = (
        "whose order and near-ties may change without harm: judge them by a detection metric of "
        "yours with --metric file.py:function."
    )
    for name, arrays in floats.items():
        if all(map(_is_boxes_with_scores, arrays)):
            largest = max(float(np.abs(array).max()) for array in arrays)
            boxes = f"Output {name!r} looks like boxes joined with scores ({_shape(arrays[0])})"
            ((_, total),) = totals([{name: array} for array in arrays]).items()
            apart = [group for group in total.groups if group.axis is not None]
            if not apart:
                return (
                    f"{boxes}: the default tolerance, {percent(DEFAULT_REL_MAX)} of an output's "
                    "largest "
                    f"value, goes by the boxes (up to {number(largest, 4)}), so every score may "
                    "be off by "
                    f"about {number(DEFAULT_REL_MAX * largest)}. Judge them by a detection "
                    "metric of "
                    "yours with --metric file.py:function, or set what both may be off with "
                    "--max-abs."
                )
            return (
                f"{boxes}: the default tolerance, {percent(DEFAULT_REL_MAX)} of the largest "
                "value, goes "
                f"by the scores (up to {number(apart[0].largest)}) for scores and by the boxes "
                "(up to "
                f"{number(largest, 4)}) for boxes, {advice}"
            )
        for other, scores in floats.items():
            if other != name and all(map(_are_boxes_and_scores, arrays, scores)):
                return f"Outputs {name!r} and {other!r} look like boxes and scores, {advice}"
    return None


def _scale_hints(criterion: Criterion, references: Sequence[Outputs]) -> tuple[str, ...]:
    """Return a sentence for each output whose small values the thresholds do not see."""
    if criterion.metric is not None or criterion.rel_max is not None:
        return ()
    options = {"--snr-db": criterion.snr_db, "--cosine": criterion.cosine}
    given = [option for option, value in options.items() if value is not None]
    if not given:
        return ()
    looked_at = [references[index] for index in range(min(_LOOKED_AT, len(references)))]
    found = []
    for name, total in totals(looked_at).items():
        small = [g for g in total.groups if g.axis is not None and g.largest < total.absmax]
        if small:
            least = min(small, key=lambda group: group.largest)
            where = f"slices {runs(least.ranges(), 4)} of axis {least.axis}"
            found.append(
                f"Output {name!r} has values of several scales ({where}"
                f" up to {number(least.largest)}, others up to {number(total.absmax, 4)}), and "
                f"{' and '.join(given)} by the largest: give --rel-max, too, which holds each to "
                "its own."
            )
    return tuple(found)


def _float_hints(floats: Mapping[str, Sequence[NDArray[np.float64]]]) -> dict[str, _Hint]:
    told = {n: _float_hint(n, arrays) for n, arrays in floats.items() if not _tells_nothing(arrays)}
    return {name: hint for name, hint in told.items() if hint is not None}


def _float_hint(name: str, arrays: Sequence[NDArray[np.float64]]) -> _Hint | None:
    shape = _shape(arrays[0])
    if all(map(_is_probabilities, arrays)):
        return _Hint("top1", "class probabilities", f"{shape}, rows sum to 1", _BY_CLASS)
    if _are_logits(name, arrays):
        return _Hint("top1", "class scores", shape, _BY_CLASS)
    if all(map(_is_mask, arrays)):
        return _Hint(
            "mask-iou",
            "a mask",
            f"{shape}, one channel within [0, 1]",
            "if only inside or outside matters, judge {it} with --metric mask-iou",
        )
    if all(map(_is_flow, arrays)):
        return _Hint(
            "epe",
            "optical flow",
            f"{shape}, two channels",
            "if it is one, judge {it} in pixels with --metric epe",
            by_shape=True,
        )
    if all(map(_is_flow, map(_channels_first, arrays))):
        return _Hint(
            None,
            "optical flow in NHWC",
            f"{shape}, two channels last",
            "if it is one, judge {it} in pixels with --metric file.py:function; epe takes NCHW",
            by_shape=True,
        )
    return None


def _tells_nothing(arrays: Sequence[NDArray[np.float64]]) -> bool:
    """Return whether an output holds NaN, or nothing but infinities and one and the same number."""
    if any(np.isnan(array).any() for array in arrays):
        return True
    finite = np.concatenate([array[np.isfinite(array)] for array in arrays])
    return finite.size == 0 or (sum(a.size for a in arrays) > 1 and not np.ptp(finite))


def _merged(found: Mapping[str, _Hint]) -> Iterator[str]:
    """Yield a sentence for all outputs of which the same is to be said."""
    groups: dict[_Hint, list[str]] = {}
    for name, hint in found.items():
        groups.setdefault(hint, []).append(repr(name))
    for hint, names in groups.items():
        outputs = f"{verb(len(names), 'Output', 'Outputs')} {listed(names)}"
        looks = verb(len(names), "looks like", "look like")
        if hint.by_shape:
            looks = verb(len(names), "has the shape of", "have the shape of")
        each = ", each" if len(names) > 1 else ""
        advice = hint.advice.format(it=verb(len(names), "it", "them"))
        yield f"{outputs} {looks} {hint.what} ({hint.seen}{each}): {advice}."


def _shape(array: NDArray[np.float64]) -> str:
    return str(list(array.shape))


def _within_unit(array: NDArray[np.float64]) -> bool:
    return bool(np.all((array >= 0) & (array <= 1)))


def _is_probabilities(array: NDArray[np.float64]) -> bool:
    array = _without_trailing_ones(array)
    if array.ndim == 0 or array.shape[-1] < 2 or not _within_unit(array):
        return False
    if array.ndim > 2 and array.shape[-1] == array.shape[-2]:
        return False  # [..., L, L] is what L places take from each other
    return bool(np.all(np.abs(array.sum(axis=-1) - 1) <= _SUM_SLACK))


def _are_logits(name: str, arrays: Sequence[NDArray[np.float64]]) -> bool:
    """Tell class scores [N, classes] from embeddings [N, dimensions]."""
    rows = [_without_trailing_ones(array) for array in arrays]
    if any(array.ndim != 2 or array.shape[-1] < _FEWEST_CLASSES for array in rows):
        return False
    if any(word in name.lower() for word in _VECTORS):
        return False
    if any(word in name.lower() for word in _CLASSES):
        return True
    if not all(np.isfinite(array).all() for array in rows):
        return False
    lengths = np.concatenate([np.linalg.norm(array, axis=-1) for array in rows])
    mean, other = lengths.mean(), {array.tobytes() for array in rows}
    if abs(mean - 1) <= _SUM_SLACK or (len(other) > 1 and np.ptp(lengths) <= _SUM_SLACK * mean):
        return False
    return bool(rows[0].shape[-1] % _SPACE)


def _channels_first(array: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return NHWC as NCHW; what has not four axes as it is."""
    return np.moveaxis(array, -1, 1) if array.ndim == 4 else array


def _without_trailing_ones(array: NDArray[np.float64]) -> NDArray[np.float64]:
    # Convolutional classifiers give [N, classes, 1, 1]; `top1` reads it the same way.
    while array.ndim > 2 and array.shape[-1] == 1:
        array = array[..., 0]
    return array


def _is_mask(array: NDArray[np.float64]) -> bool:
    return array.ndim == 4 and 1 in (array.shape[1], array.shape[-1]) and _within_unit(array)


def _is_flow(array: NDArray[np.float64]) -> bool:
    is_map = array.ndim == 4 and array.shape[1] == 2 and min(array.shape[2:]) >= 8
    # Two classes per pixel have the same shape, but stay within [0, 1] as probabilities.
    return is_map and not _within_unit(array)


def _is_boxes_with_scores(array: NDArray[np.float64]) -> bool:
    """Tell [B, N, 5 + C] and [B, 4 + C, N] of the YOLO family: pixels first, then a score."""
    if array.ndim != 3:
        return False
    if array.shape[-1] > array.shape[-2]:
        array = array.swapaxes(-1, -2)
    if array.shape[-1] < 5:
        return False
    # Of x, y, w, h as of x, y, x, y the last two are never negative: feature vectors rarely agree.
    in_pixels = bool(np.all(array[..., 2:4] >= 0)) and float(array[..., :4].min(axis=-1).max()) > 2
    return in_pixels and _within_unit(array[..., 4])


def _are_boxes_and_scores(boxes: NDArray[np.float64], scores: NDArray[np.float64]) -> bool:
    """Tell [*, N, 4] next to [*, N] or [B, N, C]: scores in [0, 1], or logits and boxes in it."""
    if boxes.ndim < 2 or boxes.shape[-1] != 4:
        return False
    rows = boxes.shape[:-1]
    one_score = scores.shape == rows
    per_class = boxes.ndim == scores.ndim == 3 and scores.shape[:-1] == rows
    plausible = _within_unit(scores) or _within_unit(boxes)
    return (one_score or per_class) and plausible
