"""What a pipeline may do to its inputs: each change in words, and as the Python that makes it.

In that Python, `x` is one sample in FP64; of images, one image [channels, rows, columns]. What is
shown to users is what is run. Normalisations that people use are those of torchvision and timm
(ImageNet; 0.5; CLIP of OpenAI), of Caffe (means of ILSVRC 2012) and of Keras' `imagenet_utils`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import product
from typing import Any, Literal

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from halfwise.case import Sample, Samples
from halfwise.records import replace
from halfwise.wording import number, stopped

Array = NDArray[np.float64]
Lines = tuple[str, ...]
Triple = tuple[float, float, float]

MOST_CHANNELS, SMALLEST_SIDE = 4, 8
"""An image has two axes of at least 8, and before or after them at most four channels."""
_SMOOTHER = 0.7
"""Roughness ratio for a buffer read in the other order; photos fall to a half or less."""


DifferenceKind = Literal[
    "batch-axis",
    "layout",
    "dtype",
    "channels",
    "scale",
    "mean",
    "deviation",
    "normalisation",
    "fit",
    "resampling",
    "shape",
    "values",
]
"""What can differ.

"resampling": fine detail; "fit": how the image is fitted to its frame (stretched, letterboxed,
sized), or another image; "normalisation": by each image's own mean and deviation, which is only
tried; "values": anything not explained by the others.
"""
_SENTENCES: Mapping[DifferenceKind, str] = {
    "dtype": "B is {b}, A {a}.",
    "batch-axis": "B has {b} leading axes of length 1, A {a}.",
    "layout": "B is laid out as {b}, A as {a}.",
    "channels": "B's channels are A's channels {b}.",
    "scale": "B's values have the scale {b}, A's {a}.",
    "mean": "B's values have the mean {b} taken off, A's {a}.",
    "deviation": "B's values are divided by the deviation {b}, A's by {a}.",
    "normalisation": "B is normalised {b}, A {a}.",
    "resampling": "What is left is fine detail: another resize kernel or decoder, or places off by "
    "a pixel or two.",
    "fit": "The images differ in how they are fitted, cropped, turned, padded or sized, or show "
    "something else; not taken apart further: make these steps alike and compare again.",
    "shape": "B is {b}, A {a}.",
    "values": "Values differ, and no known step explains how: padding, gamma, clipping, other "
    "colours or each sample's own mean and deviation would do so.",
}


class Difference(Struct, frozen=True):
    """One difference between two pipelines.

    Attributes:
        kind: Its kind.
        a: What A does, in a few words; "" if that is not known.
        b: What B does.
        evidence: The numbers behind it, as a clause; "" if there are none.
    """

    kind: DifferenceKind
    a: str
    b: str
    evidence: str = ""


def told(differences: Sequence[Difference]) -> str:
    """Return what B does differently, and the numbers behind it, in sentences."""
    numbers = dict.fromkeys(stopped(one.evidence) for one in differences if one.evidence)
    return " ".join([*(_SENTENCES[d.kind].format(a=d.a, b=d.b) for d in differences), *numbers])


class Change(Struct, frozen=True):
    """What B does differently, and the lines that make `x` of A as it is in B."""

    differences: tuple[Difference, ...] = ()
    lines: Lines = ()

    def __add__(self, other: "Change") -> "Change":
        """Return both, one after the other."""
        return Change(self.differences + other.differences, self.lines + other.lines)

    @classmethod
    def of(
        cls, kind: DifferenceKind, a: object = "", b: object = "", *lines: str, evidence: str = ""
    ) -> "Change":
        """Return the change from what A does to what B does: none where both do the same.

        Without `a` and `b`, what they do is not known.
        """
        one, other = str(a), str(b)
        known = cls((Difference(kind, one, other, evidence),), lines)
        return known if one != other or not one else cls()


def run(lines: Sequence[str], x: NDArray[Any]) -> Array:
    """Return `x`, any shape, after the lines of changes, which hold only numbers and NumPy."""
    return transformation(written(lines, np.dtype(np.float64)))(x)


def written(lines: Sequence[str], dtype: np.dtype[Any]) -> str:
    """Return Python with a function `a_to_b` that returns `dtype`."""
    end = f'return np.asarray(x, np.{dtype.name}, order="C")'
    if dtype.kind in "iu":
        end = f"x = np.clip(np.round(x), {np.iinfo(dtype).min}, {np.iinfo(dtype).max})\n    {end}"
    say = '"""Turn one sample of A into one of B."""'
    body = "\n    ".join((say, "x = np.asarray(a, np.float64)", *lines, end))
    return f"import numpy as np\n\n\ndef a_to_b(a):\n    {body}\n"


def code_of(codes: Mapping[str, str]) -> str:
    """Return the Python for all inputs: `a_to_b`, or `a_to_b_0` and so on if several.

    Args:
        codes: Python by input name; empty text if A and B are the same.
    """
    parts = [code for code in codes.values() if code]
    if len(codes) > 1:
        # Input names are untrusted, so they are quoted.
        parts = [
            f"# Input {name!a}\n{code.replace('def a_to_b(', f'def a_to_b_{i}(')}"
            for i, (name, code) in enumerate(codes.items())
            if code
        ]
    return "\n\n".join(parts) or "# A and B are the same.\n"


@lru_cache
def transformation(text: str) -> Callable[[NDArray[Any]], NDArray[Any]]:
    """Return the function in a text of `written`."""
    names: dict[str, Callable[[NDArray[Any]], NDArray[Any]]] = {}
    exec(text, names)  # noqa: S102 - no text of a user's is in it
    return names["a_to_b"]


_AXES: dict[tuple[str, bool], tuple[Lines, Lines]] = {
    ("CHW", False): ((), ()),
    ("HWC", False): (("x = x.transpose(2, 0, 1)",), ("x = x.transpose(1, 2, 0)",)),
    ("HW", False): (("x = x[None]",), ("x = x[0]",)),
    ("CHW", True): (
        ("x = x.reshape(x.shape[1:] + x.shape[:1]).transpose(2, 0, 1)",),
        ("x = x.transpose(1, 2, 0).reshape(x.shape)",),
    ),
    ("HWC", True): (
        ("x = x.reshape(x.shape[2:] + x.shape[:2])",),
        ("x = x.reshape(x.shape[1:] + x.shape[:1])",),
    ),
}
"""The lines to [channels, rows, columns] and back, by order and whether it is reshaped."""


class Layout(Struct, frozen=True):
    """The layout of an image in a sample.

    Attributes:
        order: The axes after any leading ones of length 1.
        lead: Number of leading axes of length 1.
        reshaped: The buffer is in the other order: reshaped instead of transposed.
    """

    order: str
    lead: int
    reshaped: bool = False

    def __str__(self) -> str:
        """Return the order, such as CHW."""
        return f"{self.order}, reshaped instead of transposed" if self.reshaped else self.order

    @property
    def read(self) -> Lines:
        """The lines from a sample to [channels, rows, columns]."""
        lead = (f"x = x.reshape(x.shape[{self.lead}:])",) if self.lead else ()
        return lead + _AXES[self.order, self.reshaped][0]

    @property
    def write(self) -> Lines:
        """The lines back."""
        lead = (f"x = x.reshape({(1,) * self.lead} + x.shape)",) if self.lead else ()
        return _AXES[self.order, self.reshaped][1] + lead


def layout_of(sample: NDArray[Any]) -> Layout | None:
    """Return the layout of the image in a sample, None if there is none.

    Roughness shows whether the buffer is in the other order.
    """
    lead = max(0, sample.ndim - 3)
    shape = sample.shape[lead:]
    if sample.dtype.kind not in "biuf" or any(n != 1 for n in sample.shape[:lead]):
        return None
    lengths = {"HW": (1, *shape), "CHW": shape, "HWC": shape[2:] + shape[:2]}
    for order, (channels, *sides) in lengths.items() if len(shape) > 1 else ():
        if len(order) == len(shape) and channels <= MOST_CHANNELS and min(sides) >= SMALLEST_SIDE:
            ways = [Layout(order, lead, way) for way in (False, True) if (order, way) in _AXES]
            rough = [_roughness(run(each.read, sample)) for each in ways]
            return ways[rough[-1] < _SMOOTHER * rough[0]]
    return None


def _roughness(image: Array) -> float:
    steps = np.abs(np.diff(image, axis=1)).mean() + np.abs(np.diff(image, axis=2)).mean()
    return float(steps / (image.std(axis=(1, 2)).mean() or 1.0))


def relaid(a: Layout, b: Layout) -> Change:
    """Describe the differences in layout."""
    return Change.of("batch-axis", a.lead, b.lead) + Change.of("layout", a, b)


def reordered(channels: Sequence[int], count: int) -> Change:
    """Return the change to channels `channels` of `count`; nothing if they are all in order."""
    before, after = (", ".join(map(str, each)) for each in (range(count), channels))
    swapped = ": one is RGB, the other BGR" if tuple(channels) == (2, 1, 0) else ""
    return Change.of("channels", before, after + swapped, f"x = x[{list(channels)}]")


class Normalisation(Struct, frozen=True):
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
        """Return gain and offset from pixels to values, f64[count] each."""
        mean, deviation = np.resize(self.mean, count), np.resize(self.deviation, count)
        return self.scale / deviation, -mean / deviation

    @property
    def bgr(self) -> "Normalisation":
        """The same by channel in BGR order."""
        return Normalisation(
            f"{self.name} in BGR order", self.scale, self.mean[::-1], self.deviation[::-1]
        )

    def admits(self, low: float, high: float, count: int, least: float) -> bool:
        """Return whether it makes `low` to `high` of pixels that lie `least` levels apart."""
        gain, offset = self.line(count)
        darkest, lightest = ((low - offset) / gain).max(), ((high - offset) / gain).min()
        # A cubic kernel overshoots by up to 40 levels.
        return bool(darkest >= -40 and lightest <= 295 and lightest - darkest >= least)


_SETS: dict[str, tuple[Triple, Triple]] = {
    "ImageNet's": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "CLIP's": (
        (0.48145466, 0.4578275, 0.40821073),
        (0.26862954, 0.26130258, 0.27577711),
    ),
    "0.5 as": ((0.5,) * 3, (0.5,) * 3),
}


def _by_sets(scale: float, said: str) -> Iterator[Normalisation]:
    """Yield the mean and deviation of each set, and only one of both."""
    for name, (mean, deviation) in _SETS.items():
        yield Normalisation(f"{said}, {name} mean and deviation", scale, mean, deviation)
        yield Normalisation(f"{said}, {name} mean", scale, mean)
        yield Normalisation(f"{said}, {name} deviation", scale, deviation=deviation)


_RGB = (
    Normalisation("pixels from 0 to 255", 1.0),
    Normalisation("pixels scaled by 1/255", 1 / 255),
    *_by_sets(1 / 255, "scaled by 1/255"),
    Normalisation("Caffe's mean, no scale", 1.0, (123.68, 116.779, 103.939)),
    Normalisation("(x − 127.5)/128", 1.0, (127.5,) * 3, (128.0,) * 3),
    Normalisation("(x − 128)/128", 1.0, (128.0,) * 3, (128.0,) * 3),
    Normalisation("mean 127.5, no scale", 1.0, (127.5,) * 3),
    Normalisation("mean 128, no scale", 1.0, (128.0,) * 3),
    Normalisation("scaled by 1/256", 1 / 256),
    Normalisation("scaled by 1/128", 1 / 128),
    Normalisation("scaled by 1/255 twice", 1 / 255**2),
    *_by_sets(1.0, "not scaled"),
)


KNOWN = (*_RGB, *(n.bgr for n in _RGB if n.bgr.line(3)[1][0] != n.line(3)[1][0]))
"""Normalisations that people use, likeliest first."""


class Pair(Struct, frozen=True, dict=True):
    """The normalisations of A and B, each in the order of its channels.

    Attributes:
        a: A's.
        b: B's.
        channels: The channel of A for each of B, as many as A has.
    """

    a: Normalisation
    b: Normalisation
    channels: tuple[int, ...]

    @cached_property
    def line(self) -> tuple[Array, Array]:
        """Gain and offset from A to B, by channel of B."""
        channels = list(self.channels)
        gain_a, offset_a = (each[channels] for each in self.a.line(len(channels)))
        gain, offset = self.b.line(len(channels))
        return gain / gain_a, offset - gain / gain_a * offset_a

    @property
    def change(self) -> Change:
        """The change from A to B, named by the parts that differ."""
        names = f"B is {self.b.name}, A {self.a.name}"
        return (
            _linear(*self.line)
            + Change.of("scale", row([self.a.scale]), row([self.b.scale]), evidence=names)
            + Change.of("mean", row(self.a.mean), row(self.b.mean), evidence=names)
            + Change.of("deviation", row(self.a.deviation), row(self.b.deviation), evidence=names)
        )

    @property
    def cost(self) -> float:
        """How unlikely it is: the parts that differ, then the places among the known."""
        unlike = (
            (self.a.scale != self.b.scale)
            + (self.a.mean != self.b.mean)
            + (self.a.deviation != self.b.deviation)
        )
        return 0.5 * unlike + 0.03 * (KNOWN.index(self.a) + KNOWN.index(self.b))

    def distance(self, gain: Array, offset: Array) -> float:
        """Return the largest error of a line: in gain, relative; in offset, over 255 levels."""
        units = self.b.line(len(self.channels))[0] * 255
        errors = gain / self.line[0] - 1, (offset - self.line[1]) / units
        return float(np.abs(errors).max())


def pairs(channels: Sequence[int], limits: tuple[float, float], least: float) -> list[Pair]:
    """Return usual normalisations of A and B, likeliest first.

    Args:
        channels: The channel of A for each of B, as many as A has.
        limits: A's smallest and largest value.
        least: Levels of 255 that lie between them at least.
    """
    likely = [known for known in KNOWN if known.admits(*limits, len(channels), least)]
    return sorted(
        (Pair(a, b, tuple(channels)) for a, b in product(likely, KNOWN)), key=lambda pair: pair.cost
    )


def row(values: Sequence[float] | Array, digits: int = 4) -> str:
    """Return numbers in words: one if all are equal."""
    numbers = [number(float(value), digits) for value in values]
    return numbers[0] if len(set(numbers)) == 1 else f"({', '.join(numbers)})"


def scaled(gain: Array, offset: Array) -> Change:
    """Return the change to gain · x + offset, f64[channels] each, named by numbers.

    Gains are named to three digits, and offsets from half a per cent of the gain on. One gain and
    offset fit arrays of any shape, several fit images.
    """
    even = np.ptp(gain) < 0.01 * np.abs(gain).max()
    scale, deviation = (gain, gain / gain) if even else (gain / gain, 1 / gain)
    mean = np.where(np.abs(offset) > 0.005 * np.abs(gain).max(), -offset / gain * scale, 0)
    line = f"B = {row(gain)} · A + {row(offset)}"
    return (
        _linear(gain, offset)
        + Change.of("scale", "1", row(scale, 3), evidence=line)
        + Change.of("mean", "0", row(mean), evidence=line)
        + Change.of("deviation", "1", row(deviation, 3), evidence=line)
    )


def _linear(gain: Array, offset: Array) -> Change:
    """Return the lines to gain · x + offset."""
    lines = (
        f"x = x {sign} "
        + (f"np.array({values.tolist()})[:, None, None]" if len(values) > 1 else f"{values[0]:.9g}")
        for sign, values, nothing in (("*", gain, 1), ("+", offset, 0))
        if (values != nothing).any()
    )
    return Change(lines=tuple(lines))


OWN = Change.of(
    "normalisation",
    "by fixed numbers",
    "by each sample's own mean and deviation",
    "x = x - x.mean()",
    "x = x / x.std()",
)
_REVERSED = {3: (2, 1, 0), 4: (2, 1, 0, 3)}
"""RGB to BGR and back, with and without alpha."""
_LEAST = 128.0
"""Levels between the darkest and the lightest pixel of a likely normalisation."""
_GAINS = (32768.0, 1 / 32768.0, 255.0, 1 / 255.0)
"""Sound as 16-bit integers or from -1 to 1; bytes or from 0 to 1."""
_FEWEST_VALUES = 64
"""Float inputs with fewer elements are not signals but scalar options or sizes."""


class Hypothesis(Struct, frozen=True):
    """A change to some inputs; A is the samples, B the result.

    Attributes:
        differences: What B does differently.
        code: Python of `a_to_b` by input, for one sample; for images, for one image.
    """

    differences: tuple[Difference, ...]
    code: Mapping[str, str]

    def __call__(self, sample: Sample) -> Sample:
        """Return the changed sample; batched images are changed one by one."""
        made = dict(sample)
        # Images without contrast have zero deviation.
        with np.errstate(all="ignore"):
            for name, code in self.code.items():
                made[name] = np.concatenate(
                    [transformation(code)(image) for image in _images(sample[name])]
                )
        return made


def hypotheses(samples: Samples) -> list[Hypothesis]:
    """Return input changes that people make or forget, simplest first, none twice.

    Images (inputs in one layout change together): reversed channels, usual normalisations that fit
    the range of values, reshaped or permuted axes, each image's own mean and deviation; then
    reversed channels with each of these. Other floats: a few factors, and the sample's own mean and
    deviation. Integers: plus or minus one.

    Args:
        samples: At least one, finite; each is loaded once.
    """
    first = samples[0]
    groups: dict[tuple[int, Layout], list[str]] = {}
    plain: list[Hypothesis] = []
    for name, array in first.items():
        image = _images(array)[0]
        if layout := layout_of(image):
            groups.setdefault((len(run(layout.read, image)), layout), []).append(name)
        else:
            plain += _hypotheses(_plain(array), {name: array})
    pictures: list[Hypothesis] = []
    for (count, layout), names in groups.items():
        group, limits = {name: first[name] for name in names}, None
        if all(array.dtype.kind == "f" for array in group.values()):
            ends = [(sample[n].min(), sample[n].max()) for sample in samples for n in names]
            limits = float(np.min(ends)), float(np.max(ends))
        pictures += _hypotheses(_changes(count, layout, limits), group)
    return pictures + plain


def _hypotheses(changes: Iterable[Change], inputs: Sample) -> list[Hypothesis]:
    """Return the changes, each to all of the inputs."""
    return [
        Hypothesis(each.differences, {n: written(each.lines, x.dtype) for n, x in inputs.items()})
        for each in changes
    ]


def _changes(count: int, layout: Layout, limits: tuple[float, float] | None) -> Iterator[Change]:
    """Yield changes from sample to sample."""
    back = Change(lines=layout.write)
    moved: list[Change] = []
    if layout.order != "HW" and count > 1:
        other = replace(layout, reshaped=not layout.reshaped)
        turned = Layout("HWC" if layout.order == "CHW" else "CHW", layout.lead)
        moved += [relaid(layout, each) + Change(lines=each.write) for each in (other, turned)]
        if not layout.reshaped:
            moved.append(relaid(other, layout) + Change(lines=layout.write + other.read) + back)
    straight, start = tuple(range(count)), Change(lines=layout.read)
    reverse = reordered(_REVERSED.get(count, straight), count)
    orders = {straight: start, _REVERSED.get(count, straight): start + reverse}
    yield from ([start + reverse + back] if reverse.lines else [])
    for channels, ordered in orders.items():
        values = (*_normalised(channels, *limits), OWN) if limits else ()
        yield from (ordered + each + back for each in values)
        yield from (ordered + each for each in moved)


def _normalised(channels: tuple[int, ...], low: float, high: float) -> Iterator[Change]:
    """Yield the lines from what A may be to what B may be, likeliest first, each once."""
    seen = {("1", "0")}
    for pair in pairs(channels, (low, high), _LEAST):
        # Two ways to the same values differ by rounding.
        line = row(pair.line[0], 5), row(pair.line[1], 5)
        if line not in seen:
            seen.add(line)
            yield pair.change


def _plain(array: NDArray[Any]) -> Iterator[Change]:
    if array.dtype.kind == "f" and array.size >= _FEWEST_VALUES:
        yield from (scaled(np.array([gain]), np.zeros(1)) for gain in _GAINS)
        yield OWN
    # Masks hold only 0 and 1.
    if array.dtype.kind in "iu" and array.ndim > 0 and array.max(initial=0) > 1:
        yield from (scaled(np.ones(1), np.array([step])) for step in (1.0, -1.0))


def _images(array: NDArray[Any]) -> list[NDArray[Any]]:
    """Return each image of a batch, [1, …]; the array itself if it is none."""
    return np.split(array, len(array)) if array.ndim == 4 else [array]
