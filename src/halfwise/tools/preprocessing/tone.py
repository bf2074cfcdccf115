"""How A's values become B's: channels, normalisation, rounding and clipping."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from halfwise.records import InputDifference
from halfwise.records.diagnosis import difference
from halfwise.tools.preprocessing.normalisation import (
    FINE_SLACK,
    ROUGH_SLACK,
    SLACK,
    Own,
    Recognised,
    normalisation_differences,
    own_difference,
    recognise,
)
from halfwise.tools.preprocessing.photometry import (
    Photometry,
    channel_difference,
    clipped,
    is_8_bit,
    is_half,
    is_half_of,
    limits,
    photometry,
)
from halfwise.tools.preprocessing.program import Program
from halfwise.tools.preprocessing.registration import BLUR
from halfwise.wording import number

Array = NDArray[np.float64]

EXPLAINED = 0.06
"""Residual in levels of 255 that counts as explained: FP16's largest error after ImageNet's
normalisation; float32's is a thousandth."""
_FLOAT = 1e-3
"""Error, in levels, from float32 arithmetic in another order."""
_ROUNDED = 1.6
"""Levels between two results rounded at different steps."""
_HALF_LEVEL = 0.2
"""Levels between means: truncation lowers the mean by half a level, rounding does not."""
_OWN = 2e-3
_UNEVEN = 0.03
_FINE = 1e-4


@dataclass
class Tone:
    """How A's values become B's.

    Attributes:
        fit: Channel order, gains and offsets: maps A to B, neither rounded nor clipped.
        recognised: The normalisations, if known ones.
        level: One of 255 levels in B's unit, by channel of B.
        given: Channels of A.
        differences: Differences, in pipeline order.
        explained: Whether only float rounding is left.
        own: B's per-image normalisation; None without one.
        floored: Whether B's bytes are truncated rather than rounded.
        rounded: Whether only B's values lie on 256 levels.
        clipped: B's smallest and largest value by channel, if it clips A's.
    """

    fit: Photometry
    recognised: Recognised | None
    level: tuple[float, ...]
    given: int
    differences: list[InputDifference]
    explained: bool = False
    own: Own | None = None
    floored: bool = False
    rounded: bool = False
    clipped: tuple[Array, Array] | None = None

    def write(self, program: Program) -> None:
        """Add the steps to a program."""
        if self.own:
            program.own(self.own)
        if self.fit.channels != tuple(range(self.given)):
            program.channels(self.fit.channels)
        gain, offset = self.fit.gain, self.fit.offset
        if any(g != 1 for g in gain) or any(offset):
            program.affine(gain, offset)
        if self.rounded or self.floored:
            zero = self.recognised.b.line(len(self.level))[1] if self.recognised else offset
            program.quantise(self.level, list(zero), "floor" if self.floored else "round")
        if self.clipped is not None:
            program.clip(*(list(each) for each in self.clipped))


def tone_of(a: Sequence[Array], b: Sequence[Array], *, exact: bool) -> Tone:
    """Return how A's values become B's in aligned images.

    Args:
        a: f64[c, h, w] each.
        b: f64[c', h, w] each, equally many.
        exact: Whether they match pixel on pixel and differ only in values; otherwise both are
            blurred first, and rounding and clipping are not checked.
    """
    own, own_a = (_own(b), _own(a)) if _uneven(a, b) else (None, None)
    found: list[InputDifference] = []
    if own != own_a:
        found.append(own_difference(own_a, own))
        normed = own or own_a
        a = a if own_a or normed is None else [_normed(image, normed) for image in a]
        b = b if own or normed is None else [_normed(image, normed) for image in b]
    fit = photometry(a, b, 0.0 if exact else BLUR)
    slack = (FINE_SLACK if fit.misfit < _FINE else SLACK) if exact else ROUGH_SLACK
    fit, recognised, level = _named(fit, a, b, slack, known=not (own or own_a))
    tone = Tone(fit, recognised, level, len(a[0]), found, own=own if own != own_a else None)
    if fit.channels != tuple(range(len(a[0]))):
        found.append(channel_difference(fit.channels, len(a[0])))
    found += normalisation_differences(fit.gain, fit.offset, recognised)
    if exact:
        _values(tone, a, b)
    return tone


def _named(
    fit: Photometry, a: Sequence[Array], b: Sequence[Array], slack: float, *, known: bool
) -> tuple[Photometry, Recognised | None, tuple[float, ...]]:
    """Replace measured numbers by exact ones, if known."""
    low, high = limits(a)
    spread = np.ptp(np.stack(limits(b)), axis=0)
    level = tuple(float(s) / 255 or 1.0 for s in spread)
    gain, offset = np.array(fit.gain), np.array(fit.offset)
    if (
        np.abs(gain - 1).max() <= slack / 2
        and np.abs(offset / (255 * np.array(level))).max() <= slack
    ):
        gain, offset = np.ones_like(gain), np.zeros_like(offset)
        known_level = _level_of(float(low.min()), float(high.max()))
        level = level if known_level is None else tuple(known_level for _ in level)
        return Photometry(fit.channels, tuple(gain), tuple(offset), fit.misfit), None, level
    if not known or len(a[0]) != len(b[0]):
        return fit, None, level
    recognised = recognise(
        fit.channels, fit.gain, fit.offset, float(low.min()), float(high.max()), slack
    )
    if recognised is None:
        return fit, None, level
    exact = Photometry(fit.channels, recognised.gain, recognised.offset, fit.misfit)
    return exact, recognised, recognised.level


def _level_of(low: float, high: float) -> float | None:
    """Return one level of pixels, or of pixels scaled by 1/255; None for other ranges."""
    if low >= 0 and 24 < high <= 255:
        return 1.0
    return 1 / 255 if low >= 0 and 0.1 < high <= 1 else None


def _values(tone: Tone, a: Sequence[Array], b: Sequence[Array]) -> None:
    """Look for clipping, FP16, and rounding to 8 bits."""
    level = np.array(tone.level)
    mapped = [tone.fit(image) for image in a]
    for wide, narrow, cuts in ((mapped, b, "B"), (b, mapped, "A")):
        if number := clipped(wide, narrow, level):
            low, high = limits(narrow)
            cut = [np.clip(image, low[:, None, None], high[:, None, None]) for image in wide]
            tone.differences.append(_cut_off(cuts, f"{number} values"))
            if cuts == "B":
                tone.clipped, mapped = (low, high), cut
            else:
                b = cut
            break
    left = np.concatenate(
        [((y - x) / level[:, None, None]).ravel() for x, y in zip(mapped, b, strict=True)]
    )
    tone.explained = bool(np.abs(left).max(initial=0) <= EXPLAINED)
    tone.differences += _rounding(tone, mapped, b, left, (is_8_bit(a), is_8_bit(b)))


def _rounding(
    tone: Tone,
    mapped: Sequence[Array],
    b: Sequence[Array],
    left: Array,
    on_levels: tuple[bool, bool],
) -> list[InputDifference]:
    stacked = [np.concatenate([image.ravel() for image in images]) for images in (mapped, b)]
    most = float(np.abs(left).max(initial=0))
    if most <= _FLOAT:
        return []
    evidence = f"{number(most)} of 255 levels at most, {number(left.mean())} on average"
    names: tuple[str, str] | None = None
    if is_half_of(stacked[0], stacked[1]):
        names = ("not rounded", "rounded to FP16")
    elif is_half_of(stacked[1], stacked[0]):
        names = ("rounded to FP16", "not rounded")
    elif not tone.explained and np.percentile(np.abs(left), 99.9) <= _ROUNDED:
        tone.explained = True
        names = _to_bytes(tone, left, on_levels)
    if names is None:
        return []
    sentence = f"Values are {names[1]} in B, {names[0]} in A."
    return [difference("rounding", sentence, *names, evidence)]


def _to_bytes(tone: Tone, left: Array, on_levels: tuple[bool, bool]) -> tuple[str, str] | None:
    """Return how A and B become bytes, None if the same way."""
    from_a, to_b = on_levels
    if to_b and not from_a:
        tone.floored = bool(np.percentile(left, 99) < 0.1)
        tone.rounded = not tone.floored
        return "not rounded", "truncated to 8 bits" if tone.floored else "rounded to 8 bits"
    if from_a and not to_b:
        return "rounded to 8 bits", "not rounded"
    if from_a and to_b and abs(left.mean()) > _HALF_LEVEL:
        names = "rounded to 8 bits", "truncated to 8 bits"
        return names if left.mean() < 0 else names[::-1]
    return None


def _uneven(a: Sequence[Array], b: Sequence[Array]) -> bool:
    """Return whether no single gain leads from A to B: it varies by 3 % between samples."""
    gains = [photometry([x], [y], BLUR).gain[0] for x, y in zip(a, b, strict=True)]
    return bool(np.ptp(gains) > _UNEVEN * abs(float(np.median(gains))))


def _own(images: Sequence[Array]) -> Own | None:
    """Return the per-image normalisation; None without one."""
    if len(images) < 2:
        return None
    if all(abs(i.mean()) < _OWN and abs(i.std() - 1) < _OWN for i in images):
        return "moments"
    if all(i.min() == 0 and abs(i.max() - 1) < 1e-6 for i in images):
        return "range"
    return None


def _normed(image: Array, how: Own) -> Array:
    moments = how == "moments"
    start, width = (image.mean(), image.std()) if moments else (image.min(), np.ptp(image))
    normed: Array = (image - start) / (width or 1.0)
    return normed


_OTHER = {"A": "B", "B": "A"}
_PILE = 1e-4
_FEWEST = 8


def traces(
    tone: Tone, a: Sequence[Array], b: Sequence[Array], overshoots: tuple[bool, bool] | None
) -> list[InputDifference]:
    """Return rounding and clipping differences of images that were resampled differently.

    Args:
        tone: How A's values become B's.
        a: f64[c, h, w] each, without frames.
        b: Likewise.
        overshoots: Whether A's and B's kernels exceed the range of their input and images were not
            copied pixel by pixel; None if the kernels are unknown: then clipping is not checked,
            because a saturated photo looks clipped.
    """
    found = []
    half = is_half(a), is_half(b)
    bytes_ = is_8_bit(a), is_8_bit(b)
    if half[0] != half[1]:
        who = "B" if half[1] else "A"
        names = ["FP16" if each else "not rounded" for each in half]
        found.append(difference("rounding", f"Only {who} is rounded to FP16.", *names))
    elif bytes_[0] != bytes_[1]:
        who = "B's" if bytes_[1] else "A's"
        names = ["8 bits" if each else "not rounded" for each in bytes_]
        found.append(difference("rounding", f"Only {who} values are rounded to 8 bits.", *names))
    if overshoots == (True, True):
        found += _clipping(tone, a, b)
    return found


def _clipping(tone: Tone, a: Sequence[Array], b: Sequence[Array]) -> list[InputDifference]:
    mapped = [tone.fit(image) for image in a]
    level = np.array(tone.level)
    for wide, narrow, cuts in ((mapped, b, "B"), (b, mapped, "A")):
        low, high = (limit[:, None, None] for limit in limits(narrow))
        slack = level[:, None, None]
        beyond = sum(int(((x < low - slack) | (x > high + slack)).sum()) for x in wide)
        piled = np.mean([((y == low) | (y == high)).mean() for y in narrow])
        if beyond >= _FEWEST and piled > _PILE:
            return [_cut_off(cuts, f"{beyond} values of {_OTHER[cuts]} lie beyond the limits")]
    return []


def _cut_off(cuts: str, evidence: str) -> InputDifference:
    """Say that A or B clips what the other keeps."""
    names = {"A": ("cut off", "wider"), "B": ("wider", "cut off")}[cuts]
    sentence = f"{cuts} clips values that {_OTHER[cuts]} keeps."
    return difference("clipping", sentence, *names, evidence)
