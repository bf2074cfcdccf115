"""Recognise the pair of normalisations behind per-channel gains and offsets.

Sources: torchvision's and timm's presets (ImageNet; 0.5; CLIP of OpenAI), Caffe's means of
ILSVRC 2012, Keras' `imagenet_utils` modes "tf", "torch" and "caffe".
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from halfwise.records import DifferenceKind, InputDifference
from halfwise.records.diagnosis import difference
from halfwise.wording import number

Part = Literal["scale", "mean", "deviation"]
Own = Literal["moments", "range"]
"""Per-image normalisation: by its own mean and deviation, or by its own range."""
Triple = tuple[float, float, float]
Array = NDArray[np.float64]

SLACK = 0.004
"""Slack in gain, and in offset over the range 0 to 255, for aligned pixels: a level is 0.0039."""
FINE_SLACK = 2e-4
"""The same if only float rounding is left."""
ROUGH_SLACK = 0.012
"""The same if images were resampled differently."""
_PLAUSIBLE = (-40.0, 295.0)
"""Range of an image from 0 to 255 with a cubic kernel's overshoot."""
_SMALLEST_RANGE = 24.0
_LIKELY_RANGE = 128.0


@dataclass(frozen=True)
class Normalisation:
    """value = (pixel · scale − mean) / deviation, with pixels from 0 to 255.

    Attributes:
        name: Usual name.
        scale: Factor of the pixels.
        mean: By channel in RGB order, in scaled units.
        deviation: Likewise.
    """

    name: str
    scale: float
    mean: Triple = (0.0, 0.0, 0.0)
    deviation: Triple = (1.0, 1.0, 1.0)

    def line(self, count: int) -> tuple[Array, Array]:
        """Return gain and offset from pixels to values for `count` channels (1, 3 or 4)."""
        places = [0, 1, 2] if count == 3 else [i % 3 for i in range(count)]
        mean, deviation = np.array(self.mean)[places], np.array(self.deviation)[places]
        return self.scale / deviation, -mean / deviation

    def reversed(self) -> "Normalisation":
        """Return the same with its constants in BGR order."""
        return Normalisation(
            f"{self.name} in BGR order", self.scale, self.mean[::-1], self.deviation[::-1]
        )

    def parts(self, other: "Normalisation") -> tuple[Part, ...]:
        """Return the parts in which two differ."""
        found: list[Part] = []
        if not np.isclose(self.scale, other.scale, rtol=1e-3):
            found.append("scale")
        if not np.allclose(np.array(self.mean), np.array(other.mean), atol=1e-4):
            found.append("mean")
        if not np.allclose(self.deviation, other.deviation, rtol=1e-3):
            found.append("deviation")
        return tuple(found)


_BYTE = 1 / 255
_MEANS: tuple[tuple[str, Triple], ...] = (
    ("no mean", (0.0, 0.0, 0.0)),
    ("ImageNet's mean", (0.485, 0.456, 0.406)),
    ("mean 0.5", (0.5, 0.5, 0.5)),
    ("CLIP's mean", (0.48145466, 0.4578275, 0.40821073)),
)
_DEVIATIONS: tuple[tuple[str, Triple], ...] = (
    ("no deviation", (1.0, 1.0, 1.0)),
    ("ImageNet's deviation", (0.229, 0.224, 0.225)),
    ("deviation 0.5", (0.5, 0.5, 0.5)),
    ("CLIP's deviation", (0.26862954, 0.26130258, 0.27577711)),
)
_COMBINED = tuple(
    Normalisation(f"scaled by 1/255, {mean}, {deviation}", _BYTE, means, deviations)
    for (mean, means), (deviation, deviations) in product(_MEANS, _DEVIATIONS)
)
_RGB = (
    Normalisation("pixels from 0 to 255", 1.0),
    *_COMBINED,
    Normalisation("Caffe's mean, no scale", 1.0, (123.68, 116.779, 103.939)),
    Normalisation("(x − 127.5)/128", 1.0, (127.5,) * 3, (128.0,) * 3),
    Normalisation("mean 128, no scale", 1.0, (128.0,) * 3),
    Normalisation("mean 127.5, no scale", 1.0, (127.5,) * 3),
    Normalisation("scaled by 1/256", 1 / 256),
    Normalisation("scaled by 1/128", 1 / 128),
    Normalisation("scaled by 1/255 twice", _BYTE**2),
    *(
        Normalisation(n.name.replace("scaled by 1/255", "not scaled"), 1.0, n.mean, n.deviation)
        for n in _COMBINED[1:]
    ),
)


def _both_orders(some: Sequence[Normalisation]) -> tuple[Normalisation, ...]:
    uneven = (n for n in some if len(set(n.mean)) > 1 or len(set(n.deviation)) > 1)
    return (*some, *(n.reversed() for n in uneven))


KNOWN = _both_orders(_RGB)
_OF_ONE_SOURCE = {
    pair
    for (_, m), (_, d) in zip(_MEANS, _DEVIATIONS, strict=True)
    for pair in ((m, d), (m[::-1], d[::-1]))
}
_USUAL = _both_orders(
    [
        n
        for n in _RGB
        if (n.mean, n.deviation) in _OF_ONE_SOURCE
        or max(n.mean) > 1
        or (n.scale == _BYTE and (not any(n.mean) or set(n.deviation) == {1.0}))
    ]
)
"""Mean and deviation of one source, or only one of them."""


@dataclass(frozen=True)
class Recognised:
    """The two normalisations of a pair.

    Attributes:
        a: A's, in the order of A's channels.
        b: B's, in the order of B's channels.
        gain: Exact gains from A to B, by channel of B.
        offset: Exact offsets, likewise.
        level: One of 255 levels in B's unit, by channel of B.
    """

    a: Normalisation
    b: Normalisation
    gain: tuple[float, ...]
    offset: tuple[float, ...]
    level: tuple[float, ...]

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts that differ; empty if both are the same in their own channel order."""
        return self.a.parts(self.b)


def recognise(
    channels: Sequence[int],
    gain: Sequence[float],
    offset: Sequence[float],
    lowest: float,
    highest: float,
    slack: float = SLACK,
) -> Recognised | None:
    """Return the pair of known normalisations that best explains gains and offsets, if any.

    Args:
        channels: The channel of A for each of B.
        gain: b = gain · a + offset, by channel of B.
        offset: Likewise.
        lowest: Smallest value of A; tells pixels from scaled pixels.
        highest: Largest value of A.
        slack: How far gains (relative) and offsets (as a part of 255 levels) may be off.
    """
    best: tuple[float, Recognised] | None = None
    for a, b in product(_plausible(KNOWN, lowest, highest, len(channels)), KNOWN):
        pair = _between(a, b, channels)
        off_gain = np.abs(np.array(gain) / np.array(pair.gain) - 1).max() / slack
        off = (np.array(offset) - np.array(pair.offset)) / (255 * np.array(pair.level))
        worst = float(max(off_gain, np.abs(off).max() / slack))
        if worst > 1:
            continue
        # Among about equal fits, prefer the usual ones with the fewest differences.
        cost = worst + _cost(pair)
        if best is None or cost < best[0]:
            best = (cost, pair)
    return best[1] if best else None


def usual_pairs(channels: Sequence[int], lowest: float, highest: float) -> list[Recognised]:
    """Return pairs that may lead from A to an unknown B, likeliest first.

    Pairs of usual normalisations (mean and deviation of one source, or only one of them) whose
    first could have made A; for equal gains and offsets, only the likeliest. Identities are left
    out.

    Args:
        channels: The channel of A for each of B.
        lowest: Smallest value of A.
        highest: Largest value of A.
    """
    made = list(_plausible(_USUAL, lowest, highest, len(channels), _LIKELY_RANGE))
    made = made or list(_plausible(_USUAL, lowest, highest, len(channels)))
    pairs = (_between(a, b, channels) for a, b in product(made, _USUAL) if _is_likely(a, b))
    found: dict[tuple[float, ...], Recognised] = {}
    for pair in sorted(pairs, key=_cost):
        line = (*pair.gain, *pair.offset)
        if line != (*(1.0 for _ in channels), *(0.0 for _ in channels)):
            found.setdefault(tuple(float(f"{number:.5g}") for number in line), pair)
    return list(found.values())


def _is_likely(a: Normalisation, b: Normalisation) -> bool:
    """Return whether both are whole normalisations, or differ in only one part."""
    whole = all((n.mean, n.deviation) in _OF_ONE_SOURCE or max(n.mean) > 1 for n in (a, b))
    return whole or (
        (a.mean == b.mean or not any(a.mean) or not any(b.mean))
        and (a.deviation == b.deviation or {1.0} in (set(a.deviation), set(b.deviation)))
    )


def _between(a: Normalisation, b: Normalisation, channels: Sequence[int]) -> Recognised:
    """Return the pair with the gains and offsets that lead from one to the other."""
    (gain_a, offset_a), (gain_b, offset_b) = a.line(len(channels)), b.line(len(channels))
    gain = gain_b / gain_a[list(channels)]
    offset = offset_b - gain * offset_a[list(channels)]
    return Recognised(a, b, *(tuple(map(float, x)) for x in (gain, offset, gain_b)))


def _cost(pair: Recognised) -> float:
    return 0.5 * len(pair.parts) + 0.02 * (KNOWN.index(pair.a) + KNOWN.index(pair.b))


def _plausible(
    among: Sequence[Normalisation],
    lowest: float,
    highest: float,
    count: int,
    least: float = _SMALLEST_RANGE,
) -> Iterator[Normalisation]:
    """Yield those that map pixels `least` levels apart to values from `lowest` to `highest`."""
    for a in among:
        gain, offset = a.line(count)
        low, high = ((lowest - offset) / gain).max(), ((highest - offset) / gain).min()
        if low < _PLAUSIBLE[0] or high > _PLAUSIBLE[1] or high - low < least:
            continue
        yield a


def normalisation_differences(
    gain: Sequence[float], offset: Sequence[float], recognised: Recognised | None
) -> list[InputDifference]:
    """Describe how B is normalised differently; empty for gains of 1 and offsets of 0."""
    evidence = f"B = {_row(gain)} · A + {_row(offset)}"
    if recognised is not None:
        a, b = recognised.a, recognised.b
        first = recognised.parts[0] if recognised.parts else None
        has = f"; B's normalisation: {b.name}"  # all parts of it, so once
        words = {
            "scale": (
                f"B is {b.name}, A {a.name}",
                f"pixels × {number(a.scale, 4)}",
                f"× {number(b.scale, 4)}",
            ),
            "mean": (
                f"The subtracted mean differs{has * (first == 'mean')}",
                _row(a.mean),
                _row(b.mean),
            ),
            "deviation": (
                f"The divisor differs{has * (first == 'deviation')}",
                _row(a.deviation),
                _row(b.deviation),
            ),
        }
        return [
            difference(
                part,
                f"{words[part][0]}.",
                words[part][1],
                words[part][2],
                evidence * (part == first),
            )
            for part in recognised.parts
        ]
    level = max(abs(g) for g in gain)
    scaled = max(abs(g - 1) for g in gain) > 0.005
    moved = max(abs(o) for o in offset) > 0.005 * level
    even = max(gain) - min(gain) < 0.01 * level
    found = []
    if scaled:
        kind: DifferenceKind = "scale" if even else "deviation"
        found.append(
            difference(kind, f"B's values are {_row(gain)} times A's.", "1", _row(gain), evidence)
        )
    if moved:
        found.append(
            difference(
                "mean", f"B's values are offset by {_row(offset)}.", "0", _row(offset), evidence
            )
        )
    return found


_OWN: dict[Own | None, str] = {
    "moments": "by each image's own mean and deviation",
    "range": "by each image's own smallest and largest value",
    None: "by fixed numbers",
}


def own_difference(a: Own | None, b: Own | None) -> InputDifference:
    """Describe a difference in per-image normalisation; None: not normalised per image."""
    names = [_OWN[how] for how in (a, b)]
    return difference(
        "normalisation", f"B is normalised {names[1]}, A {names[0]}.", names[0], names[1]
    )


def _row(values: Sequence[float]) -> str:
    numbers = [number(value, 4) for value in values]
    return numbers[0] if len(set(numbers)) == 1 else f"({', '.join(numbers)})"
