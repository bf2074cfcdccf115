"""Names the normalisations that a gain and an offset for each channel lead from and to.

Sources: torchvision's and timm's presets (ImageNet; 0.5; CLIP of OpenAI), Caffe's means of
ILSVRC 2012, Keras' `imagenet_utils` modes "tf", "torch" and "caffe".
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Part = Literal["scale", "mean", "deviation"]
Triple = tuple[float, float, float]
Array = NDArray[np.float64]

SLACK = 0.004
"""Of the gain, and of the whole range 0 to 255, where pixels lie on pixels: a level is 0.0039."""
FINE_SLACK = 2e-4
"""The same where nothing but float rounding is left."""
ROUGH_SLACK = 0.012
"""The same where images were resampled differently."""
_PLAUSIBLE = (-40.0, 295.0)
"""What an image of 0 to 255 holds, with what a cubic kernel adds at edges."""
_SMALLEST_RANGE = 24.0


@dataclass(frozen=True)
class Normalisation:
    """value = (pixel · scale − mean) / deviation, with pixels from 0 to 255.

    Attributes:
        name: What people call it.
        scale: Factor of the pixels.
        mean: By channel in RGB order, in scaled units.
        deviation: Likewise.
    """

    name: str
    scale: float
    mean: Triple = (0.0, 0.0, 0.0)
    deviation: Triple = (1.0, 1.0, 1.0)

    def line(self, count: int) -> tuple[Array, Array]:
        """Return gain and offset from pixels to values, of `count` channels (1, 3 or 4)."""
        places = [0, 1, 2] if count == 3 else [i % 3 for i in range(count)]
        mean, deviation = np.array(self.mean)[places], np.array(self.deviation)[places]
        return self.scale / deviation, -mean / deviation

    def reversed(self) -> "Normalisation":
        """Return the same with its constants in BGR order."""
        return Normalisation(
            f"{self.name} in BGR order", self.scale, self.mean[::-1], self.deviation[::-1]
        )

    def parts(self, other: "Normalisation") -> tuple[Part, ...]:
        """Return what the two differ in."""
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
KNOWN = (*_RGB, *(n.reversed() for n in _RGB if len(set(n.mean)) > 1 or len(set(n.deviation)) > 1))


@dataclass(frozen=True)
class Recognised:
    """The two normalisations of a pair.

    Attributes:
        a: That of A, in the order of A's channels.
        b: That of B, in the order of B's.
        gain: The exact gains that lead from A to B, by channel of B.
        offset: The exact offsets, likewise.
        level: One of 255 levels in B's unit, by channel of B.
    """

    a: Normalisation
    b: Normalisation
    gain: tuple[float, ...]
    offset: tuple[float, ...]
    level: tuple[float, ...]

    @property
    def parts(self) -> tuple[Part, ...]:
        """What differs; nothing where both are the same in their own channel order."""
        return self.a.parts(self.b)


def recognise(
    channels: Sequence[int],
    gain: Sequence[float],
    offset: Sequence[float],
    lowest: float,
    highest: float,
    slack: float = SLACK,
) -> Recognised | None:
    """Return the pair of known normalisations that explains gains and offsets best, if any does.

    Args:
        channels: The channel of A for each of B.
        gain: b = gain · a + offset, by channel of B.
        offset: Likewise.
        lowest: Smallest value of A, which tells pixels from scaled ones.
        highest: Largest value of A.
        slack: How far gains (relative) and offsets (as a part of 255 levels) may be off.
    """
    best: tuple[float, Recognised] | None = None
    for a, b in _pairs(lowest, highest, len(channels)):
        (gain_a, offset_a), (gain_b, offset_b) = a.line(len(channels)), b.line(len(channels))
        from_gain, from_offset = gain_a[list(channels)], offset_a[list(channels)]
        wanted_gain = gain_b / from_gain
        wanted_offset = offset_b - wanted_gain * from_offset
        off_gain = np.abs(np.array(gain) / wanted_gain - 1).max() / slack
        whole = 255 * gain_b
        off_offset = np.abs((np.array(offset) - wanted_offset) / whole).max() / slack
        worst = float(max(off_gain, off_offset))
        if worst > 1:
            continue
        # Of what fits about alike, that which differs in least and is usual comes first.
        cost = worst + 0.5 * len(a.parts(b)) + 0.02 * (KNOWN.index(a) + KNOWN.index(b))
        if best is None or cost < best[0]:
            exact = (tuple(map(float, x)) for x in (wanted_gain, wanted_offset, gain_b))
            best = (cost, Recognised(a, b, *exact))
    return best[1] if best else None


def _pairs(
    lowest: float, highest: float, count: int
) -> Iterator[tuple[Normalisation, Normalisation]]:
    for a in KNOWN:
        gain, offset = a.line(count)
        low, high = ((lowest - offset) / gain).max(), ((highest - offset) / gain).min()
        if low < _PLAUSIBLE[0] or high > _PLAUSIBLE[1] or high - low < _SMALLEST_RANGE:
            continue
        for b in KNOWN:
            yield a, b
