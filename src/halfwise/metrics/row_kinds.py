"""Outputs that are rows of numbers: scores of classes, tokens, embeddings, sound.

- Class scores: rows that sum to 1 or whose exponentials do, a name, or ImageNet's number of
  classes. Not landmarks and other regressions, attention, or multi-label scores.
- Tokens: integers named so, and class scores of a sequence. Not scores of anchors, which accompany
  boxes.
- Embeddings: rows of length 1, or a name. Not a recurrent state, whose scale matters.
- Waveform: thousands of values around 0 along the last axis, and a name or an input of the same
  length. Not a series that drifts or has an offset, or a streaming state.
- Spectrum: a name, or an input of the same shape with 2^k + 1 bins. Not a cache that feeds the next
  call.
"""

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from halfwise.metrics.evidence import (
    SUM_SLACK,
    Look,
    Seen,
    image_sizes,
    sums_to_one,
    whole_numbers,
    within_unit,
)
from halfwise.records import Evidence

_CLASSES = ("logit", "prob", "score", "class", "cls", "softmax", "pred")
"""Words in the names of outputs with one number per class."""
_VECTORS = ("embed", "feat", "hidden", "pool", "latent", "vector", "repr", "token", "encod")
"""Words in the names of embeddings."""
_SURELY_VECTORS = ("embed", "hidden", "pooled", "pooler", "latent", "representation")
_TOKENS = ("token", "sequence", "ids")
_SPACE = 32
"""Embeddings have dimensions in multiples of it; sets of classes rarely do."""
_FEWEST_DIMENSIONS = 16
"""Fewest dimensions of an embedding: quaternions and directions have length 1 as well."""
_FEWEST_CLASSES = 10
_SURELY = ("logit", "prob", "class", "cls", "softmax", "token")
_ALIKE = 0.8
"""Least correlation of numbers with their neighbours in a series; ImageNet's classes, with breeds
of dogs as neighbours, have less."""
_FEWEST_ROWS = 8
_KNOWN_COUNTS = (1000, 1001, 21841, 21843)
"""Class counts of ImageNet-1k and ImageNet-21k, without and with a background class: of images."""


def class_scores(seen: Seen) -> Look | None:
    """Recognise probabilities and logits; those of a sequence are tokens."""
    if seen.discrete:
        return None
    rows = seen.rows()
    if all(map(_are_probabilities, rows)):
        if rows[0].ndim > 2:
            taken = _is_length_of_input(seen, rows[0].shape[-1]) and not seen.called(*_SURELY)
            shown = rows[0].ndim == 3 and not taken and not _are_of_anchors(seen)
            return seen.look("tokens", ("rows-sum",), shown=shown)
        # A few one-hot rows may be anything.
        whole = whole_numbers(rows)
        few = sum(array.size // array.shape[-1] for array in rows) < _FEWEST_ROWS
        shown = not (whole and few) and not _are_shares(seen, rows)
        return seen.look("class-scores", ("rows-sum",), shown=shown)
    if all(array.ndim == 3 and array.shape[-1] >= _FEWEST_CLASSES for array in rows):
        evidence = tuple(_of_logits(seen, rows))
        if evidence and not _are_of_anchors(seen):
            return seen.look("tokens", evidence, shown=True)
    if not _may_be_logits(seen, rows):
        return None
    evidence = tuple(_of_logits(seen, rows))
    return seen.look("class-scores", evidence, shown=bool(evidence))


def token_ids(seen: Seen) -> Look | None:
    """Recognise token ids by their name."""
    fits = seen.discrete and len(seen.shape) in (1, 2, 3) and seen.called(*_TOKENS)
    return seen.look("tokens", ("by-name",), shown=True) if fits else None


def embeddings(seen: Seen) -> Look | None:
    """Recognise vectors [*, dimensions] whose direction matters."""
    rows = seen.rows()
    if seen.discrete or seen.is_state:
        return None
    if any(a.ndim not in (2, 3) or a.shape[-1] < _FEWEST_DIMENSIONS for a in rows):
        return None
    if not all(np.isfinite(array).all() for array in rows) or any(map(within_unit, rows)):
        return None
    lengths = np.concatenate([np.linalg.norm(a, axis=-1).ravel() for a in rows])
    unit: tuple[Evidence, ...] = ()
    if np.all(np.abs(lengths - 1) <= SUM_SLACK):
        unit = ("unit-length",)
    named: tuple[Evidence, ...] = ("by-name",) if seen.called(*_SURELY_VECTORS) else ()
    if named and seen.shape in seen.inputs.values():
        named = ()
    return seen.look("embedding", (*unit, *named), shown=True) if unit or named else None


def _are_probabilities(array: NDArray[np.float64]) -> bool:
    if array.ndim == 0 or array.shape[-1] < 2:
        return False
    if array.ndim > 2 and array.shape[-1] == array.shape[-2]:
        return False  # [..., L, L]: attention among L positions
    return sums_to_one(array, -1)


def _are_shares(seen: Seen, rows: list[NDArray[np.float64]]) -> bool:
    """Return whether rows sum to 1 but are no choice: bins of an axis, state transitions."""
    if seen.called(*_SURELY):
        return False
    square = rows[0].ndim == 2 and rows[0].shape[0] == rows[0].shape[1] > 2
    return square or _is_series(rows)


def _is_series(rows: list[NDArray[np.float64]]) -> bool:
    """Return whether numbers correlate with those 1 to 3 places on, unlike scores of classes.

    Coordinates of points in two or three dimensions correlate with those of the next point.
    """
    each = np.concatenate([array.reshape(-1, array.shape[-1]) for array in rows])
    if each.shape[-1] < _FEWEST_DIMENSIONS or not np.isfinite(each).all():
        return False
    return any(_goes_with(each, step) for step in (1, 2, 3))


def _goes_with(rows: NDArray[np.float64], step: int) -> bool:
    one, other = (
        part - part.mean(axis=1, keepdims=True) for part in (rows[:, step:], rows[:, :-step])
    )
    length = np.sqrt((one**2).sum(axis=1) * (other**2).sum(axis=1))
    return bool(
        np.median(np.divide((one * other).sum(axis=1), length, out=0 * length, where=length > 0))
        >= _ALIKE
    )


def _is_length_of_input(seen: Seen, length: int) -> bool:
    """Return whether rows are as long as an axis of an input, like attention over its positions."""
    return any(length in shape[1:] for shape in seen.inputs.values() if len(shape) < 4)


def _are_of_anchors(seen: Seen) -> bool:
    """Return whether another output has four numbers per row: boxes to be decoded."""
    two = seen.shape[:2]
    return any(shape[:2] == two and shape[-1] == 4 for shape in seen.beside.values())


def _may_be_logits(seen: Seen, rows: list[NDArray[np.float64]]) -> bool:
    """Distinguish class scores [N, classes] from embeddings [N, dimensions]."""
    if any(array.ndim != 2 or array.shape[-1] < _FEWEST_CLASSES for array in rows):
        return False
    if seen.mentions(*_VECTORS):
        return False
    if seen.mentions(*_CLASSES):
        return True
    steps = len(seen.shape) == 3  # [N, steps, 1]: a number for each step, of no class
    if steps or not all(np.isfinite(array).all() for array in rows):
        return False
    lengths = np.concatenate([np.linalg.norm(array, axis=-1) for array in rows])
    mean, other = lengths.mean(), {array.tobytes() for array in rows}
    if abs(mean - 1) <= SUM_SLACK or (len(other) > 1 and np.ptp(lengths) <= SUM_SLACK * mean):
        return False
    return bool(rows[0].shape[-1] % _SPACE) and not _is_series(rows)


def _of_logits(seen: Seen, rows: list[NDArray[np.float64]]) -> Iterator[Evidence]:
    """Yield the evidence for logits: scores within [0, 1] may be multi-label."""
    if all(map(within_unit, rows)):
        return
    if seen.called("logit"):
        yield "by-name"
    known = rows[0].ndim == 2 and rows[0].shape[-1] in _KNOWN_COUNTS
    if known and image_sizes(seen.inputs) and not _is_series(rows):
        yield "known-count"
    with np.errstate(over="ignore", invalid="ignore"):
        sums = [np.abs(np.exp(array).sum(axis=-1) - 1) <= SUM_SLACK for array in rows]
    if all(array.all() for array in sums):
        yield "log-sum"


_SOUNDS = ("audio", "wav", "speech", "enhanced", "signal", "voice")
"""Words in the names of waveforms."""
_SPECTRA = ("spec", "mel", "stft")
"""Words in the names of spectra."""
_FEWEST_NAMED, _FEWEST = 100, 4000
"""Fewest values of a waveform, with and without a telling name: 4000 last 0.25 s at 16 kHz."""
_MOST_CHANNELS = 8
_EARS = 2
"""Most channels of a sound input; points have three coordinates."""
_CENTRED = 0.1
"""Largest mean of a waveform, over its standard deviation."""
BINS = frozenset(2**k + 1 for k in range(6, 13))
"""Bins of a spectrum of 2^(k + 1) samples."""


def waveform(seen: Seen) -> Look | None:
    """Recognise signals [*, time]."""
    if seen.discrete or seen.is_state:
        return None
    rows = seen.rows()
    length = rows[0].shape[-1] if rows[0].ndim else 0
    channels = int(np.prod(rows[0].shape[1:-1]))
    if rows[0].ndim > 3 or channels > _MOST_CHANNELS or length < _FEWEST_NAMED:
        return None
    if not all(np.isfinite(array).all() for array in rows):
        return None
    values = np.concatenate([array.ravel() for array in rows])
    if abs(values.mean()) > _CENTRED * values.std() or values.min() >= 0:
        return None
    evidence: list[Evidence] = ["by-name"] if seen.called(*_SOUNDS) else []
    if length >= _FEWEST and any(_is_signal(s, length) for s in seen.inputs.values()):
        evidence.append("length-of-input")
    return seen.look("waveform", ("around-zero", *evidence), shown=True) if evidence else None


def _is_signal(shape: tuple[int, ...], length: int) -> bool:
    """Return whether an input has one or two channels of that length: not points in space."""
    return length in shape and math.prod(n for n in shape[1:] if n != length) <= _EARS


def spectrum(seen: Seen) -> Look | None:
    """Recognise spectra, in any order of axes."""
    if seen.discrete or seen.is_state or len(seen.shape) < 3:
        return None
    if not all(np.isfinite(array).all() for array in seen.arrays):
        return None
    evidence: list[Evidence] = ["by-name"] if seen.called(*_SPECTRA) else []
    if seen.shape in seen.inputs.values() and not BINS.isdisjoint(seen.shape[1:]):
        evidence.append("bins")
    return seen.look("spectrum", tuple(evidence), shown=True) if evidence else None
